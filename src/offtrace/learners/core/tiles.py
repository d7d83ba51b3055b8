"""Tile coding in numbers: which tiles an observation lies in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from offtrace.learners.core.compiling import called, inlined
from offtrace.learners.core.random_numbers import mixed
from offtrace.learners.core.record_arrays import Floats, Integers


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
        cover(self, x, tile)
        return tile


NONE = Tiles(np.empty(0), np.empty(0), np.empty(0), np.empty(0, np.int64), 1, 1, False, 1.0)


@inlined
def into_tiles(tiles, x, tile):
    """The tile of x in each tiling."""
    for t in range(tiles.tilings):
        index, h = t, np.uint64(t)
        for i in range(len(x)):
            u = (min(max(x[i], tiles.low[i]), tiles.high[i]) - tiles.low[i]) * tiles.per[i]
            cell = int(u + (t * (2 * i + 1) % tiles.tilings) / tiles.tilings)
            cell = min(cell, tiles.cells[i] - 1)
            index = index * tiles.cells[i] + cell
            if tiles.hashed:
                h = mixed(h * np.uint64(31) + np.uint64(cell + 1))
        tile[t] = np.int64(h % np.uint64(tiles.size)) if tiles.hashed else index


@called
def cover(tiles, x, tile):
    """The same, for callers in Python."""
    into_tiles(tiles, x, tile)
