"""The variance of Δ for a trace with caps, between two bounds, on the chain of (state, x).

Write F_a = Σ_t γ^tβ_tδ_t^a for a = + and −, the two parts of δ = δ⁺ − δ⁻, of a trace that arrives in s with x, and

    m_a(s, x) = E F_a,       S_ab(s, x) = E[F_a F_b],       Var Δ = S_++ + S_−− − 2S_+− − (m_+ − m_−)²

    S_ab(s, x) = Σ_a μ decay² [ b² E[δ^aδ^b] + bγ E[δ^a m_b(s', f(x)) + δ^b m_a(s', f(x))] + γ² Σ P S_ab(s', f(x)) ],
    b = min(cap, ratio·x).

As a function of its start every β_t is min(p, q·x) for some p, q ≥ 0, so β_tβ_u is increasing and concave in x², and so is S_ab:
what `landing` says of H and x holds of S_ab and x², with decay, ratio and cap squared: chords are below it, lines above.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from offtrace.operators.setting import Setting
from offtrace.operators.solve.chain_of_x import Sweeper, endless, rounding, settled, with_nodes
from offtrace.operators.solve.landing_on_grid import Landing, land

if TYPE_CHECKING:
    from offtrace.operators.variance import TemporalDifferences

PARTS = ((0, 0), (1, 1), (0, 1))
"""ab = ++, −−, +−."""


def variance_bounds(
    setting: Setting, parts: TemporalDifferences, grid: np.ndarray, exact: bool, tolerance: float, deadline: float
) -> tuple[np.ndarray, np.ndarray]:
    """lower ≤ Var Δ ≤ upper, [S·A]; `parts` holds E[δ^a], E[δ^aδ^b] and P·δ^a. Refined to `tolerance`, relative to E[Δ²]."""
    squares = _Squares(setting, parts, grid, exact)
    while True:
        squares.settle(tolerance, deadline)
        lower, upper, size = squares.result()
        if exact or (upper - lower).max() <= tolerance * max(1.0, size) or time.monotonic() > deadline:
            return lower, upper
        if not squares.refine():
            return lower, upper


class _Squares:
    """m and S, swept back together."""

    def __init__(self, setting: Setting, parts: TemporalDifferences, grid: np.ndarray, exact: bool) -> None:
        s = self.setting = setting
        self.squared = s.squared
        self.mean, self.square, self.Pδ, self.exact = parts.mean, parts.square, parts.Pδ, exact
        cut, self.endless = s.last_bound, endless(s)
        self.first = Sweeper(s, self.mean, grid, exact, cut, self.endless)
        cap = np.minimum(s.cap, cut).reshape(-1, 1)
        with np.errstate(invalid="ignore"):
            at_cap = np.where(cap > 0, cap * self._with_δ(self.first.at_cap), 0.0)
        more = self._with_δ(self.first.unclipped), at_cap
        self.second = Sweeper(self.squared, self.square, grid**2, exact, cut**2, self.endless, more)

    def _with_δ(self, m: np.ndarray) -> np.ndarray:
        """γE[δ^a m_b(s') + δ^b m_a(s')] for m [S, …, 2]: [S·A, …, 3]."""
        flat = m.reshape(len(m), -1, 2)
        both = [[self.setting.gamma * (Pδ @ flat[:, :, b]) for b in range(2)] for Pδ in self.Pδ]
        out = np.stack([both[a][b] + both[b][a] for a, b in PARTS], axis=-1)
        return out.reshape(-1, *m.shape[1:-1], len(PARTS))

    def _sweep(self, bound: float) -> None:
        """One lag back, at which `bound` caps what is read: S by the m of the lag after it, then m."""
        one, two = self.first, self.second
        to, to2 = land(self.setting, one.grid, bound), land(self.squared, two.grid, bound**2)
        cross = self._cross(to, np.minimum(self.setting.cap.ravel(), bound))
        self._sweep_second(to2, np.full_like(two.top, np.inf), cross)
        one.sweep(to, np.full_like(one.top, np.inf))

    def _sweep_second(self, to: Landing, top: np.ndarray, cross: list[np.ndarray]) -> None:
        self.second.sweep(to, top)
        self.second.low += cross[0]
        self.second.high += cross[1]
        self.second.slope += cross[2]

    def _cross(self, to: Landing, cap: np.ndarray) -> list[np.ndarray]:
        """b·γE[δm(s', f(x))] from below, and a line in x² above it, summed over actions: [S, N, 3] each."""
        s, one, x = self.setting, self.first, self.first.grid
        z, j = np.arange(s.pairs)[:, None], to.interval
        k, share, b = np.minimum(j + 1, len(x) - 1), to.share[:, :, None], to.read[:, :, None]
        E = self._with_δ(one.low)
        low = b * ((1 - share) * E[z, j] + share * E[z, k])
        E, G = self._with_δ(one.high), self._with_δ(one.slope)
        left, right = (E[z, i] + G[z, i] * (to.to - x[i])[:, :, None] for i in (j, k))
        take = (right < left) & (share > 0)
        value, g = np.where(take, right, left), np.where(take, G[z, k], G[z, j])
        high = b * value
        rise = to.read_slope[:, :, None] * value + b * g * to.to_slope[:, :, None]
        slope = rise / np.where(x > 0, 2 * x, 1.0)[None, :, None]
        # At x = 0 the line of m may be above 0: b·(that) has no tangent in x² there, and is at most cap·(that).
        at_0, r = value[:, 0], s.ratio.reshape(-1, 1)
        with np.errstate(invalid="ignore"):
            high[:, 0] = np.where(at_0 > 0, cap[:, None] * at_0, 0.0)
        slope[:, 0] = g[:, 0] * r**2
        weight = np.where(s.ratio > 0, s.mu * s.decay**2, 0.0)[:, :, None, None]
        with np.errstate(invalid="ignore"):
            shaped = [np.where(weight > 0, weight * f.reshape(s.S, s.A, *f.shape[1:]), 0.0) for f in (low, high, slope)]
        return [f.sum(axis=1) for f in shaped]

    def settle(self, tolerance: float, deadline: float) -> None:
        """As `Sweeper.settle`: first m, then S."""
        s, one, two = self.setting, self.first, self.second
        if self.endless:
            gap = tolerance * max(1.0, float(two.low[:, two.one].max()))
            one.settle(0.1 * gap / (1 + float(one.low[:, one.one].max())), deadline)
            cross = self._cross(one.landing, np.minimum(s.cap.ravel(), one.cut))
            settled(lambda: self._sweep_second(two.landing, two.top, cross), two.sizes, gap, self.exact, deadline)
            return
        assert s.horizon is not None
        for sweeper in (one, two):
            sweeper.low[:], sweeper.high[:], sweeper.slope[:] = 0.0, 0.0, 0.0
        for _ in range(s.horizon - 1 - len(s.lags)):
            self._sweep(one.cut)

    def result(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Back through the bounds by lag, if there are any; Var Δ from both sides at x = 1, where β = 1; the largest E[Δ²]."""
        s, one, two = self.setting, self.first, self.second
        kept = [(sweeper, sweeper.low.copy(), sweeper.high.copy(), sweeper.slope.copy()) for sweeper in (one, two)]
        reach = len(s.lags) - 1 if self.endless else min(len(s.lags), (s.horizon or 1) - 1)
        for lag in range(reach, 0, -1):
            self._sweep(s.lags[lag - 1])
        m, S = [], []
        slack = 4 * rounding(s)
        for first, second, sign in ((one.low, two.low, -1), (one.high, two.high, 1)):
            first, second = first[:, one.one], second[:, two.one]
            m.append((self.mean + s.gamma * (s.P @ first)) * (1 + sign * slack))
            S.append((self.square + self._with_δ(first) + s.gamma**2 * (s.P @ second)) * (1 + sign * slack))
        for sweeper, low, high, slope in kept:
            sweeper.low, sweeper.high, sweeper.slope = low, high, slope
        ends = m[0][:, 0] - m[1][:, 1], m[1][:, 0] - m[0][:, 1]
        largest = np.maximum(np.abs(ends[0]), np.abs(ends[1])) ** 2
        smallest = np.where((ends[0] < 0) & (ends[1] > 0), 0.0, np.minimum(np.abs(ends[0]), np.abs(ends[1]))) ** 2
        lower = S[0][:, 0] + S[0][:, 1] - 2 * S[1][:, 2] - largest
        upper = S[1][:, 0] + S[1][:, 1] - 2 * S[0][:, 2] - smallest
        lower = np.maximum(lower, 0.0)
        return lower, np.maximum(upper, lower), float(S[1][:, :2].sum(axis=1).max())

    def refine(self) -> bool:
        """Nodes that either m or S wants."""
        wanted = np.union1d(self.first.wanted_nodes(), np.sqrt(self.second.wanted_nodes()))
        grid = with_nodes(self.first.grid, wanted, self.setting.pairs * len(PARTS))
        if grid is None:
            return False
        self.first.move(grid)
        self.second.move(grid**2)
        return True
