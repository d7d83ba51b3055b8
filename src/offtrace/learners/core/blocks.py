"""Learners in blocks: each block is one memory that lives through its seeds one after another, a slice of steps at a time.

Blocks are independent, so threads may take them in any order; a checkpoint is a snapshot of each, no two at the same moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from offtrace.learners.core import loop
from offtrace.learners.core.acting import Coded
from offtrace.learners.core.eligibility import kept as eligibility
from offtrace.learners.core.eligibility.kept import Kept
from offtrace.learners.core.history_callback import Past
from offtrace.learners.core.loop import BAD, DONE, ROOM
from offtrace.learners.core.loop_memory import Memory, Out, as_seen, memory, room_for
from offtrace.learners.core.loop_settings import REPLAY, Features, Settings
from offtrace.learners.core.method_plan import STEP, compiled, plan, rarer_parts
from offtrace.learners.core.pointed import Pointed
from offtrace.learners.core.restored import Room, read_kept, read_memory, read_out, require
from offtrace.learners.environments import Environment
from offtrace.learners.methods.base import Method
from offtrace.learners.policies import Probabilities

Array = NDArray[np.generic]


class Job(NamedTuple):
    """What is to be run, for any seed."""

    where: Environment
    method: Method
    behavior: Coded
    target: Coded
    looking: Coded
    """The policy of evaluation episodes."""
    settings: Settings
    capacity: int
    """How many steps a replay buffer holds."""
    functions: tuple[Probabilities | None, Probabilities | None] = (None, None)
    """Behaviour and target as functions of observations, where states have no numbers and a policy is not one in Q."""

    @property
    def policies(self) -> tuple[Coded, Coded, Coded]:
        """Behaviour, target, and that of evaluation episodes, as loops take them."""
        return self.behavior, self.target, self.looking


class Life:
    """What the compiled loop keeps of one learner, in as many lanes as its environment has copies."""

    def __init__(self, job: Job, features: Features, lanes: int, capacity: int) -> None:
        where, settings, method = job.where, job.settings, job.method
        self.method = method
        self._pointed: tuple[Memory, Kept, Pointed, Pointed] | None = None
        self.job, self.room = job, Room(len(features.tile), features.A, where.size)
        used = job.method.uses_trace and job.method.trace.form == "history"
        self.past = Past(job.method.trace, STEP) if used else None
        self.plan, self.pointers = plan(job.method, where.shape, self.past)
        k = features.tile.shape[1]
        self.m = memory(
            where.size, features.A, k, lanes=lanes, kept=(len(method.further), len(method.traces), len(method.scalars)),
            by_visits=settings.by_visits, update=settings.update, capacity=capacity,
        )  # fmt: skip
        slots, deep = (settings.length * k, settings.length + 3) if settings.update == REPLAY else (64, 64)
        self.kept = eligibility.empty(
            self.plan.way, where.size, k, len(self.plan.first), slots, deep, lanes, self.plan.own_step
        )

    def fixed(self, features: Features, policies: Sequence[Coded], in_python: bool = False) -> tuple[object, ...]:
        """What loops of both kinds are given, and what does not change: features, plan, pointers, policies, settings."""
        seen, settings, coded = Pointed(features), Pointed(self.job.settings), [*map(Pointed, policies)]
        parts = rarer_parts(
            self.job.settings.update, self.plan, self.pointers, seen, coded, settings, *self.pointed(), in_python
        )
        return seen, Pointed(self.plan), *self.pointers, *parts, *coded, settings

    def pointed(self) -> tuple[Pointed, Pointed]:
        """What is kept, as the loop takes it: a row for each lane."""
        if self._pointed is None or (self._pointed[0] is not self.m or self._pointed[1] is not self.kept):
            lanes = range(len(self.m.lane))
            m = Pointed(*(as_seen(self.m, j) for j in lanes))
            kept = Pointed(*(eligibility.as_seen(self.kept, j) for j in lanes))
            self._pointed = self.m, self.kept, m, kept
        return self._pointed[2:]

    def grow(self) -> None:
        """Twice the room for the eligibility, where it has run out of it."""
        self.kept = eligibility.grown(self.plan.way, self.kept)

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
        at = self.m.progress[0]
        return int(at.step) if at.begun else 0

    def part(self, settings: Settings) -> float:
        """How much of the seed under way is done, from 0 to 1."""
        at = self.m.progress[0]
        if not at.begun:
            return 0.0
        return float(at.episode / settings.episodes if settings.episodes else at.step / settings.steps)

    def snapshot(self) -> dict[str, Array]:
        """Everything that changes, copied."""
        saved: dict[str, Array] = {}
        for part, of in (("m", self.m), ("kept", self.kept)):
            saved |= {f"{part}.{name}": array.copy() for name, array in zip(of._fields, of, strict=True)}
        return saved if self.past is None else {**saved, "past": self.past.steps.copy()}

    def restore(self, saved: Mapping[str, Array], out: Out) -> None:
        """Go on from a snapshot, whose numbers are checked; `out` is what came of the seeds so far."""
        policies = self.job.behavior, self.job.target
        self.m = read_memory(saved, self.m, self.job.settings, policies, self.room, out)
        self.kept = read_kept(saved, self.kept, self.plan.way, self.room)
        if self.past is not None:
            require(saved["past"].ndim == 2 and saved["past"].shape[1] == 3, "history")
            self.past.steps = saved["past"].astype(np.float64)


class Block:
    """Some seeds in an MDP, or on a recorded trajectory.

    `snapshots`: θ is kept at the points of the curve. `like`: a block of the same job, which shares with this one what its loop
    is given and does not change.
    """

    def __init__(
        self, job: Job, seeds: NDArray[np.uint64], *, snapshots: bool = False, like: Block | None = None
    ) -> None:
        self.job, self.life = job, Life(job, job.where.features, 1, job.capacity)
        self.out = room_for(seeds, job.where.size, job.settings, snapshots=snapshots)
        at = job.where
        if like is not None and self.life.past is None:  # a trace in Python writes to its plan
            self._fixed = like._fixed
        else:
            self._fixed = (Pointed(at.world), *self.life.fixed(at.features, job.policies))

    def advance(self, budget: int) -> bool:
        """Go on for so many steps; whether all seeds are done."""
        while True:
            arguments = (*self._fixed, *self.life.pointed(), Pointed(self.out))
            before = self.steps
            status = compiled(loop.run_of, *arguments, budget)(*arguments, budget)
            if status == BAD:
                self.life.refuse()
            if status != ROOM:
                return status == DONE
            budget = max(1, budget - (self.steps - before))
            self.grow()

    def grow(self) -> None:
        """Twice the room for what has run out of it."""
        if self.life.m.progress[0].looks == len(self.out.look_step):
            self.out = self.out.with_more_looks()
        self.life.grow()

    @property
    def steps(self) -> int:
        """Taken so far, by all seeds."""
        return int(self.out.steps.sum()) + self.life.steps

    @property
    def progress(self) -> float:
        """How many seeds are done, the one under way in part."""
        return int(self.life.m.progress[0].seed) + self.life.part(self.job.settings)

    def snapshot(self) -> dict[str, Array]:
        """Everything that changes, copied."""
        return self.life.snapshot() | out_of(self.out)

    def restore(self, saved: Mapping[str, Array]) -> None:
        """Go on from a snapshot."""
        self.out = read_out(saved, self.out)
        self.life.restore(saved, self.out)


def out_of(out: Out) -> dict[str, Array]:
    """What came of seeds so far, copied, for a snapshot."""
    return {f"out.{name}": array.copy() for name, array in zip(Out._fields, out, strict=True)}
