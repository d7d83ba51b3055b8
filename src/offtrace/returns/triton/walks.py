"""Triton kernels that sum by the definition, step by step, in float64, for everything that has no shorter way.

`step` is a placeholder, bound to a custom trace by `rules.bound`.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from offtrace.returns.triton import scaled
from offtrace.returns.triton.scan import WALK, leaves, link, live, number, probabilities, td_error, write

MOST, LEAST = tl.constexpr(2.0**70), tl.constexpr(2.0**-900)
"""Products between these are walked in float64: a weight that has vanished beside them is negligible."""


@triton.jit
def step(c0, c1, c2, c3, pi, mu, rho, lam, lag, start_pair, pair):
    """Stand in for a custom trace's step; `rules.bound` puts it here."""
    return c0, c1, c2, c3, c0


@triton.jit
def walk(
    a, lags, reach, b, k, first, T, gamma, p,
    GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    RECURSIVE: tl.constexpr, LAGS: tl.constexpr,
):  # fmt: skip
    """Return Δ of the starts k [M, 1] of rows b [1, ROWS] by definition; every 8 steps it looks whether a trace is left.

    The second result is 1 where a product has left the range that float64 holds: then `walk_of_any_size` is needed.
    """
    total = td_error(a, b, k, T, gamma, GIVEN, GAMMAS, VALID)
    x = tl.zeros_like(total) + 1.0
    w = x
    odd = tl.zeros_like(total).to(tl.int32)
    t = first + 1
    left = 1
    while (t < T) & (left != 0):
        for _ in range(8):
            h, ratio, cap = link(a, b, t, T, gamma, p, GIVEN, GAMMAS, VALID, PI, MU, RHO, RECURSIVE)
            delta = td_error(a, b, t, T, gamma, GIVEN, GAMMAS, VALID)
            started = k < t
            w = tl.where(started, w * h, w)
            x = tl.where(started, tl.where(ratio != 0.0, x * ratio, 0.0), x)
            fine = (x <= MOST) & (x >= LEAST)
            odd |= (started & (w != 0.0) & (fine == 0)).to(tl.int32)
            y = tl.minimum(x, cap)
            if RECURSIVE:
                x = tl.where(started, y, x)
            if LAGS:
                near = started & (t - k < reach)
                y = tl.where(near, tl.minimum(y, tl.load(lags + t - k - 1, near, 0.0)), 0.0)
            total += tl.where(started & (w != 0.0), w * y * delta, 0.0)
            t += 1
        left = tl.max(((w != 0.0) & (x != 0.0) & (k < T)).to(tl.int32))
        if LAGS:
            left = left & (t - tl.max(k) < reach).to(tl.int32)
    return total, odd


@triton.jit
def walk_of_any_size(
    a, lags, reach, b, k, offset, first, end, T, gamma, p,
    GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    RECURSIVE: tl.constexpr, LAGS: tl.constexpr,
):  # fmt: skip
    """Return Δ by definition, with x and w as f · 2ⁿ; of steps from `first` up to `end`, as counted from each row's `offset`."""
    total = td_error(a, b, k, T, gamma, GIVEN, GAMMAS, VALID)
    x = tl.zeros_like(total) + 1.0
    n = tl.zeros_like(total).to(tl.int64)
    w, m = x, n
    t = first + 1
    now = offset + t
    left = 1
    while (t < end) & (left != 0):
        for _ in range(8):
            now = offset + t
            h, ratio, cap = link(a, b, now, T, gamma, p, GIVEN, GAMMAS, VALID, PI, MU, RHO, RECURSIVE)
            h = tl.where(t < end, h, 0.0)
            delta = td_error(a, b, now, T, gamma, GIVEN, GAMMAS, VALID)
            started = k < now
            near = started & (now - k < reach) if LAGS else started
            bound = tl.load(lags + now - k - 1, near, 0.0) if LAGS else float("inf")
            x, n, w, m, y, yn = one_step(x, n, w, m, h, ratio, cap, bound, started, RECURSIVE, LAGS)
            total += tl.where(near & (w != 0.0), scaled.value(w * y * delta, m + yn), 0.0)
            t += 1
        left = tl.max(((w != 0.0) & (x != 0.0) & (k < T)).to(tl.int32))
        if LAGS:
            left = left & (tl.min(now - k) < reach).to(tl.int32)
    return total


@triton.jit
def one_step(x, n, w, m, h, ratio, cap, bound, started, RECURSIVE: tl.constexpr, LAGS: tl.constexpr):
    """Return x · 2ⁿ and w · 2ᵐ one step later, where the trace has started, and y · 2^yn, which is read off."""
    h, hn = scaled.split(h)
    ratio, rn = scaled.split(ratio)
    cap, cn = scaled.split(cap)
    later, later_n = scaled.times(w, m, h, hn)
    w, m = tl.where(started, later, w), tl.where(started, later_n, m)
    later, later_n = scaled.times(x, n, ratio, rn)
    x, n = tl.where(started, later, x), tl.where(started, later_n, n)
    clipped = scaled.above(x, n, cap, cn)
    y, yn = tl.where(clipped, cap, x), tl.where(clipped, cn, n)
    if RECURSIVE:
        x, n = tl.where(started, y, x), tl.where(started, yn, n)
    if LAGS:
        bound, bn = scaled.split(bound)
        clipped = scaled.above(y, yn, bound, bn)
        y, yn = tl.where(clipped, bound, y), tl.where(clipped, bn, yn)
    return x, n, w, m, y, yn


