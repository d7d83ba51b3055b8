"""Kernel 1, cap = ∞: the reverse recursion, O(T).

    Δ_k = δ_k + g_k ratio_{k+1} Δ_{k+1}

Where the factor is 0 nothing is passed on, not even an overflow. A row waits on its own chain of multiplications, so the
four rows of a block go side by side. Beside Δ runs m = max(2^960, g ratio m), which is infinite, and stays so, once a product of
factors rises by 2^64: such a row is done again with products of any size (`scaled`).
"""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable

from offtrace.returns.numpy.scalar_math import at
from offtrace.returns.numpy.scaled_numbers import FLOOR, added, floored, raised, times


@register_jitable(error_model="numpy", fastmath={"contract"})
def sweep(delta, g, ratio, cap, lags, out):
    """Δ of a block of at most four rows into `out` [n, T]. ratio may be a number; cap and lags do not act."""
    n, T = delta.shape
    last = T - 1
    one = np.uintp(1)  # unsigned indices spare the test for a negative one
    if n == 4:
        x0, x1, x2, x3 = delta[0, last], delta[1, last], delta[2, last], delta[3, last]
        out[0, last], out[1, last], out[2, last], out[3, last] = x0, x1, x2, x3
        m0 = m1 = m2 = m3 = FLOOR
        for j in range(1, T):
            k = np.uintp(last - j)
            c0 = g[0, k] * at(ratio, 0, k + one)
            c1 = g[1, k] * at(ratio, 1, k + one)
            c2 = g[2, k] * at(ratio, 2, k + one)
            c3 = g[3, k] * at(ratio, 3, k + one)
            x0 = delta[0, k] + c0 * (x0 if c0 != 0.0 else 0.0)
            x1 = delta[1, k] + c1 * (x1 if c1 != 0.0 else 0.0)
            x2 = delta[2, k] + c2 * (x2 if c2 != 0.0 else 0.0)
            x3 = delta[3, k] + c3 * (x3 if c3 != 0.0 else 0.0)
            out[0, k], out[1, k], out[2, k], out[3, k] = x0, x1, x2, x3
            m0, m1, m2, m3 = floored(c0 * m0), floored(c1 * m1), floored(c2 * m2), floored(c3 * m3)
        if not (m0 < np.inf and m1 < np.inf and m2 < np.inf and m3 < np.inf):
            for b, m in enumerate((m0, m1, m2, m3)):
                if not m < np.inf:
                    solve_scaled(delta, g, ratio, b, out)
        return
    for b in range(n):
        x, m = delta[b, last], FLOOR
        out[b, last] = x
        for j in range(1, T):
            k = np.uintp(last - j)
            c = g[b, k] * at(ratio, b, k + one)
            x = delta[b, k] + c * (x if c != 0.0 else 0.0)
            out[b, k] = x
            m = floored(c * m)
        if not m < np.inf:
            solve_scaled(delta, g, ratio, b, out)


@register_jitable(error_model="numpy", fastmath={"contract"})
def solve_scaled(delta, g, ratio, b, out):
    """Δ of row b, as f · 2^{512n}."""
    T = delta.shape[1]
    f, n = 0.0, 0
    for i in range(T):
        k = T - 1 - i
        if i:
            f, n = times(f, n, g[b, k])
            f, n = times(f, n, at(ratio, b, k + 1))
        d, dn = times(delta[b, k], 0, 1.0)
        f, n = added(f, n, d, dn)
        out[b, k] = raised(f, n)


@register_jitable(error_model="numpy", fastmath={"contract"})
def solve_rows(a, c, out):
    """x_k = a_k + c_k x_{k+1} along each row [B, T]."""
    for b in range(0, a.shape[0], 4):
        rows = slice(b, min(b + 4, a.shape[0]))
        sweep(a[rows], c[rows], 1.0, 0.0, 0.0, out[rows])
