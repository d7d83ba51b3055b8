"""Where environments come from: an id, an environment, a vector environment, or a function that makes one.

Their observations become numbers of states, or tiles. An environment is checked before anything runs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike

from offtrace._shared.extras import install
from offtrace.learners.arrays import Floats, Integers
from offtrace.learners.environments import Environment, table_or_rows
from offtrace.learners.features import NONE, Features, TileCoding, Tiles

try:
    import gymnasium
    from gymnasium import Space, spaces
    from gymnasium.vector import VectorEnv
except ImportError:
    raise ImportError(f"env is not an MDP, and other environments need Gymnasium: {install('gymnasium')}") from None

Single: TypeAlias = gymnasium.Env[Any, Any]
Vector: TypeAlias = VectorEnv[Any, Any, Any]
Given: TypeAlias = str | Single | Vector | Callable[[], Single | Vector]

NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"
"""How the copies of a vector environment begin anew, as `AutoresetMode` says it."""
OF_VECTORS = ("num_envs", "vectorization_mode", "vector_kwargs")
"""What `gymnasium.make_vec` takes and `gymnasium.make` does not."""


@dataclass(frozen=True, eq=False)
class Source:
    """Where environments come from, and what is known of them all."""

    given: Given = field(repr=False)
    name: str
    """What tells it from other environments; it does not change from process to process."""
    space: Space[object]
    """The space of one observation."""
    action: Space[object]
    lanes: int
    mode: str | None
    """How the copies of a vector environment begin anew; None if it is no vector environment."""

    @classmethod
    def of(cls, given: Given) -> Source:
        """Look at what was given; where it is a way to make environments, one is made for that."""
        made = given if isinstance(given, gymnasium.Env | VectorEnv) else _made(given)
        try:
            if isinstance(made, VectorEnv):
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

    def make(self) -> Single | Vector:
        """Make another environment like the one that was given."""
        return _made(self.given)

    def make_single(self) -> Single:
        """One for evaluation episodes: a single one, if it is a vector environment."""
        many = self.make()
        if not isinstance(many, VectorEnv):
            return many
        try:
            functions: list[Callable[[], Single]] | None = getattr(many.unwrapped, "env_fns", None)
            if functions:
                return functions[0]()
            if many.spec is None:
                raise ValueError(f"{many} does not tell how to make one of its copies, so that it cannot be evaluated")
            own = {k: v for k, v in many.spec.kwargs.items() if k not in OF_VECTORS}
            return gymnasium.make(many.spec.id, **own)
        finally:
            many.close()


def _name(env: Single | Vector) -> str:
    spec = env.spec
    return str(env) if spec is None else f"{env} {spec.id} {spec.kwargs}"


def _made(given: Given) -> Single | Vector:
    if isinstance(given, str):
        return gymnasium.make(given)
    if isinstance(given, gymnasium.Env | VectorEnv):
        try:
            return copy.deepcopy(given)
        except Exception as error:
            if given.spec is not None and not isinstance(given, VectorEnv):
                return gymnasium.make(given.spec)
            raise TypeError(f"{given} cannot be copied ({error}): give a function that makes it") from error
    made = given()
    if not isinstance(cast(object, made), gymnasium.Env | VectorEnv):
        raise TypeError(f"{given!r} was to make a Gymnasium environment, but made a {type(made).__name__}")
    return made


MOST = 1_000_000
"""A table has so many states at most."""


def _sizes(space: Space[object]) -> list[tuple[int, int]] | None:
    """(size, start) of each integer in an observation, in order; None if it holds anything else."""
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


def _integers(observation: object) -> list[int]:
    """The integers of an observation, in the order of `_sizes`."""
    if isinstance(observation, tuple | dict):
        parts = observation.values() if isinstance(observation, dict) else observation
        return [i for part in parts for i in _integers(part)]
    return [int(i) for i in np.ravel(np.asarray(observation))]


class Observations:
    """How observations become numbers of states, or tiles."""

    def __init__(self, space: Space[object], tiles: Tiles) -> None:
        self.space, self.tiles = space, tiles
        pairs = None if len(tiles.low) else _sizes(space)
        self.sizes = None if pairs is None else tuple(n for n, _ in pairs)
        self.starts: tuple[int, ...] = () if pairs is None else tuple(s for _, s in pairs)

    def __repr__(self) -> str:
        return f"{self.space} {self.tiles}"

    def number(self, observation: object) -> int:
        """The number of the state."""
        assert self.sizes is not None
        if len(self.sizes) == 1:  # in a hurry: every step asks
            state, n = int(observation) - self.starts[0], self.sizes[0]  # pyright: ignore[reportArgumentType]
            if 0 <= state < n:
                return state
            raise ValueError(f"an observation here is in {self.space}, got {observation!r}")
        state = 0
        for i, n, s in zip(_integers(observation), self.sizes, self.starts, strict=True):
            if not 0 <= i - s < n:
                raise ValueError(f"an observation here is in {self.space}, got {observation!r}")
            state = state * n + i - s
        return state

    def row(self, features: Features, observation: ArrayLike) -> tuple[Integers, Floats | float]:
        """The active weights of an observation, and the features there."""
        if self.sizes is None:
            return self.tiles.rows(observation), self.tiles.value
        state = self.number(observation)
        return features.tile[state], features.value[state]


def environment(
    env: Given, gamma: float | None, features: ArrayLike | TileCoding | None, states: bool = False
) -> Environment:
    """Check a Gymnasium environment: an id, an environment, a vector environment, or a function that makes one."""
    if not isinstance(env, str | gymnasium.Env | VectorEnv) and not callable(env):
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
    if not isinstance(action, spaces.Discrete):
        raise TypeError(
            f"the actions of {source.name} are {action}: learners need Discrete actions. Continuous ones would have to be put "
            "into classes first, as gymnasium.wrappers.TransformAction can"
        )
    A = int(action.n)
    if isinstance(space, spaces.Box):
        if not isinstance(features, TileCoding):
            raise TypeError(
                f"the observations of {source.name} are {space}: give features=TileCoding(…), or use an environment with "
                "Discrete ones"
            )
        tiles = features.over(space.low, space.high)
        seen = Observations(space, tiles)
        rows = Features(A, np.zeros((0, tiles.tilings), np.int64), np.zeros((0, tiles.tilings)), states)
        return Environment(None, source, float(gamma), rows, seen, tiles.size * rows.per_tile, source.lanes)
    seen = Observations(space, NONE)
    if seen.sizes is None:
        raise ValueError(
            f"the observations of {source.name} are {space}: learners take Discrete, MultiDiscrete, MultiBinary, Tuple or Dict "
            "of these, and Box with features=TileCoding(…)"
        )
    S = math.prod(seen.sizes)
    if S > MOST:
        raise ValueError(f"the observations of {source.name}, {space}, have {S:.3g} values: too many for a table")
    rows, size = table_or_rows(features, S, A, states)
    return Environment(None, source, float(gamma), rows, seen, size, source.lanes)