@triton.jit
def walk_rows(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, lags, stage, done, reach, B, T, groups,
    gh, gm, gl, p0h, p0m, p0l, p1h, p1m, p1l, p2h, p2m, p2l, p3h, p3m, p3l, out,
    GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    ADD_Q: tl.constexpr, RECURSIVE: tl.constexpr, LAGS: tl.constexpr, SOME: tl.constexpr, ROWS: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Compute Δ by its definition, M starts of ROWS rows at a time; with SOME only in rows that are left to this stage."""
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    gamma = number(gh, gm, gl)
    p = (number(p0h, p0m, p0l), number(p1h, p1m, p1l), number(p2h, p2m, p2l), number(p3h, p3m, p3l))
    row = (tl.program_id(0) % groups * ROWS + tl.arange(0, ROWS)).to(tl.int64)[None, :]
    b = tl.minimum(row, B - 1)
    first = tl.program_id(0) // groups * M
    k = first + tl.arange(0, M)[:, None]
    wanted = row < B
    if SOME:
        wanted = wanted & (tl.load(stage + b) == WALK)
    if tl.max(wanted.to(tl.int32)) != 0:
        total, beyond = walk(
            a, lags, reach, b, k, first, T, gamma, p, GIVEN, GAMMAS, VALID, PI, MU, RHO, RECURSIVE, LAGS
        )
        if tl.max(beyond) != 0:
            total = walk_of_any_size(
                a, lags, reach, b, k, 0, first, T, T, gamma, p, GIVEN, GAMMAS, VALID, PI, MU, RHO, RECURSIVE, LAGS
            )
        write(a, out, b * T + k, wanted & (k < T), total, ADD_Q, VALID)


@triton.jit
def transpose_rows(
    gradient, g, ratio, cap, out, lags, reach, B, T, RECURSIVE: tl.constexpr, LAGS: tl.constexpr, N: tl.constexpr
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
        x, n, w, m, y, yn = one_step(
            x,
            n,
            w,
            m,
            tl.where(cut, 0.0, h),
            tl.where(cut, 0.0, r),
            tl.load(cap + b + t),
            bound,
            started,
            RECURSIVE,
            LAGS,
        )
        tl.atomic_add(out + b + t, tl.sum(tl.where(near & (w != 0.0), scaled.value(w * y * begun, m + yn), 0.0), 0))


@triton.jit
def step_rows(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, out, pair, reach, B, T,
    gh, gm, gl, p0h, p0m, p0l, p1h, p1m, p1l, p2h, p2m, p2l, p3h, p3m, p3l, lh, lm, ll,
    GAMMAS: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    ADD_Q: tl.constexpr, PAIR: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Compute Δ of a custom trace; p0 … p3 is its first carry, and l its λ."""
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    gamma = number(gh, gm, gl)
    lam = number(lh, lm, ll)
    b = (tl.program_id(0) % B).to(tl.int64)
    first = tl.program_id(0) // B * N
    k = first + tl.arange(0, N)
    one = tl.full([N], 1.0, tl.float64)
    w = one
    c0, c1, c2, c3 = (
        one * number(p0h, p0m, p0l),
        one * number(p1h, p1m, p1l),
        one * number(p2h, p2m, p2l),
        one * number(p3h, p3m, p3l),
    )
    total = td_error(a, b, k, T, gamma, False, GAMMAS, VALID)
    start_pair = tl.full([N], -1, tl.int64)
    now_pair = tl.full([], -2, tl.int64)
    if PAIR:
        start_pair = tl.load(pair + b * T + k, k < T, -1).to(tl.int64)
    for t in range(first + 1, T):
        h = leaves(a, b, t - 1, T, gamma, False, GAMMAS, VALID)
        inside = live(a, b * T + t, t < T, VALID)
        h = tl.where(inside, h, 0.0)
        pi, mu, rho, bad = probabilities(a, b * T + t, inside, PI, MU, RHO)
        h = tl.where(h != 0.0, h + bad, 0.0)
        delta = td_error(a, b, t, T, gamma, False, GAMMAS, VALID)
        if PAIR:
            now_pair = tl.load(pair + b * T + t).to(tl.int64)
        started = k < t
        w = tl.where(started & (w != 0.0), w * h, w)
        w = tl.where(t - k < reach, w, 0.0)
        lag = (t - k).to(tl.float64)
        n0, n1, n2, n3, beta = step(c0, c1, c2, c3, pi, mu, rho, lam, lag, start_pair, now_pair)
        c0, c1 = tl.where(started, n0, c0), tl.where(started, n1, c1)
        c2, c3 = tl.where(started, n2, c2), tl.where(started, n3, c3)
        total += tl.where(started & (w != 0.0), w * beta * delta, 0.0)
    write(a, out, b * T + k, k < T, total, ADD_Q, VALID)
