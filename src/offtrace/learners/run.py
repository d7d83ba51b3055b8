"""Run a learner for each seed: in threads, with a progress bar, and put together their results."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offtrace._shared.cores import cores
from offtrace._shared.number_text import duration
from offtrace._shared.progress_bar import ProgressBar, watched
from offtrace.learners.acting import POLICY, CodedPolicy
from offtrace.learners.arrays import Floats, Integers, Records, slots
from offtrace.learners.eligibility import eligibility, grown
from offtrace.learners.environments import Environment
from offtrace.learners.loop import ALL, add_sums, loop
from offtrace.learners.methods.base import TRANSITION, Method
from offtrace.learners.own_steps import Own
from offtrace.learners.random import begin
from offtrace.learners.result import BEYOND, Curve, Learned, beyond
from offtrace.learners.rule_functions import first_carry, own_step, parameters, rule_functions, rule_settings, trace_of
from offtrace.learners.state import LANE, ONLINE, PROGRESS, REPLAY, SETTINGS, STEP, Lane, Memory, Task, World
from offtrace.learners.state import Curve as Recorded

clock = time.perf_counter

SLICE = 500_000
"""The most steps between two looks at the clock and at whether to stop."""
FIRST = {True: 100, False: 20_000}
"""Steps before the first of them: where a trace or an environment is in Python, and where all is compiled."""
PAUSE = 0.5
"""Seconds between two of them, about: a trace or an environment in Python may take long for a step."""


class Job:
    """What is to be run, for any seed: `task` is what loops read, and `numbers` are the fields of its SETTINGS.

    - `policies`: the behaviour, the target, and the policy of evaluation episodes
    - `alpha`: the step size, as a schedule
    - `first`: [size], the weights to begin with; `spread` is the standard deviation of the noise that is added to them
    - `marks`: when the curve has its points
    - `truth`: [S, A], or [S, 1]; without it the curve has no error
    - `capacity`: how many steps a replay buffer holds
    - `recorded`: a given trajectory, which is followed; then θ is recorded at the points of the curve
    - `given`: fields of SETTINGS; those that neither these nor the method set are 0
    """

    def __init__(
        self,
        where: Environment,
        method: Method,
        policies: tuple[CodedPolicy, CodedPolicy, CodedPolicy],
        alpha: CodedPolicy,
        *,
        first: Floats,
        marks: Integers,
        spread: float = 0.0,
        truth: Floats | None = None,
        capacity: int = 1,
        recorded: Records | None = None,
        **given: float,
    ) -> None:
        self.where, self.method, self.policies, self.first, self.spread = where, method, policies, first, spread
        self.marks, self.capacity, self.recorded = marks, capacity, recorded
        self.truth = np.empty((0, 0)) if truth is None else truth
        of_method, lags = rule_settings(method)
        unset = {"episodes": 0, "evaluate_every": 0, "limit": 0, "by_visits": 0}
        self.numbers: dict[str, float] = unset | {"gamma": where.gamma} | of_method | given
        settings, (behavior, target, evaluation) = np.zeros(1, SETTINGS), (policy.table for policy in policies)
        for name, number in self.numbers.items():
            settings[name] = number
        schedules = np.array([one[:7] for one in (*policies, alpha)], POLICY)
        features, rows = where.features, parameters(method, where.shape)
        self.task = Task(settings, features.tile, features.value, schedules, behavior, target, evaluation, rows, lags)

    @property
    def in_python(self) -> bool:
        """Whether its environment or its trace is Python."""
        return trace_of(self.method).form == "history" or (self.where.mdp is None and self.recorded is None)


class Learner:
    """One seed in an MDP, or on a given trajectory. `begin` makes its arrays, of which `θ` and `curve` remain."""

    def __init__(self, job: Job, world: World, seed: int, lanes: int = 1) -> None:
        self.job, self.world, self.task, self.seed, self.lane_count = job, world, job.task, seed, lanes
        self.begun, self.done, self.steps, self.share = False, False, 0, 0.0
        self.capacity = max(1, job.capacity // lanes) if job.numbers["update"] == REPLAY else 1

    def begin(self) -> None:
        """Make the arrays of a learner that has not taken a step."""
        job, numbers, method, A = self.job, self.job.numbers, self.job.method, self.job.where.features.A
        size, k, lanes, carry = job.where.size, self.task.tile.shape[1], range(self.lane_count), first_carry(method)
        self.begun, θ, streams = True, job.first.copy(), np.zeros(2, np.uint64)
        begin(np.uint64(self.seed), job.spread, streams, θ)
        self.progress = progress = np.zeros(1, PROGRESS)
        progress["evaluation_state"] = -1
        further, N = np.zeros((len(method.further), size)), np.zeros(size if numbers["by_visits"] else 0)
        self.memory = Memory(progress, streams, θ, further, N, np.zeros(A), np.zeros(A), np.zeros(k, np.int64), carry)
        self.lanes = [_lane(self.capacity, θ, numbers["update"] == ONLINE) for _ in lanes]
        self.eligibility = [eligibility(numbers, size, k, len(carry)) for _ in lanes]
        self.own = [None if method.in_loop else _own(method, size) for _ in lanes]
        snapshots = np.full((len(job.marks), size if job.recorded is not None else 0), np.nan)
        evaluations = np.zeros((len(lanes) + (1024 if numbers["evaluate_every"] else 0), 2))
        points = np.full((len(job.marks), 3), np.nan)
        self.curve = Recorded(job.marks, points, snapshots, job.truth, job.where.judged, evaluations)
        compiled: Any = loop()
        self.call: Any = getattr(compiled, "py_func", compiled) if numbers["history"] else compiled
        self.rule, self.custom = rule_functions(method)

    def run(self, lane: int, stage: int, budget: int) -> int:
        """Call the loop for at most so many steps, with more room where it might run out; it returns an action for ACT."""
        self.eligibility[lane] = e = grown(self.eligibility[lane], len(self.memory.active))
        if self.now("evaluations") + len(self.lanes) > len(self.curve.evaluations):
            longer = np.concatenate([self.curve.evaluations, np.zeros_like(self.curve.evaluations)])
            self.curve = self.curve._replace(evaluations=longer)
        self.progress["budget"] = budget
        arguments = self.memory, self.lanes[lane], e, self.curve, self.own[lane], stage
        with np.errstate(over="ignore"):  # of random numbers, where the loop is Python
            action = self.call(self.world, self.task, self.rule, self.custom, *arguments)
        numbers, self.steps = self.job.numbers, self.now("step")
        self.share = self.now("episode") / numbers["episodes"] if numbers["episodes"] else self.steps / numbers["steps"]
        if self.now("bad"):
            raise ValueError(
                f"the custom trace {self.job.method.title!r} returned a β that is negative or not finite; "
                "does it list all that it uses in `reads`?"
            )
        return action

    def now(self, name: str) -> int:
        """A number of the learner's PROGRESS."""
        return int(self.progress[name][0])

    def take_steps(self, budget: int) -> None:
        """At most so many steps."""
        self.run(0, ALL, budget)

    def advance(self, budget: int) -> bool:
        """Continue for so many steps; whether the learner is done."""
        if not self.begun:
            self.begin()
        until = self.steps + budget
        while not self.done and self.steps < until:
            self.take_steps(until - self.steps)
            if self.now("done"):
                self.finish()
        return self.done

    def add_sums(self, lanes: Iterable[int]) -> None:
        """Add to θ what unfinished episodes of these lanes have summed up, if their update waits for the end."""
        numbers, memory = self.job.numbers, self.memory
        for at, _, sums, summed in (self.lanes[j] for j in lanes if numbers["update"] != ONLINE):
            add_sums(numbers["by_visits"], at[0].alpha, memory.θ, memory.N, sums, summed)

    def finish(self) -> None:
        """Drop the arrays that are not the result."""
        self.done, self.θ, points = True, self.memory.θ, self.curve.points
        if not np.isfinite(self.θ).all():
            points[self.now("mark") :] = np.inf, np.nan, self.steps
            self.θ[:] = np.nan
        self.curve = self.curve._replace(evaluations=self.curve.evaluations[: self.now("evaluations")].copy())
        del self.memory, self.lanes, self.eligibility, self.own


