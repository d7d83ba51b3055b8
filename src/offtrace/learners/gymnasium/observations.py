"""How observations become numbers of states, or tiles; and the check of an environment before anything runs."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv
from numpy.typing import ArrayLike

from offtrace.learners.core.loop_settings import Features
from offtrace.learners.core.record_arrays import Floats, Integers
from offtrace.learners.core.tiles import NONE, Tiles
from offtrace.learners.environments import Environment, table_or_rows
from offtrace.learners.gymnasium.source import Given, Source
from offtrace.learners.tile_coding import TileCoding

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
        rows = Features(A, False, np.zeros((0, tiles.tilings), np.int64), np.zeros((0, tiles.tilings)), states)
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
