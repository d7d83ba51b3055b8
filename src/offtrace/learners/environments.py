"""Where learners live: a finite MDP, or anything that Gymnasium makes. What they have in common is checked here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offtrace.learners.arrays import Floats, Integers
from offtrace.learners.features import NONE, Features, TileCoding, Tiles
from offtrace.learners.state import ENTRY, World
from offtrace.mdps import MDP
from offtrace.mdps.exact_values import over_pairs, visited
from offtrace.mdps.policy_tables import uniform
from offtrace.mdps.sampling import check_that_episodes_end, cumulative  # pyright: ignore[reportUnknownVariableType]
from offtrace.trajectory import first_index

if TYPE_CHECKING:  # Gymnasium is an extra
    from offtrace.learners.gymnasium import Given, Observations, Source


@dataclass(frozen=True, eq=False)
class Environment:
    """An environment, its discount, and how its states are seen."""

    mdp: MDP | None
    """The MDP, if it is one."""
    gym: Source | None
    """Where Gymnasium environments come from, if it is one; else None."""
    gamma: float
    features: Features
    """Without rows where states have no numbers (Box observations)."""
    coder: Observations | None
    """What turns observations of Gymnasium into states or tiles; None for an MDP."""
    size: int
    """How many weights there are."""
    lanes: int = 1
    """How many copies of a Gymnasium environment feed one learner."""

    @property
    def source(self) -> Source:
        """Where environments come from; to be asked only where Gymnasium has them."""
        assert self.gym is not None
        return self.gym

    @property
    def shape(self) -> tuple[int, int] | None:
        """[S, A]; None where states have no numbers."""
        return (len(self.features.tile), self.features.A) if len(self.features.tile) else None

    @property
    def table(self) -> tuple[int, ...] | None:
        """The shape of a table of values, [S, A] or [S]; None where states have no numbers."""
        return self.shape if self.shape is None or not self.features.states else self.shape[:1]

    @property
    def judged(self) -> Integers:
        """States over which an error is taken: those that are not terminal."""
        if self.mdp is not None:
            return np.flatnonzero(~self.mdp.terminal)
        return np.arange(len(self.features.tile))

    @property
    def world(self) -> World:
        """The MDP as compiled loops read it; nothing where there is none."""
        mdp = self.mdp
        if mdp is None:
            return World(None, None, None)
        indptr, n = mdp.P.indptr.astype(np.int64), mdp.P.nnz
        entries = np.zeros(n + mdp.S, ENTRY)
        entries["cumulated"][:n] = cumulative(np.array(mdp.P.data), indptr)
        entries["cumulated"][n:] = cumulative(np.array(mdp.start), np.array([0, mdp.S]))
        entries["to"] = np.concatenate([mdp.P.indices, np.arange(mdp.S)])
        entries["ends"] = np.asarray(mdp.terminal)[entries["to"]]
        each = mdp.transition_rewards
        entries["reward"][:n] = np.repeat(np.array(mdp.R).ravel(), np.diff(indptr)) if each is None else each
        return World(entries, np.append(indptr, n + mdp.S), None)

    @property
    def tiles(self) -> Tiles:
        """The tile coding of its observations; that without dimensions where there is none."""
        return NONE if self.coder is None else self.coder.tiles

    def first(self, q0: ArrayLike) -> Floats:
        """[size]: the weights to begin with."""
        values = np.array(q0, dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError("q0 must be finite")
        S = len(self.features.tile)
        tabular = S > 0 and self.size == S * self.features.per_tile and self.features.is_table
        if values.ndim == 0 and (tabular or S == 0 or values == 0):  # all tiles have the same value
            active = 1.0 if S else self.features.tile.shape[1] * self.tiles.value
            return np.full(self.size, float(values) / active)
        if not tabular or values.shape != self.table:
            array = f"a number or an array {'[S]' if self.features.states else '[S, A]'} = {self.table}"
            wanted = array if tabular else "0 with features" if S else "a number"
            raise ValueError(f"q0 must be {wanted}, got {'a number' if values.ndim == 0 else f'shape {values.shape}'}")
        return values.ravel()

    def require_ends(self, table: Floats) -> None:
        """`episodes` without a `limit`: from wherever μ comes, it must find an end. Its table is empty if it may do anything."""
        if self.mdp is not None:
            check_that_episodes_end(self.mdp, table if table.size else uniform(self.mdp))

    def visited(self, table: Floats) -> NDArray[np.bool_]:
        """[S]: where a policy with this table may come; everywhere, if the environment does not tell."""
        if self.mdp is None:
            return np.ones(len(table), bool)
        chain = over_pairs(table, ~self.mdp.terminal) @ self.mdp.P
        return visited(chain, self.mdp.start > 0) & ~self.mdp.terminal


def environment(
    env: MDP | Given, gamma: float | None, features: ArrayLike | TileCoding | None, *, states: bool = False
) -> Environment:
    """Check what was given as an environment, and make of it what the loop takes. `states`: for values of states."""
    if isinstance(env, MDP):
        if gamma is not None and gamma != env.gamma:
            raise ValueError(f"gamma is {gamma!r}, but the MDP has its own, {env.gamma}: leave it out")
        seen, size = table_or_rows(features, env.S, env.A, states)
        return Environment(env, None, env.gamma, seen, None, size)
    from offtrace.learners import gymnasium  # Gymnasium is an extra

    return gymnasium.environment(env, gamma, features, states)


def feature_rows(features: ArrayLike, S: int) -> Floats:
    """The features of states as an array [S, d]; an error where the shape is another or a number is not finite."""
    x = np.array(features, dtype=np.float64)
    if x.ndim != 2 or len(x) != S:
        raise ValueError(
            f"features must be a finite array [S, d] with S = {S}, a row for each state, got shape {x.shape}"
        )
    if (bad := ~np.isfinite(x)).any():
        s, i = first_index(bad)
        raise ValueError(f"features must be finite, got {x[s, i]} for state {s}, feature {i}")
    return x


def table_or_rows(
    features: ArrayLike | TileCoding | None, S: int, A: int, states: bool = False
) -> tuple[Features, int]:
    """A table, or the rows of a matrix [S, d]; and how many weights there are."""
    each = 1 if states else A
    if features is None:
        return Features(A, np.arange(S)[:, None].copy(), np.ones((S, 1)), states), S * each
    if isinstance(features, TileCoding):
        raise TypeError("TileCoding is for Box observations; features of states that have numbers are an array [S, d]")
    x = feature_rows(features, S)
    k = max(1, int((x != 0).sum(axis=1).max()))
    tile = np.argsort(x == 0, axis=1, kind="stable")[:, :k].astype(np.int64)
    value = np.ascontiguousarray(np.take_along_axis(x, tile, axis=1))
    return Features(A, np.ascontiguousarray(tile), value, states), x.shape[1] * each
