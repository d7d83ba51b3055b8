"""Learners in Gymnasium environments: the compiled loop of `lanes` calls the environment back for each step.

Observations become numbers (Discrete, MultiDiscrete, MultiBinary, and Tuple or Dict of these) or tiles (Box). A vector
environment feeds one learner with all its copies. Every learner has an environment of its own, seeded from the learner's
seed when it begins, and a second one for evaluation episodes, so that looking at a learner does not change it.

Gymnasium is imported only here, when it is asked for: `pip install offtrace[gymnasium]`.
"""

from __future__ import annotations

import copy
import ctypes
import math
import pickle
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import types

from offtrace.learners.core import eligibility, gymnasium_loop, loop
from offtrace.learners.core.blocks import empty, refuse
from offtrace.learners.core.eligibility import Kept
from offtrace.learners.core.gymnasium_loop import Box
from offtrace.learners.core.history_callback import Past
from offtrace.learners.core.loop import Features, Memory, Out, Settings
from offtrace.learners.core.plan import STEP, compiled, plan
from offtrace.learners.environments import Environment, table_or_rows
from offtrace.learners.methods.gq import GQ
from offtrace.learners.policies import Coded
from offtrace.learners.tile_coding import NONE, TileCoding, Tiles
from offtrace.traces import Trace

SLICE = 5_000
"""Steps between two looks at the clock: an environment may be slow."""
MOST = 1_000_000
"""States of a table at most."""
NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"
LIVING, LOOKING = 0, 1


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError:
        raise ImportError(
            "env is not an MDP, and other environments need Gymnasium: pip install 'offtrace[gymnasium]'"
        ) from None
    return gymnasium


def environment(env: Any, gamma: float | None, features: Any) -> Environment:
    """Check a Gymnasium environment: an id, an environment, a vector environment, or a function that makes one."""
    gym = _gymnasium()
    known = isinstance(env, str | gym.Env | gym.vector.VectorEnv)
    if not known and not callable(env):
        raise TypeError(
            "env must be an MDP, the id of a Gymnasium environment, an environment, a vector environment or a function "
            f"that makes one, got {type(env).__name__}"
        )
    if gamma is None:
        raise ValueError(
            "gamma is missing: a Gymnasium environment has no discount of its own; give one, as gamma=0.99"
        )
    if isinstance(gamma, bool) or not isinstance(gamma, int | float | np.number) or not 0 < gamma <= 1:
        raise ValueError(f"gamma must lie in (0, 1], got {gamma!r}")
    source = Source.of(env)
    action, space = source.action, source.space
    if not isinstance(action, gym.spaces.Discrete):
        raise TypeError(
            f"the actions of {source.name} are {action}: learners need Discrete actions. Continuous ones would have to be put "
            "into classes first, as gymnasium.wrappers.TransformAction can"
        )
    A = int(action.n)
    if isinstance(space, gym.spaces.Box):
        if not isinstance(features, TileCoding):
            raise TypeError(
                f"the observations of {source.name} are {space}: give features=TileCoding(…), or use an environment with "
                "Discrete ones"
            )
        tiles = features.over(space.low, space.high)
        seen = Observations(space, tiles)
        rows = Features(A, False, np.zeros((0, tiles.tilings), np.int64), np.zeros((0, tiles.tilings)))
        return Environment(None, source, float(gamma), rows, seen, tiles.size * A, source.lanes)
    seen = Observations(space, NONE)
    if seen.sizes is None:
        raise ValueError(
            f"the observations of {source.name} are {space}: learners take Discrete, MultiDiscrete, MultiBinary, Tuple or Dict "
            "of these, and Box with features=TileCoding(…)"
        )
    S = math.prod(seen.sizes)
    if S > MOST:
        raise ValueError(f"the observations of {source.name}, {space}, have {S:.3g} values: too many for a table")
    rows, size = table_or_rows(features, S, A)
    return Environment(None, source, float(gamma), rows, seen, size, source.lanes)


