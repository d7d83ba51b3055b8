"""One learner in a Gymnasium environment."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from offtrace.learners.core import gymnasium_loop
from offtrace.learners.core.blocks import Array, Job, Life, out_of
from offtrace.learners.core.gymnasium_loop import Box
from offtrace.learners.core.loop import BAD, DONE, PAUSED
from offtrace.learners.core.loop_memory import Out, room_for
from offtrace.learners.core.loop_settings import REPLAY
from offtrace.learners.core.method_plan import compiled
from offtrace.learners.core.pointed import Pointed
from offtrace.learners.core.restored import read_out, require, require_within
from offtrace.learners.gymnasium.outside import Outside
from offtrace.learners.gymnasium.source import NEXT_STEP, SAME_STEP

SLICE = 5_000
"""Steps between two looks at the clock: an environment may be slow."""


class Awake:
    """What lasts while the learner of a `HostBlock` lives: its environments, what it keeps, and the box between the two."""

    def __init__(self, job: Job, seed: int, lanes: int) -> None:
        self.job, where, settings, tiles = job, job.where, job.settings, job.where.tiles
        capacity = max(1, job.capacity // lanes) if settings.update == REPLAY else 1
        rows = 2 * capacity + 4  # a step brings two observations at most: where it led, and where an episode begins
        self.features, k, d = where.features, where.features.tile.shape[1], len(tiles.low)
        if d:
            shape = (lanes + 1) * rows, k
            self.features = where.features._replace(tile=np.zeros(shape, np.int64), value=np.full(shape, tiles.value))
        self.box = Box(
            action=np.zeros(lanes + 1, np.int64),
            reward=np.zeros(lanes + 1),
            ended=np.zeros(lanes + 1, np.int64),
            state=np.zeros(lanes + 1, np.int64),
            start=np.full(lanes + 1, -1, np.int64),
            x=np.zeros((lanes + 1, d)),
            x_start=np.zeros((lanes + 1, d)),
            p=np.zeros((lanes + 1, 2, where.features.A if d else 0)),
            p_start=np.zeros((lanes + 1, 2, where.features.A if d else 0)),
            rows=np.append(np.zeros(lanes + 1, np.int64), rows),
            resets=np.zeros(1, np.int64),
        )
        self.life = Life(job, self.features, lanes, capacity)
        self.outside = Outside(where, self.box, seed, job.functions)
        life = self.life
        tables = [np.zeros((len(self.features.tile), where.features.A)) if f else None for f in job.functions]
        self.policies = tuple(
            policy if table is None else policy._replace(table=table)
            for policy, table in zip(job.policies, (*tables, None), strict=True)
        )
        self.fixed = (
            self.outside.call,
            Pointed(self.box),
            Pointed(tiles),
            *life.fixed(self.features, self.policies, in_python=True),
        )

    def snapshot(self) -> dict[str, Array]:
        """Everything that changes, copied; the environments as pickles."""
        saved = self.life.snapshot()
        saved |= {f"box.{name}": array.copy() for name, array in zip(Box._fields, self.box, strict=True)}
        saved |= {"rows": self.features.tile.copy()}
        saved |= {f"policy.{i}": policy.table.copy() for i, policy in enumerate(self.policies[:2])}
        return {**saved, "environments": _pickled((self.outside.env, self.outside.looker))}

    def restore(self, saved: Mapping[str, Array], out: Out) -> None:
        """Go on from a snapshot, whose numbers are checked."""
        self.life.restore(saved, out)
        room, rows = self.life.room, self.features.tile
        states, actions = (-1, room.states), (-1, room.actions)
        limits = {"state": states, "start": states, "action": actions, "rows": (0, 2**62)}
        for name, array in zip(Box._fields, self.box, strict=True):
            found = saved[f"box.{name}"]
            require(found.shape == array.shape and found.dtype == array.dtype, f"box.{name}")
            if name in limits:
                require_within(found, *limits[name], f"box.{name}")
            require(name != "rows" or bool(found[-1] == array[-1]), f"box.{name}")
            array[...] = found
        require(saved["rows"].shape == rows.shape and saved["rows"].dtype == rows.dtype, "rows of features")
        require_within(saved["rows"], 0, room.weights // self.features.per_tile, "rows of features")
        rows[...] = saved["rows"]
        for i, policy in enumerate(self.policies[:2]):
            found = saved[f"policy.{i}"]
            require(found.shape == policy.table.shape and found.dtype == policy.table.dtype, "policies")
            if self.job.functions[i] is not None:
                policy.table[...] = found
        self.outside.env, self.outside.looker = pickle.loads(saved["environments"].tobytes())


class HostBlock:
    """One seed in a Gymnasium environment. Nothing is made before it begins, and nothing but the result is kept after it."""

    def __init__(self, job: Job, seeds: NDArray[np.uint64]) -> None:
        assert len(seeds) == 1
        self.job, self.lanes = job, job.where.source.lanes
        self.done = False
        self.awake: Awake | None = None
        self.out = room_for(seeds, job.where.size, job.settings, self.lanes)
        self._check()

    def _check(self) -> None:
        source, trace = self.job.where.source, self.job.method.trace
        if trace.form == "history" and self.lanes > 1:
            raise ValueError(
                f"{trace.title} is a Python function, which takes no vector environments: write it as a StepTrace"
            )
        if self.job.where.shape is None and "pair" in trace.reads:
            raise ValueError(
                f"{trace.title} asks for pairs of state and action, which have no numbers with tile coding"
            )
        if self.job.settings.limit and source.mode in (NEXT_STEP, SAME_STEP):
            raise ValueError(
                f"limit cannot end episodes in {source.name}, which begins anew by itself: give the environment a limit "
                "(max_episode_steps), or AutoresetMode.DISABLED"
            )

    def check_that_it_can_be_saved(self) -> None:
        """Find out before hours have gone into it."""
        made = self.job.where.source.make()
        try:
            _pickled(made)
        finally:
            made.close()

    def _wake(self) -> Awake:
        return Awake(self.job, int(self.out.seeds[0]), self.lanes)

    def advance(self, budget: int) -> bool:
        """Go on for so many steps, or fewer; whether it is done."""
        if self.done:
            return True
        awake = self.awake = self.awake or self._wake()
        budget = min(budget, SLICE)
        while True:
            arguments = (*awake.fixed, *awake.life.pointed(), Pointed(self.out))
            before = self.steps
            status = compiled(gymnasium_loop.live_of, *arguments, budget)(*arguments, budget)
            if status == gymnasium_loop.FAILED:
                self._fail(awake)
            if status == BAD:
                awake.life.refuse()
            if status == DONE:
                awake.outside.close()
                self.done, self.awake = True, None
                return True
            if status == PAUSED:
                return False
            budget = max(1, budget - (self.steps - before))
            if awake.life.m.progress[0].looks + self.lanes > len(self.out.look_step):
                self.out = self.out.with_more_looks()
            awake.life.grow()

    def _fail(self, awake: Awake) -> None:
        error, name = awake.outside.error, self.job.where.source.name
        if error is None:
            raise ValueError(f"{name} gave an observation that is not a number: {awake.box.x}")
        if isinstance(error, Exception):
            raise error
        raise RuntimeError(f"{name} was interrupted in the middle of a step") from error

    @property
    def steps(self) -> int:
        """Taken so far, in all copies of the environment."""
        return int(self.out.steps.sum()) + (self.awake.life.steps if self.awake else 0)

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        return self.awake.life.part(self.job.settings) if self.awake else float(self.done)

    def snapshot(self) -> dict[str, Array]:
        """Everything that changes, copied."""
        saved = out_of(self.out)
        return saved | (self.awake.snapshot() if self.awake else {"done": np.array(self.done)})

    def restore(self, saved: Mapping[str, Array]) -> None:
        """Go on from a snapshot."""
        self.out = read_out(saved, self.out)
        if "done" in saved:
            self.done = bool(saved["done"])
            return
        self.awake = self._wake()
        self.awake.restore(saved, self.out)


def _pickled(what: object) -> NDArray[np.uint8]:
    import cloudpickle  # comes with Gymnasium; functions that make environments are often local

    try:
        return np.frombuffer(cloudpickle.dumps(what), np.uint8)
    except Exception as error:
        raise TypeError(
            f"a checkpoint must hold the environment, which cannot be pickled ({error}): leave checkpoint out"
        ) from error
