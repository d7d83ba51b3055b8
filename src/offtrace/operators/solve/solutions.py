"""Ways to know C for a trace in normal form: the closed form, and the chain. Each gives C·M for M ≥ 0, from both sides."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import numpy as np

from offtrace.operators.setting import EPS, Setting
from offtrace.operators.solve import chain_of_x, closed_form
from offtrace.operators.solve.grid_of_x import first_grid
from offtrace.operators.solve.landing_on_grid import Landing, chords, land, lines


class Solution(Protocol):
    """A way to compute C: products with it, and their bounds."""

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

    def mean_coefficients(self, n: int, gap: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        """lower ≤ E[β_t] ≤ upper for t < n, [S·A, n]; at most `gap` apart if there is time."""
        ...


class ClosedForm:
    """C = (I − γP_{cμ})⁻¹, on pairs [S·A, S·A], or on states [S, S]: there P_{cμ}(s, s') = Σ_a μ c P(s'|s, a)."""

    certain, assumption, method = True, "", "closed form"

    def __init__(self, setting: Setting, *, on_states: bool = False) -> None:
        self.setting = setting
        self.size, onto = (setting.S, setting.onto_states) if on_states else (setting.pairs, setting.onto_pairs)
        self.step = onto(setting.mu * setting.decay * setting.ratio)

    @cached_property
    def _C(self) -> tuple[np.ndarray, np.ndarray]:
        return closed_form.resolvent(self.setting.gamma * self.step, self.setting.horizon)

    def times(self, M: np.ndarray, gap: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        """By the inverse, or for large MDPs by one linear system for each column."""
        s = self.setting
        if len(M) <= closed_form.DENSE:
            C, error = self._C
            v, e = C @ M, error @ M + len(C) * EPS * (C @ M)
            return np.maximum(v - e, 0.0), v + e
        G = s.gamma * self.step
        v, e = (a.reshape(M.shape) for a in closed_form.solve(G, M))
        n = s.horizon
        if n is not None and s.gamma**n > 1e-15:
            v, e = M.copy(), 0.0
            for _ in range(n - 1):
                v = M + G @ v
            e = 8 * n * EPS * v
        return np.maximum(v - e, 0.0), v + e

    def mean_coefficients(self, n: int, gap: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        """P_{cμ}^t e."""
        s, step = self.setting, self.step
        out, v = np.zeros((self.size, n)), np.ones(self.size)
        for t in range(n if s.horizon is None else min(n, s.horizon)):
            out[:, t] = v
            v = step @ v
        error = out * (np.diff(step.indptr).max(initial=1) + 8) * EPS * np.arange(n)
        return out - error, out + error


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
        """lower ≤ C·M ≤ upper, on a grid of x that is refined until the gap is reached."""
        result = chain_of_x.bounds(self.setting, M, gap, deadline, self.grid, self._first[1])
        if len(result.grid) > len(self.grid):
            self._grid = result.grid
        return result.lower, result.upper

    def mean_coefficients(self, n: int, gap: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        """h_t(s, x) = Σ_a μ decay Σ P h_{t-1}(s', f(x)), from h_1 = Σ_a μ decay min(cap, ratio·x), by chords and lines.

        γ has no part in it: the grid is the one that sums the first n or so, and is refined until all are known to `gap`.
        """
        of = Chain(replace(self.setting, gamma=1 - 1 / max(n, 2)))
        finer = gap
        while True:
            nodes = len(of.grid)
            of.times(np.ones((self.setting.pairs, 1)), finer, deadline)
            lower, upper = of._carried_back(n)
            if (upper - lower).max() <= gap or len(of.grid) == nodes or time.monotonic() > deadline:
                return lower, upper
            finer *= 0.25

    def _carried_back(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        s, one = self.setting, int(np.searchsorted(self.grid, 1.0))
        starts = s.S if s.before_actions else s.pairs
        lower, upper = np.zeros((starts, n)), np.zeros((starts, n))
        lower[:, 0] = upper[:, 0] = 1.0
        reach = n if s.horizon is None else min(n, s.horizon)
        # With bounds by lag, each lag reads at its own.
        for bound, last, lags in [(b, t, [t]) for t, b in self._bounds(reach)] or [
            (np.inf, reach - 1, range(1, reach))
        ]:
            to = land(s, self.grid, bound)
            for t, (low, high) in enumerate(self._means(to, last), 1):
                if t in lags:
                    low_t, high_t = low[:, one, 0], high[:, one, 0]
                    lower[:, t], upper[:, t] = (low_t, high_t) if s.before_actions else (s.P @ low_t, s.P @ high_t)
        slack = chain_of_x.rounding(replace(s, gamma=1 - 1 / max(n, 2)))
        return lower * (1 - slack), upper * (1 + slack)

    def _bounds(self, reach: int) -> list[tuple[int, float]]:
        lags = self.setting.lags
        return [(t, lags[min(t, len(lags)) - 1]) for t in range(1, reach)] if lags else []

    def _means(self, to: Landing, n: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """h_1, …, h_n from below and above, [S, N, 1] each."""
        s, N = self.setting, len(self.grid)
        nothing, everything, top = (np.full((s.pairs, 1), x) for x in (0.0, 1.0, np.inf))
        if s.before_actions:  # what is read after an action counts in the state that it leads to, unless that is an end
            everything = s.P @ np.ones((s.S, 1))
        low, high, slope = (np.zeros((s.S, N, 1)) for _ in range(3))
        for t in range(n):
            M = nothing if t else everything
            E = [(s.P @ H.reshape(s.S, -1)).reshape(s.pairs, N, 1) for H in (low, high, slope)]
            chords(E[0], M, to, s.A, low)
            lines(E[1], E[2], top, M, self.grid, to, s.A, high, slope)
            yield low, high
