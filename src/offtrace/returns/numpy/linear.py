"""Kernel 1, cap = ∞: the reverse recursion x_k = δ_k + c_k x_{k+1}, O(T).

A row waits on its own chain of multiplications, so four rows go side by side. Where c is 0 nothing is passed on, not even an
overflow. Where some c exceeds 1, m = max(2^960, c m) runs along with x: it is infinite, and stays so, once a product of
factors has risen by 2^64. Such a row is done again with products of any size (`solve_big`).
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.big_float import added, floored, raised, times
from offtrace.returns.numpy.compiling import kernel, part

SIDE_BY_SIDE = 4


@kernel
def solve(B, T, delta, passed, factor, after, c, x):
    """Solve B rows of T steps, one after the other in flat arrays, into x; c_k = passed_k factor_k is kept in `c`.

    `after` holds x and m beyond the last step of each row; of one row it then holds those of its first step. Returns whether
    all is within the range of floats.
    """
    fine, is_calm = True, True
    for t in range(B * T):
        c[t] = passed[t] * factor[t] if passed[t] > 0.0 else 0.0  # a factor that does not act may be infinite
        is_calm &= c[t] <= 1.0
    for b in range(0, B, SIDE_BY_SIDE):
        if is_calm and B - b >= SIDE_BY_SIDE:
            four_rows(b, T, delta, c, after[0], x)
            continue
        for i in range(b * T, min(b + SIDE_BY_SIDE, B) * T, T):
            y, m = row(delta[i : i + T], c[i : i + T], after[0], after[1], x[i : i + T])
            fine &= m < np.inf
            if B == 1:
                after[0], after[1] = y, m
    for t in range(B * T):
        fine &= abs(x[t]) < np.inf
    return fine


@part
def four_rows(b, T, delta, c, after, x):
    """Four rows from row b on, whose factors are at most 1."""
    w = np.uintp(T)  # unsigned indices spare the test for a negative one
    x0 = x1 = x2 = x3 = after
    for i in range(T):
        k0 = np.uintp(b) * w + np.uintp(T - 1 - i)
        k1, k2, k3 = k0 + w, k0 + w + w, k0 + w + w + w
        x0, x1 = delta[k0] + c[k0] * x0, delta[k1] + c[k1] * x1
        x2, x3 = delta[k2] + c[k2] * x2, delta[k3] + c[k3] * x3
        x[k0], x[k1], x[k2], x[k3] = x0, x1, x2, x3


@part
def row(delta, c, y, m, x):
    """One row of any factors, from x and m beyond its last step; returns those of its first step."""
    for i in range(len(delta)):
        k = np.uintp(len(delta) - 1 - i)
        y = delta[k] + c[k] * (y if c[k] != 0.0 else 0.0)
        x[k] = y
        m = floored(c[k] * m)
    return y, m


@kernel
def solve_big_rows(delta, g, ratio, x):
    """Solve rows [n, T] with c_k = g_k ratio_{k+1}, x = 0 beyond their ends, and products of any size."""
    for b in range(len(delta)):
        solve_big(delta[b], g[b], ratio[b], x[b])


@part
def solve_big(delta, g, ratio, x):
    """One row, as numbers f · 2^{512n}."""
    T = len(delta)
    f, n = 0.0, 0
    for i in range(T):
        k = T - 1 - i
        if i and g[k] > 0.0:
            f, n = times(f, n, g[k])
            f, n = times(f, n, ratio[k + 1])
        else:
            f, n = 0.0, 0
        d, dn = times(delta[k], 0, 1.0)
        f, n = added(f, n, d, dn)
        x[k] = raised(f, n)
