"""Kernel 1, cap = ∞: the reverse recursion, O(T).

    Δ_k = δ_k + g_k ratio_{k+1} Δ_{k+1}

Where the factor is 0 nothing is passed on, not even an overflow. A row waits on its own chain of multiplications, so the
four rows of a block go side by side. Beside Δ runs m = max(2^960, g ratio m), which is infinite, and stays so, once a product of
factors rises by 2^64: such a row is done again with products of any size (`finish`).
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.by_address import Kernel, kernel_part
from offtrace.returns.numpy.scaled_numbers import FLOOR, added, floored, raised, times


@kernel_part
def sweep(delta, g, ratio, cap, lags, undone, room, out):
    """Δ of a block of at most four rows into `out` [n, T]; cap and lags do not act."""
    n, T = delta.shape
    last = T - 1
    one = np.uintp(1)  # unsigned indices spare the test for a negative one
    if n == 4 and calm(g, ratio, out) and four_calm_rows(delta, out):
        undone[0] = undone[1] = undone[2] = undone[3] = 0
    elif n == 4:
        x0, x1, x2, x3 = delta[0, last], delta[1, last], delta[2, last], delta[3, last]
        out[0, last], out[1, last], out[2, last], out[3, last] = x0, x1, x2, x3
        m0 = m1 = m2 = m3 = FLOOR
        for j in range(1, T):
            k = np.uintp(last - j)
            c0 = g[0, k] * ratio[0, k + one]
            c1 = g[1, k] * ratio[1, k + one]
            c2 = g[2, k] * ratio[2, k + one]
            c3 = g[3, k] * ratio[3, k + one]
            x0 = delta[0, k] + c0 * (x0 if c0 != 0.0 else 0.0)
            x1 = delta[1, k] + c1 * (x1 if c1 != 0.0 else 0.0)
            x2 = delta[2, k] + c2 * (x2 if c2 != 0.0 else 0.0)
            x3 = delta[3, k] + c3 * (x3 if c3 != 0.0 else 0.0)
            out[0, k], out[1, k], out[2, k], out[3, k] = x0, x1, x2, x3
            m0, m1, m2, m3 = floored(c0 * m0), floored(c1 * m1), floored(c2 * m2), floored(c3 * m3)
        undone[0], undone[1] = 0 if m0 < np.inf else T, 0 if m1 < np.inf else T
        undone[2], undone[3] = 0 if m2 < np.inf else T, 0 if m3 < np.inf else T
    else:
        for b in range(n):
            x, m = delta[b, last], FLOOR
            out[b, last] = x
            for j in range(1, T):
                k = np.uintp(last - j)
                c = g[b, k] * ratio[b, k + one]
                x = delta[b, k] + c * (x if c != 0.0 else 0.0)
                out[b, k] = x
                m = floored(c * m)
            undone[b] = 0 if m < np.inf else T


@kernel_part
def calm(g, ratio, factor):
    """g_k ratio_{k+1} into `factor`; whether none exceeds 1, so that no product of them rises."""
    n, T = g.shape
    found = True
    for b in range(n):
        for t in range(T - 1):
            factor[b, t] = g[b, t] * ratio[b, t + 1]
        for t in range(T - 1):
            found &= factor[b, t] <= 1.0
    return found


@kernel_part
def four_calm_rows(delta, out):
    """Δ of four rows from the factors in `out`, into it; whether no sum overflowed, which would have met a factor of 0."""
    last = delta.shape[1] - 1
    x0, x1, x2, x3 = delta[0, last], delta[1, last], delta[2, last], delta[3, last]
    out[0, last], out[1, last], out[2, last], out[3, last] = x0, x1, x2, x3
    for j in range(1, last + 1):
        k = np.uintp(last - j)
        x0 = delta[0, k] + out[0, k] * x0
        x1 = delta[1, k] + out[1, k] * x1
        x2 = delta[2, k] + out[2, k] * x2
        x3 = delta[3, k] + out[3, k] * x3
        out[0, k], out[1, k], out[2, k], out[3, k] = x0, x1, x2, x3
    return abs(x0) + abs(x1) + abs(x2) + abs(x3) < np.inf  # what is infinite, or was, stays so or is NaN


@kernel_part
def finish(delta, g, ratio, cap, lags, starts, room, out):
    """Δ of a row, as f · 2^{512n}."""
    T = len(delta)
    f, n = 0.0, 0
    for i in range(T):
        k = T - 1 - i
        if i:
            f, n = times(f, n, g[k])
            f, n = times(f, n, ratio[k + 1])
        d, dn = times(delta[k], 0, 1.0)
        f, n = added(f, n, d, dn)
        out[k] = raised(f, n)


KERNEL = Kernel(sweep, finish)