def _lane(capacity: int, θ: Floats, is_online: bool) -> Lane:
    """A lane before its first episode. Online it changes θ itself, else it sums up changes."""
    lane, summing = np.zeros(1, LANE), 0 if is_online else len(θ)
    lane["begins"], lane["chosen"] = 1, -1
    return Lane(lane, np.zeros(capacity, STEP), np.zeros(summing) if summing else θ, slots(summing, summing))


def _own(method: Method, size: int) -> Own:
    traces, scalars, listed = (
        np.zeros((len(method.traces), size)),
        np.zeros(len(method.scalars)),
        size if method.traces else 0,
    )
    numbers = np.array(method.numbers, dtype=np.float64)
    return Own(own_step(method), np.zeros(1, TRANSITION), traces, slots(listed, listed), scalars, numbers)


def learner_of(job: Job) -> Callable[[int], Learner]:
    """Makes the learner of a seed."""
    if job.where.mdp is None and job.recorded is None:
        from offtrace.learners.gymnasium import GymLearner  # Gymnasium is an extra

        return lambda seed: GymLearner(job, seed)
    world = job.where.world._replace(recorded=job.recorded)
    return lambda seed: Learner(job, world, seed)


def run(job: Job, seeds: NDArray[np.uint64], alone: bool, progress: bool | None, threads: int | None) -> Learned:
    """Run all seeds. `alone`: there is one, and arrays of the result have no axis of seeds."""
    given: object = cores() if threads is None else threads
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ValueError(f"threads must be an integer of at least 1, got {given!r}")
    make = learner_of(job)
    learners = [make(int(seed)) for seed in seeds]
    started = time.perf_counter()
    bar = watched() if progress is None else progress
    work(learners, 1 if job.in_python else given, bar, FIRST[job.in_python])  # Python works a thread at a time
    return _learned(job, learners, seeds, alone, time.perf_counter() - started)


