"""Tile coding (Sutton and Barto 2018, section 9.5.4): several grids over a box, each shifted against the others.

An observation lies in one tile of each tiling, and q(o, a) is the sum of those tiles' weights for a. Tiling t is displaced by
t·(1, 3, 5, …) / tilings of a tile, modulo a tile, as they recommend.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from offtrace._shared.compile_cache import cached_njit
from offtrace.learners.arrays import Floats, Integers
from offtrace.learners.random import mixed

MOST = 2**26
"""Tiles without hashing, at most."""
ENDLESS = 1e30
"""Bounds beyond this are none."""


class Features(NamedTuple):
    """q(s, a) = Σ_j value[s, j] θ[tile[s, j] · A + a]; on state values v(s) = Σ_j value[s, j] θ[tile[s, j]]."""

    A: int
    tile: Integers
    value: Floats
    states: bool = False
    """Whether θ are weights of state values."""

    @property
    def per_tile(self) -> int:
        """How many weights a tile has: one for each action, or one in all."""
        return 1 if self.states else self.A

    @property
    def is_table(self) -> bool:
        """Whether there is one weight for each state, or for each pair."""
        states = np.arange(len(self.tile))[:, None]
        return np.array_equal(self.tile, states) and bool((self.value == 1.0).all())


@cached_njit(nogil=True)
def cover(x: Floats, tile: Integers, low: Floats, high: Floats, per: Floats, cells: Integers, size: int) -> None:
    """The tile of x in each tiling. They are hashed into `size` tiles, if that is not 0."""
    tilings = len(tile)
    for t in range(tilings):
        index, h = t, np.uint64(t)
        for i in range(len(x)):
            u = (min(max(x[i], low[i]), high[i]) - low[i]) * per[i]
            cell = min(int(u + (t * (2 * i + 1) % tilings) / tilings), cells[i] - 1)
            index = index * cells[i] + cell
            if size:
                h = mixed(h * np.uint64(31) + np.uint64(cell + 1))
        tile[t] = np.int64(h % np.uint64(size)) if size else index


class Tiles(NamedTuple):
    """Tile coding with all its numbers. Without dimensions there is no tile coding: observations are numbers of states."""

    low: Floats
    high: Floats
    per: Floats
    """Tiles in a unit of each dimension."""
    cells: Integers
    """Tiles in each dimension: one more than `bins`, since tilings are displaced."""
    tilings: int
    size: int
    """How many tiles there are in all."""
    hashed: bool
    value: float
    """The number of an active feature."""

    def rows(self, observation: ArrayLike) -> Integers:
        """The active tiles of an observation."""
        x = np.array(observation, dtype=np.float64).ravel()
        if x.shape != self.low.shape or np.isnan(x).any():
            raise ValueError(f"an observation here is {len(self.low)} numbers, got {observation!r}")
        tile = np.zeros(self.tilings, np.int64)
        self.into(x, tile)
        return tile

    def into(self, x: Floats, tile: Integers) -> None:
        """Write the active tiles of x into `tile`."""
        cover(x, tile, self.low, self.high, self.per, self.cells, self.size if self.hashed else 0)


NONE = Tiles(np.empty(0), np.empty(0), np.empty(0), np.empty(0, np.int64), 1, 1, False, 1.0)


@dataclass(frozen=True)
class TileCoding:
    """Features for observations in a box: `tilings` grids of `bins` tiles in each dimension (or a number for each).

    Bounds are those of the observation space; `low` and `high` stand in for them, and must where a dimension has none (an entry
    None keeps that of the space). What lies outside is moved to the edge. `size` hashes the tiles into so many, for boxes
    of many dimensions; two tiles may then share a weight.

    Step sizes: each active feature is 1/√tilings, so that the features of an observation have length one, and `alpha` means
    what it means for a table: the share of the error that an update removes. `normalized=False` makes active features 1, as in
    the literature, where one gives α/tilings; both learn the same.

    >>> coding = TileCoding(tilings=4, bins=2, low=(0.0, 0.0), high=(1.0, 1.0))
    >>> coding.over((-np.inf, -np.inf), (np.inf, np.inf)).rows(np.array([0.4, 0.6]))
    array([ 1, 13, 22, 31])
    """

    tilings: int = 8
    bins: int | tuple[int, ...] = 8
    low: tuple[float | None, ...] | None = None
    high: tuple[float | None, ...] | None = None
    size: int | None = None
    normalized: bool = True

    def __post_init__(self) -> None:
        for name in ("bins", "low", "high"):
            given = getattr(self, name)
            if isinstance(given, list | np.ndarray):
                given = np.asarray(given, dtype=object).ravel().tolist()
                object.__setattr__(self, name, tuple(given))
        bins = self.bins if isinstance(self.bins, tuple) else (self.bins,)
        sizes = () if self.size is None else (self.size,)
        counts: list[tuple[str, object]] = [
            ("tilings", self.tilings),
            *(("bins", b) for b in bins),
            *(("size", n) for n in sizes),
        ]
        for name, n in counts:
            if isinstance(n, bool) or not isinstance(n, Integral) or int(n) < 1:
                raise ValueError(f"{name} of TileCoding must be an integer of at least 1, got {n!r}")

    def _bounds(self, name: str, own: tuple[float | None, ...] | None, space: ArrayLike) -> Floats:
        """The bounds of the space, with those that were given in their place."""
        bounds = np.array(space, dtype=np.float64).ravel()
        if own is None:
            return bounds
        if not isinstance(own, tuple) or len(own) != len(bounds):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"{name} of TileCoding must have one entry for each of {len(bounds)} dimensions, got {own}"
            )
        return np.array([s if o is None else o for o, s in zip(own, bounds, strict=True)])

    def over(self, low: ArrayLike, high: ArrayLike) -> Tiles:
        """The tiles of a box with these bounds."""
        low, high = self._bounds("low", self.low, low), self._bounds("high", self.high, high)
        endless = np.flatnonzero(~((np.abs(low) < ENDLESS) & (np.abs(high) < ENDLESS)))
        if len(endless):
            raise ValueError(
                f"dimension {', '.join(map(str, endless))} of the observations has no bounds: give TileCoding(low=(…), "
                f"high=(…)), one entry for each of {len(low)} dimensions, None where the space's own are meant"
            )
        if not (low < high).all():
            raise ValueError(f"low must be below high in every dimension, got {low} and {high}")
        bins = np.array(self.bins if isinstance(self.bins, tuple) else (self.bins,) * len(low), dtype=np.int64)
        if len(bins) != len(low):
            raise ValueError(f"bins of TileCoding has {len(bins)} entries, the observations have {len(low)} dimensions")
        tiles = self.tilings * np.prod(bins + 1.0)
        if self.size is None and tiles > MOST:
            raise ValueError(
                f"{tiles:.3g} tiles are too many: use fewer bins, or hash them with TileCoding(size={2**20}, …)"
            )
        value = float(self.tilings**-0.5) if self.normalized else 1.0
        size, hashed = int(self.size or tiles), self.size is not None
        return Tiles(low, high, bins / (high - low), bins + 1, int(self.tilings), size, hashed, value)
