"""The reverse recursion of some rows at a time, a part of them after the other, where products are of a usual size.

    x_k = a_k + c_k x_{k+1}

A row waits on its own chain of multiplications, so four rows go side by side. A part is what the passes for traces without a
cap (`linear_pass`, `linear_state_pass`) make at a time, from the rows' ends on, so that it stays in the nearest cache.
Rows of up to SHORT steps are taken whole; they lie in one piece, and so what is done to each step is one loop over all of them.

All that a part needs lies in one array, at the places below. This is for the compiler: it vectorises a loop only where it can
tell that no array that is written overlaps another one, and for that it compares few addresses.

Where c ≤ 1 throughout a part, no product rises, and x is all that runs. Elsewhere m = max(2^960, c m) runs beside it, which is
infinite, and stays so, once a product of factors has risen by 2^64. Then, or if a sum has overflowed, the pass gives up: its
caller turns to `reverse_recursion`, which does products of any size.
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.by_address import kernel_part
from offtrace.returns.numpy.scaled_numbers import FLOOR, floored

SIDE_BY_SIDE, SHORT = 4, 256
STEPS = 1024
"""How many steps a part may have, of all its rows together."""
APART = STEPS // SIDE_BY_SIDE + 8
"""From one row of a part to the next, where rows are long: at a power of two they would evict each other from the cache."""
ROOM = SIDE_BY_SIDE * APART + 24
A, C, X, FACTOR, RHO, PI, MU, GAMMA, WEIGHT, SIZE = (ROOM * i for i in range(10))
"""Where a_k, c_k, x_k, decay · ratio, ρ, π, μ, γ and a weight of state values begin."""
OF_A, OF_C, OF_X = np.uintp(A), np.uintp(C), np.uintp(X)
ROWS = STEPS + SIDE_BY_SIDE
"""More rows than a part has."""


@kernel_part
def layout(B, T):
    """How many of B rows of T steps a part has, how many steps of each, and how far they are apart."""
    if T <= SHORT:
        return max(SIDE_BY_SIDE, STEPS // T // SIDE_BY_SIDE * SIDE_BY_SIDE), T, T
    if B == 1:
        return 1, STEPS, 0  # the same row four times side by side takes no longer than once
    return SIDE_BY_SIDE, STEPS // SIDE_BY_SIDE, APART


@kernel_part
def begin(rows, x, m):
    """What comes from beyond the ends of rows."""
    for i in range(rows + SIDE_BY_SIDE):
        x[i], m[i] = 0.0, FLOOR


@kernel_part
def end_rows(rows, n, wide, part):
    """Nothing is passed on at the end of a row. In place of rows that are not there, up to a multiple of four, are zeros."""
    for i in range(rows):
        part[C + i * wide + n - 1] = 0.0
    while rows % SIDE_BY_SIDE and wide:
        for t in range(n):
            part[A + rows * wide + t] = part[C + rows * wide + t] = 0.0
        rows += 1


@kernel_part
def run_back(rows, n, wide, calm, part, x, m):
    """x_k of a part. `x` and `m` hold what comes from the part after it, and then what goes on to the part before it.

    `calm` says that no factor is above 1. Returns whether all is within the range of plain numbers.
    """
    for i in range(0, rows, SIDE_BY_SIDE):
        if calm:
            four_rows(n, i, wide, part, x)
        else:
            four_of_any_factors(n, i, wide, part, x, m)
    fine = True
    for i in range(rows):
        fine &= (abs(x[i]) < np.inf) & (m[i] < np.inf)  # what is infinite, or was, stays so or is NaN
    return fine


@kernel_part
def four_rows(n, i, wide, part, x):
    """Four rows from row i on, whose factors are at most 1."""
    w = np.uintp(wide)  # unsigned indices spare the test for a negative one
    x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
    for j in range(n):
        k0 = np.uintp(i) * w + np.uintp(n - 1 - j)
        k1, k2, k3 = k0 + w, k0 + w + w, k0 + w + w + w
        x0, x1 = part[OF_A + k0] + part[OF_C + k0] * x0, part[OF_A + k1] + part[OF_C + k1] * x1
        x2, x3 = part[OF_A + k2] + part[OF_C + k2] * x2, part[OF_A + k3] + part[OF_C + k3] * x3
        part[OF_X + k0], part[OF_X + k1], part[OF_X + k2], part[OF_X + k3] = x0, x1, x2, x3
    x[i], x[i + 1], x[i + 2], x[i + 3] = x0, x1, x2, x3


@kernel_part
def four_of_any_factors(n, i, wide, part, x, m):
    """Four rows of any factors. Where one is 0 nothing is passed on, not even an overflow."""
    w = np.uintp(wide)
    x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
    m0, m1, m2, m3 = m[i], m[i + 1], m[i + 2], m[i + 3]
    for j in range(n):
        k0 = np.uintp(i) * w + np.uintp(n - 1 - j)
        k1, k2, k3 = k0 + w, k0 + w + w, k0 + w + w + w
        c0, c1, c2, c3 = part[OF_C + k0], part[OF_C + k1], part[OF_C + k2], part[OF_C + k3]
        x0 = part[OF_A + k0] + c0 * (x0 if c0 != 0.0 else 0.0)
        x1 = part[OF_A + k1] + c1 * (x1 if c1 != 0.0 else 0.0)
        x2 = part[OF_A + k2] + c2 * (x2 if c2 != 0.0 else 0.0)
        x3 = part[OF_A + k3] + c3 * (x3 if c3 != 0.0 else 0.0)
        part[OF_X + k0], part[OF_X + k1], part[OF_X + k2], part[OF_X + k3] = x0, x1, x2, x3
        m0, m1, m2, m3 = floored(c0 * m0), floored(c1 * m1), floored(c2 * m2), floored(c3 * m3)
    x[i], x[i + 1], x[i + 2], x[i + 3] = x0, x1, x2, x3
    m[i], m[i + 1], m[i + 2], m[i + 3] = m0, m1, m2, m3
