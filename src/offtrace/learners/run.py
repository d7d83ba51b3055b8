"""Run all seeds of a job: in threads, with a progress bar and a checkpoint, and put together what comes of them."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from offtrace._shared.cores import cores
from offtrace._shared.number_text import duration
from offtrace._shared.progress_bar import ProgressBar, watched
from offtrace.learners.checkpoint import Array, Checkpoint
from offtrace.learners.core.blocks import Block, Job
from offtrace.learners.core.loop_memory import Out
from offtrace.learners.core.record_arrays import Floats, Integers
from offtrace.learners.learned import BEYOND, Curve, Learned, beyond

G = TypeVar("G", bound=np.generic)
clock = time.perf_counter

SLICE = 500_000
"""Steps between two looks at the clock, and at whether to stop, at most."""
FIRST = {True: 100, False: 20_000}
"""Steps before the first look: where a trace or an environment is in Python, and where all is compiled."""
PAUSE = 0.5
"""Seconds between two looks, about: a trace or an environment in Python may take long for a step."""
BLOCK = 64
"""Seeds in a block at most."""


class Unit(Protocol):
    """Some seeds that one thread works on: a `Block`, or a `HostBlock` where Gymnasium has the environment."""

    out: Out

    def advance(self, budget: int) -> bool:
        """Go on for so many steps; whether all seeds are done."""
        ...

    @property
    def steps(self) -> int:
        """Taken so far, by all seeds."""
        ...

    @property
    def progress(self) -> float:
        """How many seeds are done, the one under way in part."""
        ...

    def snapshot(self) -> dict[str, Array]:
        """Everything that changes, copied."""
        ...

    def restore(self, saved: Mapping[str, Array]) -> None:
        """Go on from a snapshot."""
        ...


def run(
    job: Job,
    seeds: NDArray[np.uint64],
    alone: bool,
    checkpoint: str | os.PathLike[str] | None,
    progress: bool | None,
    threads: int | None,
) -> Learned:
    """Run all seeds. `alone`: there is one, and arrays of the result have no axis of seeds."""
    threads = _threads(threads)
    in_python = job.where.mdp is None or job.method.trace.form == "history"
    each = min(BLOCK if job.where.mdp else 1, -(-len(seeds) // threads))
    file = None
    if checkpoint is not None:
        file = Checkpoint(Path(checkpoint), (*job, seeds), each)
        each = file.each
    units = _units(job, [seeds[i : i + each] for i in range(0, len(seeds), each)], file is not None)
    if file:
        file.restore(units)
    started = time.perf_counter() - (file.wall if file else 0.0)
    bar = watched() if progress is None else progress
    _work(units, 1 if in_python else threads, file, started, bar, FIRST[in_python])  # Python works a thread at a time
    return _learned(units, job, seeds, alone, time.perf_counter() - started)


def _units(job: Job, parts: Sequence[NDArray[np.uint64]], saved: bool) -> list[Unit]:
    if job.where.mdp is not None:
        first = Block(job, parts[0])
        return [first, *(Block(job, part, like=first) for part in parts[1:])]
    from offtrace.learners.gymnasium.block import HostBlock  # Gymnasium is an extra

    made = [HostBlock(job, part) for part in parts]
    if saved:
        made[0].check_that_it_can_be_saved()
    return [*made]


def _threads(given: object) -> int:
    if given is None:
        return cores()
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ValueError(f"threads must be an integer of at least 1, got {given!r}")
    return given


def _work(
    units: Sequence[Unit], threads: int, file: Checkpoint | None, started: float, progress: bool, first: int
) -> None:
    """Take blocks in turn, a slice at a time, until all are done."""
    total, stop, lock = sum(len(unit.out.seeds) for unit in units), threading.Event(), threading.Lock()

    steps = min(first, SLICE)

    def work(i: int) -> None:
        nonlocal steps  # what one unit has found out serves the next
        while not stop.is_set():
            began, taken = clock(), steps
            done = units[i].advance(taken)
            if not done:  # else it took fewer steps
                steps = next_slice(taken, clock() - began)
            if file:
                with lock:
                    file.keep(i, units[i], started)
            if done:
                return

    with ProgressBar() if progress else nullcontext() as bar, ThreadPoolExecutor(threads) as pool:
        waiting = {pool.submit(work, i) for i in range(len(units))}
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=0.2 if progress else None, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
                if bar:
                    _show(bar, sum(unit.progress for unit in units), total, started, sum(unit.steps for unit in units))
        except BaseException as error:
            stop.set()
            pool.shutdown(cancel_futures=True)
            if file and not isinstance(error, Exception):  # interrupted between two slices, not failed within one
                file.write(units, started)
            raise
    if file:
        file.write(units, started)


def next_slice(steps: int, seconds: float) -> int:
    """So many steps that they take about PAUSE seconds, after `steps` have taken `seconds`.

    >>> next_slice(1_000, 0.001), next_slice(1_000, 10.0)
    (4000, 50)
    """
    return int(min(max(1, steps * min(4.0, PAUSE / max(seconds, 1e-9))), SLICE))


def _show(bar: ProgressBar, done: float, total: int, started: float, steps: int) -> None:
    spent = time.perf_counter() - started
    left = spent * (total - done) / done if done > 0 else float("inf")
    rate = f"{steps / max(spent, 1e-9):,.0f} steps/s"
    bar.show(done, total, f"{done:.1f}/{total} learners, {rate}, {duration(left)} left")


def _learned(units: Sequence[Unit], job: Job, seeds: NDArray[np.uint64], alone: bool, wall: float) -> Learned:
    where, outs = job.where, [unit.out for unit in units]
    for out in outs:
        lost = beyond(out.θ, out.largest, out.steps, where, job.settings)
        out.θ[lost] = np.nan
        out.error[lost, -1] = np.inf

    def whole(parts: Iterable[NDArray[G]]) -> NDArray[G]:
        joined = np.concatenate([*parts])
        return joined[0] if alone else joined

    looks: list[tuple[Integers, Floats]] = []
    for out in outs:
        stops = np.concatenate([[0], out.look_stop])
        looks += [(out.look_step[i:j].copy(), out.look_return[i:j].copy()) for i, j in pairwise(stops)]
    θ = whole(out.θ for out in outs)
    result = Learned(
        method=job.method,
        weights=θ if where.features.states else θ.reshape(*θ.shape[:-1], -1, where.features.A),
        features=where.features,
        coder=where.coder,
        seeds=seeds[0] if alone else seeds,
        steps=whole(out.steps for out in outs),
        episodes=whole(out.episodes for out in outs),
        curve=Curve(*(whole(getattr(out, name) for out in outs) for name in ("at", "error", "returns"))),
        evaluations=tuple(looks),
        wall=wall,
    )
    lost = int(np.sum(result.diverged))
    if lost:
        who = "the learner" if alone else f"{lost} of {len(seeds)} learners"
        warnings.warn(
            f"{who} diverged: values are not finite, or {BEYOND:,.0f} times larger than the rewards seen allow (their Q is NaN). "
            "Try a smaller alpha or a smaller λ",
            stacklevel=5,
        )
    return result