@dataclass(frozen=True, eq=False)
class Source:
    """Where environments come from, and what is known of them all."""

    given: Any = field(repr=False)
    name: str
    """What tells it from other environments; it does not change from process to process."""
    space: Any
    """Of one observation."""
    action: Any
    lanes: int
    mode: str | None
    """How the copies of a vector environment begin anew; None if it is no vector environment."""

    @classmethod
    def of(cls, given: Any) -> Source:
        """Look at what was given; where it is a way to make environments, one is made for that."""
        gym = _gymnasium()
        made = (
            _made(given) if isinstance(given, str) or not isinstance(given, gym.Env | gym.vector.VectorEnv) else given
        )
        try:
            if isinstance(made, gym.vector.VectorEnv):
                mode = made.metadata.get("autoreset_mode", NEXT_STEP)
                mode = getattr(mode, "value", mode)
                if mode not in (NEXT_STEP, SAME_STEP, DISABLED):
                    raise ValueError(f"{made} has the autoreset mode {mode!r}, which is not known")
                spaces = made.single_observation_space, made.single_action_space
                return cls(given, _name(made), *spaces, made.num_envs, mode)
            return cls(given, _name(made), made.observation_space, made.action_space, 1, None)
        finally:
            if made is not given:
                made.close()

    def make(self) -> Any:
        """Another one."""
        return _made(self.given)

    def make_single(self) -> Any:
        """One for evaluation episodes: a single one, if it is a vector environment."""
        if self.mode is None:
            return self.make()
        many = self.make()
        try:
            functions, spec = getattr(many.unwrapped, "env_fns", None), many.spec
            if functions:
                return functions[0]()
            if spec is None:
                raise ValueError(f"{many} does not tell how to make one of its copies, so that it cannot be evaluated")
            own = {k: v for k, v in spec.kwargs.items() if k not in ("num_envs", "vectorization_mode", "vector_kwargs")}
            return _gymnasium().make(spec.id, **own)
        finally:
            many.close()


def _name(env: Any) -> str:
    spec = env.spec
    return str(env) if spec is None else f"{env} {spec.id} {spec.kwargs}"


def _made(given: Any) -> Any:
    gym = _gymnasium()
    if isinstance(given, str):
        return gym.make(given)
    if isinstance(given, gym.Env | gym.vector.VectorEnv):
        try:
            return copy.deepcopy(given)
        except Exception as error:
            if given.spec is not None and not isinstance(given, gym.vector.VectorEnv):
                return gym.make(given.spec)
            raise TypeError(f"{given} cannot be copied ({error}): give a function that makes it") from error
    made = given()
    if not isinstance(made, gym.Env | gym.vector.VectorEnv):
        raise TypeError(f"{given!r} was to make a Gymnasium environment, but made a {type(made).__name__}")
    return made


def _sizes(space: Any) -> list[tuple[int, int]] | None:
    """(size, start) of each integer in an observation, in order; None if it holds anything else."""
    spaces = _gymnasium().spaces
    if isinstance(space, spaces.Discrete):
        return [(int(space.n), int(space.start))]
    if isinstance(space, spaces.MultiDiscrete):
        return [(int(n), int(s)) for n, s in zip(space.nvec.ravel(), space.start.ravel(), strict=True)]
    if isinstance(space, spaces.MultiBinary):
        return [(2, 0)] * int(np.prod(space.shape))
    if not isinstance(space, spaces.Tuple | spaces.Dict):
        return None
    parts = [_sizes(part) for part in (space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces)]
    return None if None in parts else [pair for part in parts for pair in part or ()]


def _integers(observation: Any) -> list[int]:
    if isinstance(observation, tuple | dict):
        parts = observation.values() if isinstance(observation, dict) else observation
        return [i for part in parts for i in _integers(part)]
    return [int(i) for i in np.ravel(observation)]


class Observations:
    """How observations become numbers of states, or tiles."""

    def __init__(self, space: Any, tiles: Tiles) -> None:
        self.space, self.tiles = space, tiles
        pairs = None if len(tiles.low) else _sizes(space)
        self.sizes = None if pairs is None else tuple(n for n, _ in pairs)
        self.starts: tuple[int, ...] = () if pairs is None else tuple(s for _, s in pairs)

    def __repr__(self) -> str:
        return f"{self.space} {self.tiles}"

    def number(self, observation: Any) -> int:
        """The number of the state."""
        assert self.sizes is not None
        if len(self.sizes) == 1:
            state, n = int(observation) - self.starts[0], self.sizes[0]
            if 0 <= state < n:
                return state
            raise ValueError(f"an observation here is in {self.space}, got {observation!r}")
        state, parts = 0, _integers(observation)
        for i, n, s in zip(parts, self.sizes, self.starts, strict=True):
            if not 0 <= i - s < n:
                raise ValueError(f"an observation here is in {self.space}, got {observation!r}")
            state = state * n + i - s
        return state

    def row(self, features: Features, observation: Any) -> tuple[np.ndarray, Any]:
        """The active weights of an observation, and the features there."""
        if self.sizes is None:
            return self.tiles.rows(observation), self.tiles.value
        state = self.number(observation)
        return features.tile[state], features.value[state]


