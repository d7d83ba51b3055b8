"""The first grid of x: the values that traces take, most visited first, on a backbone that is even in log x."""

from __future__ import annotations

import numpy as np

from offtrace.operators.setting import Setting
from offtrace.operators.solve.landing_on_grid import MERGE

FIRST = 256
"""How many reached values the first grid takes where they do not close."""
CLOSED = 3000
"""How many reached values an exact chain may have."""
PER_DECADE = 6


def first_grid(setting: Setting) -> tuple[np.ndarray, bool]:
    """Nodes, always with 0 and 1, and whether they hold every value that a trace can take."""
    value, weight, all_of_them = reached(setting)
    if all_of_them:
        return _with_one(merged(np.concatenate([[0.0, 1.0], value]))), True
    value = value[np.argsort(-weight)[:FIRST]]
    low, high = 1e-8, highest(setting)
    decades = int(np.ceil(np.log10(high / low)))
    backbone = np.geomspace(low, high, decades * PER_DECADE + 1)
    grid = merged(np.concatenate([[0.0, 1.0, high], value[value <= high], backbone]))
    return _with_one(grid), False


def _with_one(grid: np.ndarray) -> np.ndarray:
    """1 itself, where merging has put a neighbour in its place."""
    grid[np.argmin(np.abs(grid - 1.0))] = 1.0
    return grid


def highest(setting: Setting) -> float:
    """The largest x of the grid: a recursive trace never goes above its cap; for others, the chance to be above x is ≤ 1/x."""
    if setting.trace.recursive:
        cap = setting.cap[setting.mu > 0]
        if np.isfinite(cap).all():
            return float(max(1.0, cap.max(initial=0.0)))
    return 1e7 * max(1.0, min(1e3, float(np.max(setting.lags, initial=0.0))))


def merged(values: np.ndarray) -> np.ndarray:
    """Sorted, and one of each group that differs by less than `MERGE`."""
    values = np.sort(values)
    return values[np.concatenate([[True], np.diff(values) > MERGE * values[1:]])]


def reached(setting: Setting, steps: int = 400) -> tuple[np.ndarray, np.ndarray, bool]:
    """Values of x over all states, with their discounted visits, and whether these are all that matter.

    Masses are carried forward from x = 1; where values do not merge, those that matter least are dropped.
    """
    s, n = setting, setting.horizon
    if len(np.unique(s.ratio[s.mu > 0])) > 64 or s.S > 400:
        return np.empty(0), np.empty(0), False
    P, γ = s.P.toarray(), s.gamma
    value, mass = np.array([1.0]), γ * P.sum(axis=0)[:, None] + s.before_actions  # mass is [S, values]
    total, weights, dropped, too_many = np.array([1.0]), np.array([[1.0]]), False, False
    # A trace of horizon n reads at lags 1 … n − 1; the value at n − 1 has no successor.
    for _ in range(steps if n is None else min(steps, n - 1)):
        value, mass = _next(s, P, value, mass)
        if not len(value):
            return total, weights[0], not dropped and not too_many
        share = mass.sum(axis=0) * np.minimum(value, 1.0)
        if n is None and not too_many and _held(value, total).all() and _stays(s, total):
            return total, weights[0], True
        total, weights = _gather(np.concatenate([total, value]), np.concatenate([weights[0], share])[None])
        too_many |= len(total) > CLOSED
        if too_many:  # from here on only the most visited ones matter
            most = weights[0] >= _nth_largest(weights[0], 4 * FIRST)
            total, weights = total[most], weights[:, most]
        keep = share > (1e-6 * weights.sum() if too_many else 1e-12 * weights.sum() if n is None else -1.0)
        if n is None or too_many:
            keep &= share >= _nth_largest(share, 2 * FIRST)
        dropped |= not keep.all()
        value, mass = value[keep], mass[:, keep]
        if not len(value):
            break
    if too_many:
        return total, weights[0], False
    return total, weights[0], _stays(s, total) if n is None else n - 1 <= steps and not dropped


def _nth_largest(numbers: np.ndarray, n: int) -> float:
    """The n-th largest of the numbers; −∞ where there are no more than n."""
    return float(np.partition(numbers, -n)[-n]) if len(numbers) > n else -np.inf


def _next(s: Setting, P: np.ndarray, value: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and masses one step on."""
    values, masses = [np.empty(0)], [np.empty((s.S, 0))]
    for a in range(s.A):
        for r, c in set(zip(s.ratio[:, a].tolist(), s.cap[:, a].tolist(), strict=True)):
            took = (s.ratio[:, a] == r) & (s.cap[:, a] == c)
            flow = (s.mu[:, a] * s.decay[:, a] * took)[:, None] * mass
            if r > 0 and c > 0 and flow.any():
                x = r * value
                values.append(np.minimum(c, x) if s.trace.recursive else x)
                masses.append(s.gamma * (P[a :: s.A].T @ flow))
    return _gather(np.concatenate(values), np.concatenate(masses, axis=1))


def _gather(value: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merge equal values and add their masses [S, values]."""
    if not len(value):
        return value, mass
    order = np.argsort(value)
    value, mass = value[order], mass[:, order]
    first = np.flatnonzero(np.concatenate([[True], np.diff(value) > MERGE * value[1:]]))
    return value[first], np.add.reduceat(mass, first, axis=1)


def _held(value: np.ndarray, known: np.ndarray) -> np.ndarray:
    at = np.clip(np.searchsorted(known, value * (1 - MERGE)), 0, len(known) - 1)
    return np.abs(known[at] - value) <= 2 * MERGE * value


def _stays(setting: Setting, known: np.ndarray) -> bool:
    """Whether every value, in any state, goes to a known one: then nothing new can come."""
    took = (setting.mu > 0) & (setting.decay > 0) & (setting.ratio > 0)
    for r, c in set(zip(setting.ratio[took].tolist(), setting.cap[took].tolist(), strict=True)):
        x = r * known
        x = np.minimum(c, x) if setting.trace.recursive else x
        x = x[x > 0]
        if not _held(x, known).all():
            return False
    return True
