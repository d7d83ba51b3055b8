"""Triton kernels that sum by the definition, step by step, for everything that has no shorter way: bounds by lag, custom traces,
the transpose, and what leaves the range of floats (`big_float`).
"""

# pyright: reportInvalidTypeForm=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from offtrace.returns.triton import big_float
from offtrace.returns.triton.load import STATES, leaves, link, live, numbers, probabilities, td_error, write
from offtrace.returns.triton.sweep import WALK

MOST, LEAST = tl.constexpr(2.0**big_float.RISE.value), tl.constexpr(2.0**-big_float.RANGE.value)
"""Products between these are walked in float64: a weight that is too small for float64 is negligible against them."""


@triton.jit
def walk_by_lag(a, lags, reach, b, k, first, T, n, RULE: tl.constexpr, READS: tl.constexpr, RECURSIVE: tl.constexpr):
    """Return Δ of the starts k [M, 1] of rows b [1, ROWS] with bounds by lag; every 8 steps it looks whether a trace is left.

    The second result is 1 where a product has left the range that float64 holds: then `big_float` is needed.
    """
    total = td_error(a, b, k, T, n, RULE, READS)
    x = tl.zeros_like(total) + 1.0
    w = x
    odd = tl.zeros_like(total).to(tl.int32)
    t = first + 1
    left = 1
    while (t < T) & (left != 0):
        for _ in range(8):
            h, ratio, cap = link(a, b, t, T, n, RULE, READS, RECURSIVE)
            delta = td_error(a, b, t, T, n, RULE, READS)
            started = k < t
            w = tl.where(started, w * h, w)
            x = tl.where(started, tl.where(ratio != 0.0, x * ratio, 0.0), x)
            fine = (x <= MOST) & (x >= LEAST)
            odd |= (started & (w != 0.0) & (fine == 0)).to(tl.int32)
            y = tl.minimum(x, cap)
            if RECURSIVE:
                x = tl.where(started, y, x)
            near = started & (t - k < reach)
            y = tl.where(near, tl.minimum(y, tl.load(lags + t - k - 1, near, 0.0)), 0.0)
            total += tl.where(started & (w != 0.0), w * y * delta, 0.0)
            t += 1
        left = tl.max(((w != 0.0) & (x != 0.0) & (k < T)).to(tl.int32)) & (t - tl.max(k) < reach).to(tl.int32)
    return total, odd


@triton.jit(do_not_specialize=["reach", "B", "T", "groups", "how"])
def walk_rows(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, lags, stage, done, reach, B, T, groups, how,
    gamma: tl.float64, p0: tl.float64, p1: tl.float64, p2: tl.float64, p3: tl.float64, share: tl.float64, bound: tl.float64,
    out, RULE: tl.constexpr, READS: tl.constexpr, RECURSIVE: tl.constexpr, LAGS: tl.constexpr, ROWS: tl.constexpr,
    M: tl.constexpr,
):  # fmt: skip
    """Compute Δ by its definition, M starts of ROWS rows at a time: with bounds by lag, or in rows of the stage WALK."""
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    n = numbers(gamma, p0, p1, p2, p3, share, bound)
    row = (tl.program_id(0) % groups * ROWS + tl.arange(0, ROWS)).to(tl.int64)[None, :]
    b = tl.minimum(row, B - 1)
    first = tl.program_id(0) // groups * M
    k = first + tl.arange(0, M)[:, None]
    wanted = row < B
    odd = 1
    total = tl.zeros([M, ROWS], tl.float64)
    if LAGS:
        total, beyond = walk_by_lag(a, lags, reach, b, k, first, T, n, RULE, READS, RECURSIVE)
        odd = tl.max(beyond)
    else:
        wanted = wanted & (tl.load(stage + b) == WALK)
        odd = tl.max(wanted.to(tl.int32))
    if odd != 0:
        total = big_float.walk_row(a, lags, reach, b, k, 0, first, T, T, n, RULE, READS, RECURSIVE, LAGS)
    write(x1, x5, out, b * T + k, wanted & (k < T), total, how)