class _Call(types.WrapperAddressProtocol):
    """A Python function of one integer, as a compiled loop takes it."""

    def __init__(self, function: Any) -> None:
        self.kept = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(function)

    def __wrapper_address__(self) -> int:
        return ctypes.cast(self.kept, ctypes.c_void_p).value or 0

    def signature(self) -> Any:
        return types.int64(types.int64)


class _Outside:
    """The environments of one learner, and what they do when the loop asks them."""

    def __init__(self, where: Environment, box: Box, seed: int) -> None:
        self.source, self.seen, self.box, self.seed = where.gym, where.coder, box, seed
        self.tiled, self.first_action, self.last = self.seen.sizes is None, int(where.gym.action.start), where.gym.lanes
        self.env: Any = None
        self.looker: Any = None
        self.error: BaseException | None = None
        vector = self.source.mode is not None
        box.resets[0] = self.source.mode in (None, DISABLED)
        box.start[:] = -1
        self.kinds = {
            gymnasium_loop.NEW: self._new,
            gymnasium_loop.BEGIN: self._begin_lanes if vector else self._begin,
            gymnasium_loop.STEP: self._step_lanes if vector else self._step,
            gymnasium_loop.LOOK_BEGIN: self._look_begin,
            gymnasium_loop.LOOK_STEP: self._look_step,
        }
        self.call = _Call(self._turn)

    def _turn(self, kind: int) -> int:
        try:
            self.kinds[kind]()
        except BaseException as error:  # raised again when the loop has come back
            self.error = error
            return -1
        return 0

    def _seeds(self, stream: int, n: int) -> list[int]:
        """Seeds of environments: another learner's, even of the next seed, have nothing in common with them."""
        return [int(s) for s in np.random.SeedSequence([self.seed, stream]).generate_state(n)]

    def _new(self) -> None:
        self.env = self.source.make()
        seeds = self._seeds(LIVING, self.last)
        if self.source.mode is None:
            observation, _ = self.env.reset(seed=seeds[0])
            self._begins(0, observation)
            return
        several = hasattr(self.env.unwrapped, "env_fns")  # other vector environments take one seed
        observations, _ = self.env.reset(seed=seeds if several else seeds[0])
        for j, observation in enumerate(self._each(observations)):
            self._begins(j, observation)

    def close(self) -> None:
        for env in (self.env, self.looker):
            if env is not None:
                env.close()
        self.env = self.looker = None

    def _begins(self, j: int, observation: Any) -> None:
        if self.tiled:
            self.box.x_start[j], self.box.start[j] = np.ravel(observation), 0
        else:
            self.box.start[j] = self.seen.number(observation)

    def _leads_to(self, j: int, observation: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        box, reward = self.box, float(reward)
        if not math.isfinite(reward):
            raise ValueError(f"{self.source.name} gave a reward that is not finite: {reward}")
        box.reward[j] = reward
        box.ended[j] = (
            gymnasium_loop.TERMINATED
            if terminated
            else gymnasium_loop.TRUNCATED
            if truncated
            else gymnasium_loop.GOES_ON
        )
        if self.tiled:
            box.x[j] = observation if observation.ndim == 1 else np.ravel(observation)
        else:
            box.state[j] = self.seen.number(observation)

    def _begin(self) -> None:
        observation, _ = self.env.reset()
        self._begins(0, observation)

    def _step(self) -> None:
        observation, reward, terminated, truncated, _ = self.env.step(int(self.box.action[0]) + self.first_action)
        self._leads_to(0, observation, reward, terminated, truncated)

    def _look_begin(self) -> None:
        seed = None
        if self.looker is None:
            self.looker, seed = self.source.make_single(), self._seeds(LOOKING, 1)[0]
        observation, _ = self.looker.reset(seed=seed)
        self._begins(self.last, observation)

    def _look_step(self) -> None:
        action = int(self.box.action[self.last]) + self.first_action
        observation, reward, terminated, truncated, _ = self.looker.step(action)
        self._leads_to(self.last, observation, reward, terminated, truncated)

    def _each(self, observations: Any) -> list[Any]:
        from gymnasium.vector.utils import iterate

        return list(iterate(self.env.observation_space, observations))

    def _begin_lanes(self) -> None:
        waiting = self.box.action[: self.last] < 0
        observations, _ = self.env.reset(options={"reset_mask": waiting})
        each = self._each(observations)
        for j in np.flatnonzero(waiting).tolist():
            self._begins(j, each[j])

    def _step_lanes(self) -> None:
        action = self.box.action[: self.last]
        given = (np.maximum(action, 0) + self.first_action).astype(self.env.action_space.dtype)
        observations, reward, terminated, truncated, info = self.env.step(given)
        each = self._each(observations)
        for j in range(self.last):
            if action[j] < 0:  # this copy did not step but began anew
                self._begins(j, each[j])
                continue
            observation = each[j]
            if self.source.mode == SAME_STEP and (terminated[j] or truncated[j]):
                self._begins(j, observation)
                final = info.get("final_obs", info.get("final_observation"))
                if final is None:
                    raise ValueError(f"{self.source.name} does not tell the last observation of an episode (final_obs)")
                observation = final[j]
            self._leads_to(j, observation, reward[j], terminated[j], truncated[j])


class HostBlock:
    """One seed in a Gymnasium environment. Nothing is made before it begins, and nothing but the result is kept after it."""

    def __init__(
        self,
        where: Environment,
        trace: Trace | GQ,
        policies: tuple[Coded, ...],
        settings: Settings,
        capacity: int,
        seeds: np.ndarray,
    ) -> None:
        assert len(seeds) == 1
        self.where, self.trace, self.policies, self.settings = where, trace, policies, settings
        self.lanes, self.tiles = where.gym.lanes, where.coder.tiles
        self.capacity = max(1, capacity // self.lanes) if settings.update == loop.REPLAY else 1
        self.done = False
        self.outside: _Outside | None = None
        self.out = empty(seeds, where.size, settings, self.lanes)
        self._check()

    def _check(self) -> None:
        source, title = self.where.gym, self.trace.title
        if self.trace.form == "history" and self.lanes > 1:
            raise ValueError(
                f"{title} is a Python function, which takes no vector environments: write it as a StepTrace"
            )
        if self.where.shape is None and "pair" in getattr(self.trace, "reads", ()):
            raise ValueError(f"{title} asks for pairs of state and action, which have no numbers with tile coding")
        if self.settings.limit and source.mode in (NEXT_STEP, SAME_STEP):
            raise ValueError(
                f"limit cannot end episodes in {source.name}, which begins anew by itself: give the environment a limit "
                "(max_episode_steps), or AutoresetMode.DISABLED"
            )

    def check_that_it_can_be_saved(self) -> None:
        """Before hours have gone into it."""
        made = self.where.gym.make()
        try:
            _pickled(made)
        finally:
            made.close()

    def _wake(self) -> None:
        """Make everything that lasts while the learner lives."""
        where, s, n = self.where, self.settings, self.lanes
        self.past = Past(self.trace, STEP) if self.trace.form == "history" else None
        self.plan, *rule = plan(self.trace, where.shape, self.past)
        k, carry, features = where.features.tile.shape[1], len(self.plan.first), where.features
        rows = (
            2 * self.capacity + 4
        )  # a step brings two observations at most: where it led, and where an episode begins
        if len(self.tiles.low):
            shape = (n + 1) * rows, k
            features = Features(features.A, False, np.zeros(shape, np.int64), np.full(shape, self.tiles.value))
        d = len(self.tiles.low)
        self.box = Box(
            action=np.zeros(n + 1, np.int64),
            reward=np.zeros(n + 1),
            ended=np.zeros(n + 1, np.int64),
            state=np.zeros(n + 1, np.int64),
            start=np.full(n + 1, -1, np.int64),
            x=np.zeros((n + 1, d)),
            x_start=np.zeros((n + 1, d)),
            rows=np.append(np.zeros(n + 1, np.int64), rows),
            resets=np.zeros(1, np.int64),
        )
        one = loop.memory(where.size, features.A, k, s.by_visits, s.update, self.capacity, self.plan.second > 0)
        each = {name: np.stack([getattr(one, name)] * n) for name in OF_EACH_LANE}
        self.m = one._replace(**each)
        slots, deep = (s.length * k, s.length + 3) if s.update == loop.REPLAY else (64, 64)
        kept = eligibility.kept(self.plan.way, where.size, k, carry, slots, deep)
        self.kept = Kept(*(np.stack([a] * n) for a in kept))
        self.outside = _Outside(where, self.box, int(self.out.seeds[0]))
        self.features = features
        self._fixed = (self.outside.call, self.box, self.tiles, features, self.plan, *rule, *self.policies, s)

    def advance(self, budget: int) -> bool:
        """Go on for so many steps, or fewer; whether it is done."""
        if self.done:
            return True
        if self.outside is None:
            self._wake()
        assert self.outside is not None
        budget = min(budget, SLICE)
        while True:
            arguments = (*self._fixed, self.m, self.kept, self.out)
            before = self.steps
            status = compiled(gymnasium_loop.live, *arguments, budget)(*arguments, budget)
            if status == gymnasium_loop.FAILED:
                self._fail(self.outside)
            if status == loop.BAD:
                refuse(self.trace, self.past)
            if status == loop.DONE:
                self.outside.close()
                self.done, self.outside = True, None
                del self.m, self.kept, self.box, self.features, self._fixed
                return True
            if status == loop.PAUSED:
                return False
            budget = max(1, budget - (self.steps - before))
            self.grow()

    def _fail(self, outside: _Outside) -> None:
        error = outside.error
        if error is None:
            raise ValueError(f"{outside.source.name} gave an observation that is not a number: {self.box.x}")
        if isinstance(error, Exception):
            raise error
        raise RuntimeError(f"{outside.source.name} was interrupted in the middle of a step") from error

    def grow(self) -> None:
        """Twice the room for what has run out of it."""
        if self.m.i[0, loop.LOOKS] + self.lanes > len(self.out.look_step):
            more = {n: np.tile(getattr(self.out, n), 2) for n in ("look_step", "look_return")}
            self.out = self.out._replace(**more)
        for j in range(self.lanes):
            own = Kept(*(a[j] for a in self.kept))
            if any(eligibility.lacking(self.plan.way, own)):
                larger = Kept(*(np.stack([a] * self.lanes) for a in eligibility.grown(self.plan.way, own)))
                for old, new in zip(self.kept, larger, strict=True):
                    new[tuple(slice(0, n) for n in old.shape)] = old
                self.kept = larger

    @property
    def steps(self) -> int:
        """Taken so far, in all copies of the environment."""
        alive = self.outside is not None and self.m.i[0, loop.BEGUN]
        return int(self.out.steps.sum()) + (int(self.m.i[0, loop.T]) if alive else 0)

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        if self.done or self.outside is None:
            return float(self.done)
        s, i = self.settings, self.m.i[0]
        return float(i[loop.E] / s.episodes if s.episodes else i[loop.T] / s.steps)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Everything that changes, copied; the environments as pickles."""
        saved = {f"out.{name}": a.copy() for name, a in self.out._asdict().items()}
        if self.outside is None:
            return {**saved, "done": np.array(self.done)}
        parts = {"m": self.m, "kept": self.kept, "box": self.box}
        saved |= {f"{part}.{name}": a.copy() for part, of in parts.items() for name, a in of._asdict().items()}
        if self.past is not None:
            saved["past"] = self.past.steps.copy()
        if len(self.tiles.low):
            saved["rows"] = self.features.tile.copy()
        return {**saved, "environments": _pickled((self.outside.env, self.outside.looker))}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        """Go on from a snapshot."""
        self.out = Out(**{name: saved[f"out.{name}"] for name in Out._fields})
        if "done" in saved:
            self.done = bool(saved["done"])
            return
        self._wake()
        assert self.outside is not None
        for part, kind in (("m", Memory), ("kept", Kept)):
            setattr(self, part, kind(**{name: saved[f"{part}.{name}"] for name in kind._fields}))
        for name, a in self.box._asdict().items():
            a[...] = saved[f"box.{name}"]
        if self.past is not None:
            self.past.steps = saved["past"]
        if len(self.tiles.low):
            self.features.tile[...] = saved["rows"]
        self.outside.env, self.outside.looker = pickle.loads(saved["environments"].tobytes())


OF_EACH_LANE = ("i", "f", "U", "dirty", "is_dirty", "now", "buffer", "moves")
"""What lanes do not share."""


def _pickled(what: Any) -> np.ndarray:
    import cloudpickle  # comes with Gymnasium; functions that make environments are often local

    try:
        return np.frombuffer(cloudpickle.dumps(what), np.uint8)
    except Exception as error:
        raise TypeError(
            f"a checkpoint must hold the environment, which cannot be pickled ({error}): leave checkpoint out"
        ) from error
