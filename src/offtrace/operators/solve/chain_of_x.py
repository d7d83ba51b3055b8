"""C·M for M ≥ 0 and a trace with caps, between two bounds that meet: value iteration on (state, x), from below and above.

The trace that starts at a pair has read 1 there, then arrives in the next state with x = 1:

    (C M)(z) = M(z) + γ Σ_{s'} P(s'|z) H(s', 1),        H as in `landing`.

Where all values of x that can be reached are nodes of the grid, chords and lines both pass through H itself, and the
result is exact (the *exact chain*, in which equal values merge). Elsewhere the grid is refined where the two bounds differ
most, weighted by how often a trace comes by, until the row sums of upper − lower are below the wanted gap or the time is spent.

With bounds d_t by lag, H is computed for all later lags first, and then swept back through d_m, …, d_1; with a horizon n, n − 1
sweeps from 0 are the sum itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from offtrace.operators.setting import EPS, Setting
from offtrace.operators.solve import closed_form
from offtrace.operators.solve.landing_on_grid import MERGE, Landing, chords, forward, land, lines

MOST_NODES = 6000
"""The most nodes of a grid."""
MOST_NUMBERS = 60_000_000
"""The most numbers in one array."""
SMALL = 256
"""A matrix of so many numbers is kept dense: SciPy would take longer to begin with it than to multiply."""
More = tuple[np.ndarray | int, np.ndarray | int]
"""What is read at each pair besides M: where no cap acts, and where each read-out is at its cap."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """lower ≤ C·M ≤ upper, [S·A, Y], and the grid that gave them. Of H(s, 1), [S, Y], where traces start before actions."""

    lower: np.ndarray
    upper: np.ndarray
    grid: np.ndarray
    exact: bool
    """Whether every value of x that can be reached is a node, so that only rounding separates the two."""

    @property
    def gap(self) -> float:
        """The largest row sum of upper − lower."""
        return float((self.upper - self.lower).sum(axis=1).max())


def bounds(setting: Setting, M: np.ndarray, gap: float, deadline: float, grid: np.ndarray, exact: bool) -> Bounds:
    """Two-sided C·M; the gap is reached unless time or memory ran out, which `Bounds.gap` then shows."""
    M = np.ascontiguousarray(M, dtype=float).reshape(setting.pairs, -1)
    sweeper = Sweeper(setting, M, grid, exact, setting.last_bound, endless(setting))
    while True:
        sweeper.settle(gap, deadline)
        result = sweeper.result()
        if result.gap <= gap or exact or time.monotonic() > deadline:
            return result
        finer = with_nodes(sweeper.grid, sweeper.wanted_nodes(), setting.pairs * M.shape[1])
        if finer is None:
            return result
        sweeper.move(finer)


def with_nodes(grid: np.ndarray, added: np.ndarray, times: int) -> np.ndarray | None:
    """A finer grid for arrays of `times` numbers a node; None where nothing is added, or it would be too large."""
    if not len(added) or len(grid) >= MOST_NODES or times * len(grid) * 1.5 > MOST_NUMBERS:
        return None
    return np.union1d(grid, added)


def endless(setting: Setting) -> bool:
    """Whether there is no horizon, or one so far that what is beyond it is below rounding."""
    n = setting.horizon
    return n is None or (n > 64 and setting.gamma**n < 1e-30)


class Sweeper:
    """A lower function (values at the nodes) and an upper one (lines at the nodes), swept until they settle.

    `cut` bounds what is read at lags beyond those with bounds of their own. `more` = (m, m') adds to what is read, m where no cap
    acts and m' where all do: it enters only the first upper function.
    """

    def __init__(
        self,
        setting: Setting,
        M: np.ndarray,
        grid: np.ndarray,
        exact: bool,
        cut: float,
        endless: bool,
        more: More = (0, 0),
    ) -> None:
        self.setting, self.M, self.grid, self.exact, self.cut, self.endless = setting, M, grid, exact, cut, endless
        small = setting.pairs * setting.S <= SMALL
        self.step = setting.gamma * (setting.P.toarray() if small else setting.P)
        """γP(s'|z), [S·A, S]."""
        shape = (setting.S, len(grid), M.shape[1])
        self.low = np.zeros(shape)
        self.high, self.slope, self.top = self._start(shape, more)
        self._prepare()

    def _start(self, shape: tuple[int, int, int], more: More) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """H ≤ x · (no cap acts at all), H ≤ (every read-out is at its cap), and H ≤ √x · (since min(p, q) ≤ √(p q))."""
        s = self.setting
        self.unclipped = self.at_cap = np.zeros((s.S, shape[2]))
        if not self.endless:
            return np.zeros(shape), np.zeros(shape), np.full((s.pairs, shape[2]), np.inf)
        cap = np.minimum(s.cap, self.cut).reshape(-1, 1)
        unclipped = self._before(s.decay * s.ratio, self.M + more[0])
        at_cap = between = np.full_like(unclipped, np.inf)
        if np.isfinite(cap).all():
            at_cap = self._before(s.decay, cap * self.M + more[1])
            between = self._before(s.decay * np.sqrt(s.ratio), np.sqrt(cap) * (self.M + more[0]))
        self.unclipped, self.at_cap = unclipped, at_cap
        if not np.isfinite(np.minimum(np.minimum(unclipped, at_cap), between)).all():
            raise closed_form.Divergent(
                f"{s.trace.title}: neither its cap nor its ratios keep Σγ^tβ_t finite on this MDP"
            )
        x = self.grid[None, :, None]
        root = np.sqrt(np.maximum(x, self.grid[1]))  # at x = 0 the line of the next node
        with np.errstate(invalid="ignore"):  # 0·∞ where there is no slope
            lines = [
                (x * unclipped[:, None, :], unclipped[:, None, :]),
                (at_cap[:, None, :] + 0 * x, 0 * x),
                (between[:, None, :] * 0.5 * (root + x / root), between[:, None, :] * 0.5 / root),
            ]
        high, slope = np.full(shape, np.inf), np.zeros(shape)
        for value, rise in lines:
            better = (value <= high) & np.isfinite(value) & np.isfinite(rise)
            high, slope = np.where(better, value, high), np.where(better, rise, slope)
        top: np.ndarray = s.gamma * np.asarray(s.P @ np.where(np.isfinite(at_cap), at_cap, 0.0))
        return high, slope, top if np.isfinite(at_cap).all() else np.full_like(top, np.inf)

    def _before(self, coefficient: np.ndarray, read: np.ndarray) -> np.ndarray:
        """h(s) = Σ_a μ c [read + γ Σ P h'] for a coefficient c that x does not enter: an upper bound, or ∞."""
        s = self.setting
        if not np.isfinite(read).all():
            return np.full((s.S, read.shape[1]), np.inf)
        try:
            v, error = closed_form.solve(s.gamma * s.onto_pairs(s.mu * coefficient), read)
        except closed_form.Divergent:
            return np.full((s.S, read.shape[1]), np.inf)
        v = (v + error).reshape(s.S, s.A, -1) * (1 + 1e-9)
        return ((s.mu * coefficient)[:, :, None] * v).sum(axis=1)

    def _prepare(self) -> None:
        self.landing = land(self.setting, self.grid, self.cut)
        self.one = int(np.searchsorted(self.grid, 1.0))

    def expect(self, H: np.ndarray) -> np.ndarray:
        """E(z, i) = γ Σ_{s'} P(s'|z) H(s', x_i)."""
        return (self.step @ H.reshape(len(H), -1)).reshape(self.setting.pairs, *H.shape[1:])

    def sweep(self, to: Landing, top: np.ndarray) -> None:
        """One step back in time."""
        A = self.setting.A
        E = self.expect(self.low)
        chords(E, self.M, to, A, self.low)
        E, slope = self.expect(self.high), self.expect(self.slope)
        lines(E, slope, top, self.M, self.grid, to, A, self.high, self.slope)

    def settle(self, gap: float, deadline: float) -> None:
        """Sweep until the wanted gap is reached, or until what is left of it is due to the grid and not to the sweeps."""
        n = self.setting.horizon
        if not self.endless:
            assert n is not None
            self.low[:], self.high[:], self.slope[:] = 0.0, 0.0, 0.0
            for lag in range(n - 1, len(self.setting.lags), -1):
                self.sweep(self.landing, self.top)
                if lag % 16 == 0 and time.monotonic() > deadline:
                    raise TimeoutError(f"the horizon of {n} steps was not reached within the budget")
            return
        settled(lambda: self.sweep(self.landing, self.top), self.sizes, gap, self.exact, deadline)

    def sizes(self) -> tuple[float, float]:
        """What separates the two functions at x = 1, and how large the upper one is: row sums."""
        high = self.high[:, self.one]
        return float((high - self.low[:, self.one]).sum(axis=-1).max()), float(high.sum(axis=-1).max())

    def result(self) -> Bounds:
        """Sweep back through the bounds by lag, if there are any, and read off at x = 1."""
        s, n = self.setting, self.setting.horizon
        kept = self.low.copy(), self.high.copy(), self.slope.copy()
        reach = len(s.lags) if self.endless or n is None else min(len(s.lags), n - 1)
        nowhere = np.full_like(self.top, np.inf)
        for lag in range(reach, 0, -1):
            if self.endless and lag == len(s.lags):
                continue  # the last bound is the one that has settled
            self.sweep(land(s, self.grid, s.lags[lag - 1]), nowhere)
        if s.before_actions:
            lower, upper = self.low[:, self.one], self.high[:, self.one]
        else:
            lower = self.M + self.expect(self.low[:, [self.one]])[:, 0]
            upper = self.M + self.expect(self.high[:, [self.one]])[:, 0]
        self.low, self.high, self.slope = kept
        slack = rounding(s)
        lower, upper = np.minimum(lower, upper), np.maximum(lower, upper)
        return Bounds(lower * (1 - slack), upper * (1 + slack), self.grid, self.exact)

    def wanted_nodes(self) -> np.ndarray:
        """In each interval that matters, the landing that adds most to the gap."""
        s, to = self.setting, self.landing
        mass = self._mass()
        E_low, E_high, slope = self.expect(self.low), self.expect(self.high), self.expect(self.slope)
        value, harm = [], []
        for z in np.flatnonzero(to.coef):
            i = np.flatnonzero((to.share[z] > 0) & (mass[z // s.A] > 0))
            j, w, v = to.interval[z, i], to.share[z, i, None], to.to[z, i]
            left = E_high[z, j] + slope[z, j] * (v - self.grid[j])[:, None]
            right = E_high[z, j + 1] + slope[z, j + 1] * (v - self.grid[j + 1])[:, None]
            nodes = (1 - w) * (E_high[z, j] - E_low[z, j]) + w * (E_high[z, j + 1] - E_low[z, j + 1])
            chord = (1 - w) * E_low[z, j] + w * E_low[z, j + 1]
            extra = np.minimum(left, right) - chord - nodes
            value.append(v)
            harm.append(np.maximum(extra, 0).sum(axis=1) * to.coef[z] * mass[z // s.A, i])
        return _chosen(np.concatenate(value or [np.empty(0)]), np.concatenate(harm or [np.empty(0)]), self.grid)

    def _mass(self) -> np.ndarray:
        """Discounted visits to the nodes from all starts: m = m₀ + Fᵀm, far enough."""
        s, to = self.setting, self.landing
        start = np.zeros((s.S, len(self.grid)))
        start[:, self.one] = s.gamma * np.asarray(s.P.sum(axis=0)).ravel() + s.before_actions
        mass, new, after = start.copy(), start, np.empty((s.pairs, len(self.grid)))
        back, total = self.step.T, start.sum()
        for _ in range(min(200, s.horizon or 200)):
            forward(new, to, s.A, after)
            new = back @ after
            mass += new
            added = new.sum()
            total += added
            if added < 1e-6 * total:
                break
        return mass

    def move(self, grid: np.ndarray) -> None:
        """Both functions on a finer grid: chords and lines are still bounds there."""
        j = np.minimum(np.searchsorted(self.grid, grid, side="right") - 1, len(self.grid) - 1)
        k = np.minimum(j + 1, len(self.grid) - 1)
        width = np.where(k > j, self.grid[k] - self.grid[j], 1.0)
        w = ((grid - self.grid[j]) / width)[None, :, None]
        self.low = (1 - w) * self.low[:, j] + w * self.low[:, k]
        left = self.high[:, j] + self.slope[:, j] * (grid - self.grid[j])[None, :, None]
        right = self.high[:, k] + self.slope[:, k] * (grid - self.grid[k])[None, :, None]
        self.slope = np.where(left <= right, self.slope[:, j], self.slope[:, k])
        self.high = np.minimum(left, right)
        self.grid = grid
        self._prepare()


def settled(
    sweep: Callable[[], None], sizes: Callable[[], tuple[float, float]], gap: float, exact: bool, deadline: float
) -> None:
    """Sweep until the gap is well below the wanted one, or until what is left of it is due to the grid and not to the sweeps."""
    before, step_before = np.inf, np.inf
    for sweeps in range(1_000_000):
        sweep()
        if sweeps % 4:
            continue
        now, size = sizes()
        step = before - now
        rate = min(step / step_before, 0.9999) if np.isfinite(step_before) and step_before > 0 else 0.9999
        left = step * rate / (1 - rate)  # what further sweeps would still gain, were they to go on at this rate
        floor = 4e-14 * size
        if not now > max(floor, 0.0 if exact else 0.4 * gap) or time.monotonic() > deadline:
            return
        if np.isfinite(step) and (step <= floor if exact else left <= 0.1 * max(now, gap)):
            return
        before, step_before = now, step


def rounding(setting: Setting) -> float:
    """The relative error of sums of nonnegative terms on merged values: it grows with the expected length of a trace."""
    s = setting
    longest = min(closed_form.length(s, s.mu), s.horizon or np.inf)
    return longest * (2 * MERGE + (np.diff(s.P.indptr).max(initial=1) + s.A + 16) * EPS)


def _chosen(value: np.ndarray, harm: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Of all landings, those that together do nearly all the harm, at most one in each half of an interval."""
    order = np.argsort(value)
    value, harm = value[order], harm[order]
    if not harm.sum() > 0:
        return np.empty(0)
    new = np.concatenate([[True], np.diff(value) > MERGE * value[1:]])
    first = np.flatnonzero(new)
    value, harm = value[first], np.add.reduceat(harm, first)
    most = max(64, len(grid) // 2)
    best = np.argsort(-harm)
    enough = int(np.searchsorted(np.cumsum(harm[best]), 0.98 * harm.sum())) + 1
    return value[best[: min(most, enough)]]
