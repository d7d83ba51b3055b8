"""The reverse recursion of some rows at a time, a part of them after the other, where products are of a usual size.

    x_k = a_k + c_k x_{k+1}

A row waits on its own chain of multiplications, so four rows go side by side. A part is what the passes for traces without a
cap (`linear_pass`, `linear_state_pass`) make at a time, from the rows' ends on, so that it stays in a near cache.
Rows of up to SHORT steps are taken whole; they lie in one piece, and so what is done to each step is one loop over all of them.

Where c ≤ 1 throughout a part, no product rises, and x is all that runs. Elsewhere m = max(2^960, c m) runs beside it, which is
infinite, and stays so, once a product of factors has risen by 2^64. Then, or if a sum has overflowed, the pass gives up: its
caller turns to `reverse_recursion`, which does products of any size.
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.by_address import kernel_part
from offtrace.returns.numpy.scaled_numbers import floored

ROWS, SHORT, STEPS = 8, 256, 512
APART = STEPS + 8
"""From one row of a part to the next, where rows are long: at a power of two they would evict each other from the cache."""
ROOM = ROWS * APART + 8


@kernel_part
def apart(T):
    """From one row of a part to the next."""
    return T if T <= SHORT else APART


@kernel_part
def stretches(rows, n, T):
    """How many pieces a part of n steps of some rows comes in, and how many steps each has."""
    return (1, rows * n) if T <= SHORT else (rows, n)


@kernel_part
def run_back(rows, n, wide, a, c, x, m):
    """x_k of a part of at most eight rows in place of a_k; row i begins at i · wide. `x` and `m` hold what comes from the
    part after it, and then what goes on to the part before it.

    Returns whether all is within the range of plain numbers.
    """
    calm = True
    for i in range(rows):
        row = c[i * wide : i * wide + n]
        for t in range(n):
            calm &= row[t] <= 1.0
    side_by_side = rows // 4 * 4
    for i in range(0, side_by_side, 4):
        if calm:
            four_rows(n, i, wide, a, c, x)
        else:
            four_of_any_factors(n, i, wide, a, c, x, m)
    for i in range(side_by_side, rows):
        first = i * wide
        if calm:
            calm_row(n, a[first : first + n], c[first : first + n], i, x)
        else:
            any_row(n, a[first : first + n], c[first : first + n], i, x, m)
    fine = True
    for i in range(rows):
        fine &= (abs(x[i]) < np.inf) & (m[i] < np.inf)  # what is infinite, or was, stays so or is NaN
    return fine


@kernel_part
def four_rows(n, i, wide, a, c, x):
    """Four rows from row i on, whose factors are at most 1."""
    w = np.uintp(wide)  # unsigned indices spare the test for a negative one
    x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
    for j in range(n):
        k0 = np.uintp(i) * w + np.uintp(n - 1 - j)
        k1, k2, k3 = k0 + w, k0 + w + w, k0 + w + w + w
        x0, x1, x2, x3 = a[k0] + c[k0] * x0, a[k1] + c[k1] * x1, a[k2] + c[k2] * x2, a[k3] + c[k3] * x3
        a[k0], a[k1], a[k2], a[k3] = x0, x1, x2, x3
    x[i], x[i + 1], x[i + 2], x[i + 3] = x0, x1, x2, x3


@kernel_part
def four_of_any_factors(n, i, wide, a, c, x, m):
    """Four rows of any factors. Where one is 0 nothing is passed on, not even an overflow."""
    w = np.uintp(wide)
    x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
    m0, m1, m2, m3 = m[i], m[i + 1], m[i + 2], m[i + 3]
    for j in range(n):
        k0 = np.uintp(i) * w + np.uintp(n - 1 - j)
        k1, k2, k3 = k0 + w, k0 + w + w, k0 + w + w + w
        c0, c1, c2, c3 = c[k0], c[k1], c[k2], c[k3]
        x0, x1 = a[k0] + c0 * (x0 if c0 != 0.0 else 0.0), a[k1] + c1 * (x1 if c1 != 0.0 else 0.0)
        x2, x3 = a[k2] + c2 * (x2 if c2 != 0.0 else 0.0), a[k3] + c3 * (x3 if c3 != 0.0 else 0.0)
        a[k0], a[k1], a[k2], a[k3] = x0, x1, x2, x3
        m0, m1, m2, m3 = floored(c0 * m0), floored(c1 * m1), floored(c2 * m2), floored(c3 * m3)
    x[i], x[i + 1], x[i + 2], x[i + 3] = x0, x1, x2, x3
    m[i], m[i + 1], m[i + 2], m[i + 3] = m0, m1, m2, m3


@kernel_part
def calm_row(n, a, c, i, x):
    """A row whose factors are at most 1."""
    y = x[i]
    for j in range(n):
        k = np.uintp(n - 1 - j)
        y = a[k] + c[k] * y
        a[k] = y
    x[i] = y


@kernel_part
def any_row(n, a, c, i, x, m):
    """A row of any factors."""
    y, rise = x[i], m[i]
    for j in range(n):
        k = np.uintp(n - 1 - j)
        f = c[k]
        y = a[k] + f * (y if f != 0.0 else 0.0)
        a[k] = y
        rise = floored(f * rise)
    x[i], m[i] = y, rise
