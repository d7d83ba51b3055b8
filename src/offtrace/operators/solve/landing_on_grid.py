"""Where a trace at x lands after an action, on a grid of x: one sweep of the recursion below, as compiled loops.

Let H(s, x) be the mean of what is still to be read by a trace that arrives in s with x, before the action is taken:

    H(s, x) = Σ_a μ(a|s) decay(s,a) [ min(cap, ratio·x) · M(s,a) + γ Σ_{s'} P(s'|s,a) H(s', f(x)) ]
    f(x) = min(cap, ratio·x) for recursive traces, ratio·x otherwise.

H is increasing and concave in x. So on a grid x_0 = 0 < x_1 < … the chords of a lower bound are below H, and every *line* that is
an upper bound stays one when it is carried backward: if ℓ(s', ·) ≥ H(s', ·) everywhere, put ℓ for H on the right: a line again.
A node keeps one line (its value there, and its slope); between two nodes, the lower one of their two lines is taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offtrace._shared.compile_cache import cached_njit
from offtrace.operators.setting import Setting

MERGE = 1e-12
"""Values of x that differ by less than this, relatively, count as equal."""


STEEPEST = 1e200


class Landing(NamedTuple):
    """For each pair z and node i: what is read there, and where the trace continues. Arrays [S·A, N] but for `coef` [S·A]."""

    coef: np.ndarray
    """μ·decay; 0 where nothing is carried on."""
    read: np.ndarray
    """min(cap, ratio·x_i)."""
    read_slope: np.ndarray
    """The derivative of `read` by x."""
    to: np.ndarray
    """f(x_i)."""
    to_slope: np.ndarray
    """Its derivative: 0 where clipped."""
    interval: np.ndarray
    """j with x_j ≤ f(x_i) ≤ x_{j+1}; N − 1 where f(x_i) is beyond the grid."""
    share: np.ndarray
    """The weight of node j + 1 in the chord; 0 where f(x_i) is node j itself."""


def land(setting: Setting, grid: np.ndarray, bound: float = np.inf) -> Landing:
    """The landings of every node; `bound` caps what is read at this lag."""
    ratio, cap = setting.ratio.reshape(-1, 1), np.minimum(setting.cap.reshape(-1, 1), bound)
    free = ratio * grid
    read = np.minimum(cap, free)
    to = read if setting.trace.recursive else free
    interval = np.searchsorted(grid, to * (1 + MERGE), side="right") - 1
    after = np.minimum(interval + 1, len(grid) - 1)
    width = np.where(after > interval, grid[after] - grid[interval], 1.0)
    share = np.clip((to - grid[interval]) / width, 0.0, 1.0)
    hit = np.abs(to - grid[interval]) <= MERGE * to
    share[hit | (after == interval)] = 0.0
    clipped = free >= cap
    slope = np.where(clipped, 0.0, ratio)
    return Landing(
        np.where(setting.ratio > 0, setting.mu * setting.decay, 0.0).ravel(),  # H(s, 0) = 0
        read,
        slope,
        to,
        slope if setting.trace.recursive else np.broadcast_to(ratio, to.shape).copy(),
        interval.astype(np.int32),
        share,
    )


@cached_njit(nogil=True, error_model="numpy")
def chords(E, M, landing, A, out):
    """out[s, i] = Σ_a coef (read · M + chord of E at the landing): E [S·A, N, Y], M [S·A, Y], out [S, N, Y]."""
    coef, read, _, _, _, interval, share = landing
    SA, N, Y = E.shape
    for s in range(SA // A):
        for i in range(N):
            for y in range(Y):
                out[s, i, y] = 0.0
            for a in range(A):
                z = s * A + a
                c = coef[z]
                if c == 0.0:
                    continue
                j, w, b = interval[z, i], share[z, i], read[z, i]
                if w == 0.0:
                    for y in range(Y):
                        out[s, i, y] += c * (b * M[z, y] + E[z, j, y])
                else:
                    for y in range(Y):
                        out[s, i, y] += c * (b * M[z, y] + (1.0 - w) * E[z, j, y] + w * E[z, j + 1, y])


@cached_njit(nogil=True, error_model="numpy")
def lines(E, slope, top, M, grid, landing, A, out, out_slope):
    """The same from above: the best line at each landing. `top` [S·A, Y] bounds E at every x."""
    coef, read, read_slope, to, to_slope, interval, share = landing
    SA, N, Y = E.shape
    for s in range(SA // A):
        for i in range(N):
            for y in range(Y):
                out[s, i, y] = out_slope[s, i, y] = 0.0
            for a in range(A):
                z = s * A + a
                c = coef[z]
                if c == 0.0:
                    continue
                j, w, b, v = interval[z, i], share[z, i], read[z, i], to[z, i]
                for y in range(Y):
                    g = slope[z, j, y]
                    best = E[z, j, y] + g * (v - grid[j])
                    if w > 0.0:
                        g2 = slope[z, j + 1, y]
                        other = E[z, j + 1, y] + g2 * (v - grid[j + 1])
                        if other < best:
                            best, g = other, g2
                    if top[z, y] < best:
                        best, g = top[z, y], 0.0
                    out[s, i, y] += c * (b * M[z, y] + best)
                    out_slope[s, i, y] += c * (read_slope[z, i] * M[z, y] + to_slope[z, i] * g)
            for y in range(
                Y
            ):  # at x = 0 it may grow without end: H is steeper than any line, and no landing so near to 0
                out_slope[s, i, y] = min(out_slope[s, i, y], STEEPEST)


@cached_njit(nogil=True, error_model="numpy")
def forward(m, landing, A, out):
    """The chords' transpose: mass m [S, N] before the action, to `out` [S·A, N] after it."""
    coef, _, _, _, _, interval, share = landing
    SA, N = out.shape
    for z in range(SA):
        for i in range(N):
            out[z, i] = 0.0
        c = coef[z]
        if c == 0.0:
            continue
        for i in range(N):
            mass = c * m[z // A, i]
            if mass != 0.0:
                j, w = interval[z, i], share[z, i]
                out[z, j] += (1.0 - w) * mass
                if w > 0.0:
                    out[z, j + 1] += w * mass
