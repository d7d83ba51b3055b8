"""Ways to know C for a trace in normal form: the closed form, and the chain. Each gives C·M for M ≥ 0, from both sides."""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import numpy as np

from offtrace.operators import chain, closed
from offtrace.operators.landing import chords, land, lines
from offtrace.operators.setting import EPS, Setting
from offtrace.operators.values import first_grid


class Solution(Protocol):
    """C, as far as it is known."""

    setting: Setting
    certain: bool
    """Whether the bounds hold for certain; otherwise they are a confidence interval or rest on `assumption`."""
    assumption: str

    @property
    def method(self) -> str:
        """ "closed form", "exact chain", "bounds" or "Monte Carlo"."""
        ...

    def times(self, M: np.ndarray, gap: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        """lower ≤ C·M ≤ upper for M ≥ 0, [S·A, Y]; row sums of their difference at most `gap` if there is time."""
        ...

    def mean_coefficients(self, n: int) -> np.ndarray:
        """E[β_t] for t < n, [S·A, n]."""
        ...


class ClosedForm:
    """C = (I − γP_{cμ})⁻¹."""

    certain, assumption, method = True, "", "closed form"

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    @cached_property
    def _C(self) -> tuple[np.ndarray, np.ndarray]:
        return closed.resolvent(self.setting)

    def times(self, M: np.ndarray, gap: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        """By the inverse, or for large MDPs by one linear system for each column."""
        s = self.setting
        if s.pairs <= closed.DENSE:
            C, error = self._C
            v, e = C @ M, error @ M + len(C) * EPS * (C @ M)
            return np.maximum(v - e, 0.0), v + e
        G = closed.one_step(s)
        v, e = (a.reshape(M.shape) for a in closed.solve(G, M))
        n = s.horizon
        if n is not None and s.gamma**n > 1e-15:
            v, e = M.copy(), 0.0
            for _ in range(n - 1):
                v = M + G @ v
            e = 8 * n * EPS * v
        return np.maximum(v - e, 0.0), v + e

    def mean_coefficients(self, n: int) -> np.ndarray:
        """P_{cμ}^t e."""
        s = self.setting
        step = s.onto_pairs(s.mu * s.decay * s.ratio)
        out = np.zeros((s.pairs, n))
        v = np.ones(s.pairs)
        for t in range(n if s.horizon is None else min(n, s.horizon)):
            out[:, t] = v
            v = step @ v
        return out


class Chain:
    """Two-sided sums on (state, x); exact where the values of x are finitely many."""

    certain, assumption = True, ""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._grid: np.ndarray | None = None

    @cached_property
    def _first(self) -> tuple[np.ndarray, bool]:
        return first_grid(self.setting)

    @property
    def method(self) -> str:
        """Exact where every value of x that can be reached is a node of the chain."""
        return "exact chain" if self._first[1] else "bounds"

    @property
    def grid(self) -> np.ndarray:
        """The finest grid so far."""
        return self._first[0] if self._grid is None else self._grid

    def times(self, M: np.ndarray, gap: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        """Refined until the gap is reached."""
        found = chain.bounds(self.setting, M, gap, deadline, self.grid, self._first[1])
        if len(found.grid) > len(self.grid):
            self._grid = found.grid
        return found.lower, found.upper

    def mean_coefficients(self, n: int) -> np.ndarray:
        """h_t(s, x) = Σ_a μ decay Σ P h_{t-1}(s', f(x)), from h_1 = Σ_a μ decay min(cap, ratio·x); midway between its bounds."""
        s, grid = self.setting, self.grid
        one = int(np.searchsorted(grid, 1.0))
        out = np.zeros((s.pairs, n))
        out[:, 0] = 1.0
        reach = n if s.horizon is None else min(n, s.horizon)
        if not s.lags:
            self._carried_back(reach, grid, one, [np.inf] * n, out)
            return out
        for t in range(1, reach):  # each lag reads at its own bound
            bound = s.lags[min(t, len(s.lags)) - 1]
            self._carried_back(t + 1, grid, one, [bound] * n, out, only=t)
        return out

    def _carried_back(
        self, n: int, grid: np.ndarray, one: int, bound: list[float], out: np.ndarray, only: int | None = None
    ) -> None:
        s = self.setting
        nothing, everything = np.zeros((s.pairs, 1)), np.ones((s.pairs, 1))
        low, high, slope = (np.zeros((s.S, len(grid), 1)) for _ in range(3))
        inf = np.full((s.pairs, 1), np.inf)
        for t in range(1, n):
            to, M = land(s, grid, bound[t]), everything if t == 1 else nothing
            E = [(s.P @ H.reshape(s.S, -1)).reshape(s.pairs, len(grid), 1) for H in (low, high, slope)]
            chords(E[0], M, to.coef, to.read, to.interval, to.share, s.A, low)
            where = to.coef, to.read, to.read_slope, to.to, to.to_slope, to.interval, to.share
            lines(E[1], E[2], inf, M, grid, *where, s.A, high, slope)
            if only is None or only == t:
                out[:, t] = s.P @ (0.5 * (low + high)[:, one, 0])