def work(units: Sequence[Learner], threads: int, progress: bool, first: int) -> None:
    """Each thread takes the next unit and continues it, some steps at a time, until all are done."""
    started, stop, steps, left = time.perf_counter(), threading.Event(), min(first, SLICE), iter(units)

    def thread() -> None:
        nonlocal steps  # what one unit has measured serves the next
        for unit in left:
            while not stop.is_set():
                began, taken = clock(), steps
                if unit.advance(taken):  # in which case it took fewer steps
                    break
                steps = next_slice(taken, clock() - began)

    with ProgressBar() if progress else nullcontext() as bar, ThreadPoolExecutor(threads) as pool:
        waiting = {pool.submit(thread) for _ in range(min(threads, len(units)))}
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=0.2 if progress else None, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
                if bar:
                    done, spent = sum(unit.share for unit in units), time.perf_counter() - started
                    rate = sum(unit.steps for unit in units) / max(spent, 1e-9)
                    left_over = spent * (len(units) - done) / done if done > 0 else float("inf")
                    text = f"{done:.1f}/{len(units)} learners, {rate:,.0f} steps/s, {duration(left_over)} left"
                    bar.show(done, len(units), text)
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


def _learned(job: Job, learners: Sequence[Learner], seeds: NDArray[np.uint64], alone: bool, wall: float) -> Learned:
    where, features = job.where, job.where.features
    θ, points = np.stack([one.θ for one in learners]), np.stack([one.curve.points for one in learners])
    progress = np.concatenate([one.progress for one in learners])
    steps, episodes, largest = progress["step"], progress["episode"], progress["largest"]
    lost = beyond(θ, largest, steps, where, job.first, job.spread)
    θ[lost] = np.nan
    points[lost, -1, 0] = np.inf
    if lost.any():
        who = "the learner" if alone else f"{lost.sum()} of {len(seeds)} learners"
        warnings.warn(
            f"{who} diverged: values are not finite, or {BEYOND:,.0f} times larger than the rewards seen allow (their Q is NaN). "
            "Try a smaller alpha or a smaller λ",
            stacklevel=4,
        )
    at = 0 if alone else slice(None)
    evaluations = [one.curve.evaluations for one in learners]
    return Learned(
        method=job.method,
        weights=(θ if features.states else θ.reshape(len(θ), -1, features.A))[at],
        features=features,
        coder=where.coder,
        seeds=seeds[at],
        steps=steps[at],
        episodes=episodes[at],
        curve=Curve(points[at, :, 2].astype(np.int64), points[at, :, 0], points[at, :, 1]),
        evaluations=tuple((rows[:, 0].astype(np.int64), rows[:, 1]) for rows in evaluations),
        wall=wall,
    )
