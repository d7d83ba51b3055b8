"""Products beyond the range of floats, in Triton kernels: numbers of any size, when they are needed, and Δ computed with them.

A number is f · 2ⁿ with f in float64 and n in int64. |f| is in [1, 2), or 0 with n at the `BOTTOM`, so that pairs are ordered by n
and then by f. ∞ is 1 · 2^TOP. NaN stays in f.

Every kernel counts by how many powers of two its products move. A product that has fallen by at most RANGE keeps its digits, and
one that has fallen further is negligible until it has grown by RISE again: only rows that do both are computed again here.
"""

# pyright: reportInvalidTypeForm=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from offtrace import trajectory
from offtrace.returns.triton.load import STATES, enters, leaves, link, state_weight, td_error, write, write_states

RANGE, RISE = tl.constexpr(trajectory.RANGE), tl.constexpr(trajectory.RISE)
RANGE_IN_SINGLE, RISE_IN_SINGLE = tl.constexpr(100), tl.constexpr(30)
"""The same for float32."""
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


LANES = tl.constexpr(128)
"""Steps that `scan_row` scans at once: one for each thread, so that it is little code."""


@triton.jit
def scan_row(
    a, b, T, n, lam, out, target, advantage, RULE: tl.constexpr, READS: tl.constexpr, HOW: tl.constexpr
):  # fmt: skip
    """Compute the recursion of `linear` of one row with numbers of any size, f · 2ⁿ, from the row's end on."""
    i = tl.arange(0, LANES)
    end_f = tl.zeros([1], tl.float64)
    end_m = tl.zeros([1], tl.int64) + BOTTOM
    none = tl.zeros([1], tl.float64)
    ahead = tl.zeros([1], tl.float64)  # Δ of the step after the chunk
    chunks = tl.cdiv(T, LANES)
    for chunk in range(chunks):
        t = (chunks - chunk) * LANES - 1 - i
        decay, ratio, _ = enters(a, b, t + 1, T, n, RULE, READS, False)
        cut = (decay == 0.0) | (ratio == 0.0)
        discount = leaves(a, b, t, T, n, RULE, READS)
        g, gm = split(discount)
        s, sm = split(tl.where(cut, 0.0, ratio))
        d, dm = split(decay)
        s, sm = times(s, sm, d, dm)
        none_left = (discount == 0.0) | cut
        c, cm = times(tl.where(none_left, 0.0, g), gm, tl.where(none_left, 0.0, s), sm)
        f, m = split_signed(td_error(a, b, t, T, n, RULE, READS))
        f, m, c, cm = tl.associative_scan((f, m, c, cm), 0, then)
        f, m, c, cm = then(end_f, end_m, none, end_m, f, m, c, cm)
        end_f = tl.sum(tl.where(i == LANES - 1, f, 0.0), 0) + tl.zeros([1], tl.float64)
        end_m = tl.sum(tl.where(i == LANES - 1, m, 0), 0) + tl.zeros([1], tl.int64)
        total, inside = value(f, m), (t >= 0) & (t < T)
        if STATES & READS:
            following = tl.where(i == 0, ahead, tl.gather(total, tl.maximum(i - 1, 0), 0))
            ahead = tl.sum(tl.where(i == LANES - 1, total, 0.0), 0) + tl.zeros([1], tl.float64)
            delta, weight = td_error(a, b, t, T, n, RULE, READS - STATES), state_weight(a, b * T + t, inside, n)
            write_states(
                a, b, t, T, n, lam, delta, weight, discount, total, following, target, advantage, out, inside, READS
            )  # fmt: skip
        else:
            write(a[1], a[5], out, b * T + t, inside, total, HOW)


@triton.jit
def walk_row(
    a, lags, reach, b, k, offset, first, end, T, n,
    RULE: tl.constexpr, READS: tl.constexpr, RECURSIVE: tl.constexpr, LAGS: tl.constexpr,
):  # fmt: skip
    """Return Δ by definition, with x and w as f · 2ⁿ; of steps from `first` up to `end`, as counted from each row's `offset`."""
    total = td_error(a, b, k, T, n, RULE, READS)
    x = tl.zeros_like(total) + 1.0
    xn = tl.zeros_like(total).to(tl.int64)
    w, wn = x, xn
    t = first + 1
    left = 1
    while (t < end) & (left != 0):
        now = offset + t
        for _ in range(8):
            now = offset + t
            h, ratio, cap = link(a, b, now, T, n, RULE, READS, RECURSIVE)
            h = tl.where(t < end, h, 0.0)
            delta = td_error(a, b, now, T, n, RULE, READS)
            started = k < now
            near = started & (now - k < reach) if LAGS else started
            bound = tl.load(lags + now - k - 1, near, 0.0) if LAGS else float("inf")
            x, xn, w, wn, y, yn = one_step(x, xn, w, wn, h, ratio, cap, bound, started, RECURSIVE, LAGS)
            total += tl.where(near & (w != 0.0), value(w * y * delta, wn + yn), 0.0)
            t += 1
        left = tl.max(((w != 0.0) & (x != 0.0) & (k < T)).to(tl.int32))
        if LAGS:
            left = left & (tl.min(now - k) < reach).to(tl.int32)
    return total


@triton.jit
def one_step(x, n, w, m, h, ratio, cap, bound, started, RECURSIVE: tl.constexpr, LAGS: tl.constexpr):
    """Return x · 2ⁿ and w · 2ᵐ one step later, where the trace has started, and y · 2^yn, which is read off."""
    h, hn = split(h)
    ratio, rn = split(ratio)
    cap, cn = split(cap)
    later, later_n = times(w, m, h, hn)
    w, m = tl.where(started, later, w), tl.where(started, later_n, m)
    later, later_n = times(x, n, ratio, rn)
    x, n = tl.where(started, later, x), tl.where(started, later_n, n)
    clipped = above(x, n, cap, cn)
    y, yn = tl.where(clipped, cap, x), tl.where(clipped, cn, n)
    if RECURSIVE:
        x, n = tl.where(started, y, x), tl.where(started, yn, n)
    if LAGS:
        bound, bn = split(bound)
        clipped = above(y, yn, bound, bn)
        y, yn = tl.where(clipped, bound, y), tl.where(clipped, bn, yn)
    return x, n, w, m, y, yn
