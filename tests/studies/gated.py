"""Environments that wait or die in workers until a file is there: so a test meets a study half-way, on any machine."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from offtrace.mdps import MDP, random_walk
from offtrace.studies import register_environment
from offtrace.studies.named_environments import GALLERY


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
