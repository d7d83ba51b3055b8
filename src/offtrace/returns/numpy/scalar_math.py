"""Scalar arithmetic for compiled loops: an `exp` that vectorises, and `at`."""

from __future__ import annotations

from math import factorial
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload


def at(x, b, t) -> Any:
    """x[b, t] where x is an array, x where it is a number."""
    raise TypeError("only inside compiled code")


@overload(at)
def _at(x, b, t):
    if isinstance(x, types.Array):
        return lambda x, b, t: x[b, t]
    return lambda x, b, t: x


LOG2_E = 1.4426950408889634
LN2_HIGH = 6.93147180369123816490e-01
LN2_LOW = 1.90821492927058770002e-10
C2, C3, C4, C5, C6, C7, C8, C9, C10, C11, C12 = (1.0 / factorial(i) for i in range(2, 13))
LARGEST_LOG, SMALLEST_LOG = 709.0, -708.0  # between them e^x is a normal number


@njit(error_model="numpy", fastmath={"contract"})
def exp(x):
    """e^x to two units in the last place for x ≤ LARGEST_LOG; 0 below SMALLEST_LOG, where it is less than 10⁻³⁰⁷.

    The C library's is a call for each element, which no loop vectorises. x = n ln 2 + r, |r| ≤ ½ ln 2; a Taylor
    polynomial for e^r; 2^n is put together in the exponent's bits.
    """
    clamped = min(max(x, SMALLEST_LOG), LARGEST_LOG)
    n = np.floor(clamped * LOG2_E + 0.5)
    r = (clamped - n * LN2_HIGH) - n * LN2_LOW
    p = C12 * r + C11
    p = p * r + C10
    p = p * r + C9
    p = p * r + C8
    p = p * r + C7
    p = p * r + C6
    p = p * r + C5
    p = p * r + C4
    p = p * r + C3
    p = p * r + C2
    p = p * r * r + r + 1.0
    power = np.int64((np.int64(n) + 1023) << 52)
    return 0.0 if x < SMALLEST_LOG else p * power.view(np.float64)
