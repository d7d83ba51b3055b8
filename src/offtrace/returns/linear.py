"""Kernel 1, cap = ∞: the reverse recursion, O(T).

    Δ_k = δ_k + g_k ratio_{k+1} Δ_{k+1}

Where the factor is 0 nothing is passed on, not even an overflow. A row waits on its own chain of multiplications, so the
four rows of a block go side by side.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numba.extending import register_jitable

from offtrace.returns.elementwise import at


@register_jitable(error_model="numpy", fastmath={"contract"})
def sweep(delta, g, ratio, cap, lags, out):
    """Δ of a block of at most four rows into `out` [n, T]. ratio may be a number; cap and lags do not act."""
    n, T = delta.shape
    last = T - 1
    one = np.uintp(1)  # unsigned indices spare the test for a negative one
    if n == 4:
        x0, x1, x2, x3 = delta[0, last], delta[1, last], delta[2, last], delta[3, last]
        out[0, last], out[1, last], out[2, last], out[3, last] = x0, x1, x2, x3
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
        return
    for b in range(n):
        x = delta[b, last]
        out[b, last] = x
        for j in range(1, T):
            k = np.uintp(last - j)
            c = g[b, k] * at(ratio, b, k + one)
            x = delta[b, k] + c * (x if c != 0.0 else 0.0)
            out[b, k] = x


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def solve(a, c):
    """x_k = a_k + c_k x_{k+1} along each row [B, T]: Peng's Q(λ) and V-trace have this form too. c of the last step is unused."""
    out = np.empty(a.shape)
    for b in range(0, a.shape[0], 4):
        rows = slice(b, min(b + 4, a.shape[0]))
        sweep(a[rows], c[rows], 1.0, 0.0, 0.0, out[rows])
    return out
