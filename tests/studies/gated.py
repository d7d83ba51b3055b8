"""Environments that wait or die in workers until a file is there: so a test meets a study half-way, on any machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import warnings
from pathlib import Path

from offtrace.mdps import MDP, random_walk
from offtrace.studies import register_environment
from offtrace.studies.environments import GALLERY


def gated(states: int, gate: str) -> MDP:
    wait(gate)
    return random_walk(states)


def deadly(states: int, gate: str) -> MDP:
    if _closed(gate):
        os.kill(os.getpid(), signal.SIGKILL)
    return random_walk(states)


def raising(states: int, gate: str) -> MDP:
    """The file `tried` counts how often it raised."""
    if _closed(gate):
        with Path(gate).with_name("tried").open("a") as file:
            file.write("x")
        raise ValueError(f"no walk of {states}\nbefore the gate is open")
    return random_walk(states)


def forking(states: int, gate: str) -> MDP:
    """It leaves a child that holds all files that are open here, and dies."""
    if _closed(gate):
        if not (child := os.fork()):
            time.sleep(1e6)
        Path(gate).with_name(f"child-{child}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return random_walk(states)


def pooled(states: int) -> MDP:
    """A walk whose states are counted by children of `multiprocessing`."""
    counted = []
    for method in ("fork", "spawn"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # forks of a process with threads
            with multiprocessing.get_context(method).Pool(2) as pool:
                counted.append(sum(pool.map(abs, [-1] * states)))
    return random_walk(*set(counted))


def wait(gate: str) -> None:
    """A worker leaves a file that says so."""
    if _closed(gate):
        Path(gate).with_name(f"waiting-{os.getpid()}").touch()
    while _closed(gate):
        time.sleep(0.02)


def _closed(gate: str) -> bool:
    return "worker" in Path(sys.argv[0]).name and not Path(gate).exists()


if "gated" not in GALLERY:  # pytest, too, imports this file, by another name
    register_environment("gated", gated)
    register_environment("deadly", deadly)
    register_environment("raising", raising)
    register_environment("forking", forking)
    register_environment("pooled", pooled)
