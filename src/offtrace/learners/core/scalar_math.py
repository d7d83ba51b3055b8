"""Scalar arithmetic for compiled loops: an `exp` that vectorises, and `at`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from offtrace._shared.compiled_parts import part_njit


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
ROUNDED = 1.5 * 2.0**52
"""What is added to it is rounded to an integer, which then stands in the lowest bits."""
C2, C3, C4, C5, C6 = (
    0.5000000000000011,
    0.16666666666666413,
    0.04166666666653015,
    0.008333333333494465,
    0.0013888888943631803,
)
C7, C8, C9 = 0.00019841269506578428, 2.4801493097261263e-05, 2.7557586370338387e-06
C10, C11 = 2.763024893189953e-07, 2.5000063549257597e-08
SMALLEST_LOG = -708.0  # between it and LARGEST_LOG e^x is a normal number


@part_njit(error_model="numpy", fastmath={"contract"})
def exp(x):
    """e^x to about a unit in the last place for x ≤ LARGEST_LOG; 0 below SMALLEST_LOG, where it is less than 10⁻³⁰⁷.

    The C library's is a call for each element, which no loop vectorises. x = n ln 2 + r, |r| ≤ ½ ln 2; for e^r the polynomial
    1 + r + r² (C2 + C3 r + …) whose largest relative error there is the least, 4e-18; n is added in the exponent's bits.
    """
    shifted = x * LOG2_E + ROUNDED
    n = shifted - ROUNDED
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = C11 * r + C10
    p = p * r + C9
    p = p * r + C8
    p = p * r + C7
    p = p * r + C6
    p = p * r + C5
    p = p * r + C4
    p = p * r + C3
    p = p * r + C2
    p = p * (r * r) + r + 1.0
    made = np.int64(np.float64(p).view(np.int64) + (np.float64(shifted).view(np.int64) << 52))
    return 0.0 if x < SMALLEST_LOG else made.view(np.float64)