@triton.jit(do_not_specialize=["reach", "B"])
def transpose_rows(
    gradient, g, ratio, cap, lags, reach, B, T, out, RECURSIVE: tl.constexpr, LAGS: tl.constexpr, N: tl.constexpr
):
    """Add e_t = Σ_{k<t} w_{k:t} y_{k:t} G_k to `out`, which holds G; N starts of one row at a time."""
    b = (tl.program_id(0) % B).to(tl.int64) * T
    first = tl.program_id(0) // B * N
    k = first + tl.arange(0, N)
    begun = tl.load(gradient + b + k, k < T, 0.0)
    x = tl.full([N], 1.0, tl.float64)
    n = tl.full([N], 0, tl.int64)
    w, m = x, n
    for t in range(first + 1, T):
        h = tl.load(g + b + t - 1)
        r = tl.load(ratio + b + t)
        cut = (h == 0.0) | (r == 0.0)
        started = k < t
        near = started & (t - k < reach) if LAGS else started
        bound = tl.load(lags + t - k - 1, near, 0.0) if LAGS else float("inf")
        h, r = tl.where(cut, 0.0, h), tl.where(cut, 0.0, r)
        c = tl.load(cap + b + t)
        x, n, w, m, y, yn = big_float.one_step(x, n, w, m, h, r, c, bound, started, RECURSIVE, LAGS)
        tl.atomic_add(out + b + t, tl.sum(tl.where(near & (w != 0.0), big_float.value(w * y * begun, m + yn), 0.0), 0))


@triton.jit(do_not_specialize=["reach", "B", "how"])
def step_rows(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, pair, reach, B, T, how,
    gamma: tl.float64, p0: tl.float64, p1: tl.float64, p2: tl.float64, p3: tl.float64, share: tl.float64, bound: tl.float64,
    lam: tl.float64, out, RULE: tl.constexpr, READS: tl.constexpr, PAIR: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Compute Δ of a custom trace, whose step RULE is; p0 … p3 is its first carry."""
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    n = numbers(gamma, p0, p1, p2, p3, share, bound)
    b = (tl.program_id(0) % B).to(tl.int64)
    first = tl.program_id(0) // B * N
    k = first + tl.arange(0, N)
    one = tl.full([N], 1.0, tl.float64)
    w = one
    c0, c1, c2, c3 = one * n[1], one * n[2], one * n[3], one * n[4]
    total = td_error(a, b, k, T, n, RULE, READS)
    start_pair = tl.full([N], -1, tl.int64)
    now_pair = tl.full([], -2, tl.int64)
    if PAIR:
        start_pair = tl.load(pair + b * T + k, k < T, -1).to(tl.int64)
    for t in range(first + 1, T):
        h = leaves(a, b, t - 1, T, n, RULE, READS)
        inside = live(a, b * T + t, t < T, READS)
        h = tl.where(inside, h, 0.0)
        at = b * T + t
        if STATES & READS:
            at -= 1  # the action before
        pi, mu, rho, bad = probabilities(a, at, inside, READS)
        h = tl.where(h != 0.0, h + bad, 0.0)
        delta = td_error(a, b, t, T, n, RULE, READS)
        if PAIR:
            now_pair = tl.load(pair + b * T + t).to(tl.int64)
        started = k < t
        w = tl.where(started & (w != 0.0), w * h, w)
        w = tl.where(t - k < reach, w, 0.0)
        lag = (t - k).to(tl.float64)
        n0, n1, n2, n3, beta = RULE(c0, c1, c2, c3, pi, mu, rho, n[0] * 0.0 + lam, lag, start_pair, now_pair)
        c0, c1 = tl.where(started, n0, c0), tl.where(started, n1, c1)
        c2, c3 = tl.where(started, n2, c2), tl.where(started, n3, c3)
        total += tl.where(started & (w != 0.0), w * beta * delta, 0.0)
    write(x1, x5, out, b * T + k, k < T, total, how)
