"""Run all seeds of a job: in threads, with a progress bar, and put together what comes of them."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import nullcontext
from itertools import pairwise
from typing import NamedTuple, NoReturn, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from offtrace._shared.cores import cores
from offtrace._shared.number_text import duration
from offtrace._shared.progress_bar import ProgressBar, watched
from offtrace.learners import loop
from offtrace.learners.acting import Policies
from offtrace.learners.arrays import Floats, Integers, Records, slots
from offtrace.learners.compiling import compiled
from offtrace.learners.eligibility import Eligibility, eligibility, grown
from offtrace.learners.environments import Environment
from offtrace.learners.learning import add_sums
from offtrace.learners.loop import BAD, DONE, ROOM
from offtrace.learners.memory import ONLINE, REPLAY, STEP, Features, Out, Own, Settings, memories, room_for
from offtrace.learners.methods.base import TRANSITION, Method
from offtrace.learners.plan import Past, Task, checked_step, functions_of, own_step, plan_of
from offtrace.learners.policies import Probabilities
from offtrace.learners.result import BEYOND, Curve, Learned, beyond

G = TypeVar("G", bound=np.generic)
clock = time.perf_counter

SLICE = 500_000
"""Steps between two evaluations at the clock, and at whether to stop, at most."""
FIRST = {True: 100, False: 20_000}
"""Steps before the first look: where a trace or an environment is in Python, and where all is compiled."""
PAUSE = 0.5
"""Seconds between two evaluations, about: a trace or an environment in Python may take long for a step."""
BLOCK = 64
"""Seeds in a block at most."""


class Job(NamedTuple):
    """What is to be run, for any seed."""

    where: Environment
    method: Method
    policies: Policies
    settings: Settings
    capacity: int
    """How many steps a replay buffer holds."""
    functions: tuple[Probabilities | None, Probabilities | None] = (None, None)
    """Behaviour and target as functions of observations, where states have no numbers and a policy is not one in Q."""


class Learner:
    """What the compiled loop keeps of one learner, in as many lanes as its environment has copies."""

    def __init__(self, job: Job, features: Features, lanes: int, capacity: int) -> None:
        method, settings, size, k = job.method, job.settings, job.where.size, features.tile.shape[1]
        self.method, self.settings = method, settings
        self.past = Past(method.trace) if method.uses_trace and method.trace.form == "history" else None
        self.plan = plan_of(method, job.where.shape)
        self.functions = functions_of(method, self.past)
        self.task = Task(features, job.policies, settings, self.plan)
        self.lanes = memories(size, features.A, k, lanes=lanes, further=len(method.further), settings=settings)
        room = settings.length + 3 if settings.update == REPLAY else 64
        kept = {"per_decision": self.plan.per_decision, "grouped": self.plan.grouped, "carry": len(self.plan.first)}
        self.eligibility: list[Eligibility] = [eligibility(size=size, k=k, room=room, **kept) for _ in range(lanes)]
        replays = settings.update == REPLAY
        self.buffers = [np.zeros(capacity, STEP) if replays else None for _ in range(lanes)]
        self.own = [None if method.in_loop else _own(method, size) for _ in range(lanes)]

    def grow(self) -> None:
        """Make room where it has run out."""
        self.eligibility = [grown(e, self.lanes[0].weights.shape[0]) for e in self.eligibility]

    def add_sums_of_other_lanes(self, j: int) -> None:
        """When the last step is over: what their episodes have added up to so far, if that waits for their ends."""
        for i, m in enumerate(self.lanes):
            if i != j and self.settings.update != ONLINE:
                add_sums(self.settings, m)

    def refuse(self) -> NoReturn:
        """Say that a custom trace gave no coefficient."""
        if self.past is not None and self.past.error is not None:
            raise self.past.error
        raise ValueError(
            f"the custom trace {self.method.title!r} returned a β that is negative or not finite; "
            "does it list all that it uses in `reads`?"
        )

    @property
    def steps(self) -> int:
        """Steps of the seed under way."""
        at = self.lanes[0].progress[0]
        return int(at.step) if at.begun else 0

    @property
    def progress(self) -> float:
        """How much of the seed under way is done, from 0 to 1."""
        at = self.lanes[0].progress[0]
        if not at.begun:
            return 0.0
        return float(at.episode / self.settings.episodes if self.settings.episodes else at.step / self.settings.steps)


def _own(method: Method, size: int) -> Own:
    listed = size if method.traces else 0
    return Own(
        step=own_step(checked_step(method)),
        transition=np.zeros(1, TRANSITION),
        traces=np.zeros((len(method.traces), size)),
        used=slots(listed, listed),
        scalars=np.zeros(len(method.scalars)),
        numbers=np.array(method.numbers, dtype=np.float64),
    )


class Unit(Protocol):
    """Some seeds that one thread works on: a `Block`, or a `GymLearner` where Gymnasium has the environment."""

    out: Out

    def advance(self, budget: int) -> bool:
        """Continue for so many steps; whether all seeds are done."""
        ...

    @property
    def steps(self) -> int:
        """Taken so far, by all seeds."""
        ...

    @property
    def progress(self) -> float:
        """How many seeds are done, the one under way in part."""
        ...


class Block:
    """Some seeds in an MDP, or on a given trajectory, one after another. `snapshots`: θ is kept at the points of the curve."""

    def __init__(
        self, job: Job, seeds: NDArray[np.uint64], recorded: Records | None = None, *, snapshots: bool = False
    ) -> None:
        self.job, self.world = job, job.where.world._replace(recorded=recorded)
        self.learner = Learner(job, job.where.features, 1, job.capacity)
        self.out = room_for(seeds, job.where.size, job.settings, snapshots=snapshots)

    def advance(self, budget: int) -> bool:
        """Continue for so many steps; whether all seeds are done."""
        learner = self.learner
        while True:
            before = self.steps
            status = compiled(loop.run)(
                self.world, learner.task, *learner.functions, learner.lanes[0], learner.eligibility[0], learner.buffers[0],
                learner.own[0], self.out, budget,
            )  # fmt: skip
            if status == BAD:
                learner.refuse()
            if status != ROOM:
                return status == DONE
            budget = max(1, budget - (self.steps - before))
            if learner.lanes[0].progress[0].evaluations == len(self.out.evaluation_step):
                self.out = self.out.with_more_evaluations()
            learner.grow()

    @property
    def steps(self) -> int:
        """Taken so far, by all seeds."""
        return int(self.out.steps.sum()) + self.learner.steps

    @property
    def progress(self) -> float:
        """How many seeds are done, the one under way in part."""
        return int(self.learner.lanes[0].progress[0].seed) + self.learner.progress


def run(
    job: Job,
    seeds: NDArray[np.uint64],
    alone: bool,
    progress: bool | None,
    threads: int | None,
) -> Learned:
    """Run all seeds. `alone`: there is one, and arrays of the result have no axis of seeds."""
    threads = _threads(threads)
    in_python = job.where.mdp is None or job.method.trace.form == "history"
    each = min(BLOCK if job.where.mdp else 1, -(-len(seeds) // threads))
    units = _units(job, [seeds[i : i + each] for i in range(0, len(seeds), each)])
    started = time.perf_counter()
    bar = watched() if progress is None else progress
    _work(units, 1 if in_python else threads, started, bar, FIRST[in_python])  # Python works a thread at a time
    return _learned(units, job, seeds, alone, time.perf_counter() - started)


def _units(job: Job, parts: Sequence[NDArray[np.uint64]]) -> list[Unit]:
    if job.where.mdp is not None:
        return [Block(job, part) for part in parts]
    from offtrace.learners.gymnasium.learner import GymLearner  # Gymnasium is an extra

    return [GymLearner(job, part) for part in parts]


def _threads(given: object) -> int:
    if given is None:
        return cores()
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ValueError(f"threads must be an integer of at least 1, got {given!r}")
    return given


def _work(units: Sequence[Unit], threads: int, started: float, progress: bool, first: int) -> None:
    """Take blocks in turn, a slice at a time, until all are done."""
    total, stop = sum(len(unit.out.seeds) for unit in units), threading.Event()

    steps = min(first, SLICE)

    def work(i: int) -> None:
        nonlocal steps  # what one unit has found out serves the next
        while not stop.is_set():
            began, taken = clock(), steps
            done = units[i].advance(taken)
            if not done:  # else it took fewer steps
                steps = next_slice(taken, clock() - began)
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
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


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

    evaluations: list[tuple[Integers, Floats]] = []
    for out in outs:
        stops = np.concatenate([[0], out.evaluation_stop])
        evaluations += [
            (out.evaluation_step[i:j].copy(), out.evaluation_return[i:j].copy()) for i, j in pairwise(stops)
        ]
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
        evaluations=tuple(evaluations),
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
