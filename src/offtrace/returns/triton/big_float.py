"""Numbers of any size for Triton kernels: f · 2ⁿ with f in float64 and n in int64.

|f| is in [1, 2), or 0 with n at the `BOTTOM`, so that pairs are ordered by n and then by f. ∞ is 1 · 2^TOP. NaN stays in f.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportOperatorIssue=false
from __future__ import annotations

import triton
import triton.language as tl

TOP = tl.constexpr(1 << 40)
BOTTOM = tl.constexpr(-(1 << 40))
TINY, RAISED = tl.constexpr(2.0**-900), tl.constexpr(2.0**200)
HALF_RANGE = tl.constexpr(1020)


@triton.jit
def split(x):
    """Return f and n of x ≥ 0."""
    small = x < TINY
    raised = tl.where(small, x * RAISED, x)
    bits = raised.to(tl.int64, bitcast=True)
    n = ((bits >> 52) & 0x7FF) - tl.where(small, 1223, 1023)
    f = ((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000).to(tl.float64, bitcast=True)
    f = tl.where(x == 0.0, 0.0, tl.where(x == float("inf"), 1.0, tl.where(x == x, f, x)))
    n = tl.where(x == 0.0, BOTTOM, tl.where(x == float("inf"), TOP, tl.where(x == x, n, 0)))
    return f, n


@triton.jit
def split_signed(x):
    """Return f and n of x, which may have either sign."""
    f, n = split(tl.abs(x))
    return tl.where(x < 0.0, -f, f), n


@triton.jit
def times(f, n, by, m):
    """Return the product (f · 2ⁿ)(by · 2ᵐ) of numbers ≥ 0."""
    f = f * by
    over = f >= 2.0
    zero = f == 0.0
    n = n + m + over.to(tl.int64)
    return tl.where(over, f * 0.5, f), tl.where(zero, BOTTOM, n)


@triton.jit
def above(f, n, c, m):
    """Tell whether f · 2ⁿ > c · 2ᵐ; a NaN is not."""
    return (f == f) & (f != 0.0) & ((n > m) | ((n == m) & (f > c)))


@triton.jit
def power_of_two(n):
    """Return 2ⁿ for −1022 ≤ n ≤ 1023."""
    return ((n + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def value(f, n):
    """Return f · 2ⁿ as a float64; f may be of any size."""
    n = tl.minimum(tl.maximum(n, -2 * HALF_RANGE), 2 * HALF_RANGE)
    half = n >> 1
    return f * power_of_two(half) * power_of_two(n - half)


@triton.jit
def then(later_f, later_n, later_c, later_m, f, n, c, m):
    """Compose two affine maps: return x + c · later, and c · later's c. A c of 0 passes nothing on."""
    cut = c == 0.0
    by = tl.where(cut, 0.0, c * later_f)
    by_n = tl.where(by == 0.0, BOTTOM, m + later_n)
    top = tl.maximum(n, by_n)
    total = f * power_of_two(tl.maximum(n - top, -HALF_RANGE)) + by * power_of_two(tl.maximum(by_n - top, -HALF_RANGE))
    total, more = split_signed(total)
    c, m = times(tl.where(cut, 0.0, later_c), later_m, c, m)
    return total, tl.where(total == 0.0, BOTTOM, top + more), c, m
