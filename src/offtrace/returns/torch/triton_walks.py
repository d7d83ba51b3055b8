"""Triton kernels that go by the definition, step by step, in float64: whatever has no shorter way.

`step` is a placeholder, bound to a custom trace by `triton_rules.bound`.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from offtrace.returns.torch.triton_scan import leaves, link, live, number, probabilities, td_error, write


@triton.jit
def step(c0, c1, c2, c3, pi, mu, rho, lam, lag, start_pair, pair):
    """Bound to a custom trace."""
    return c0, c1, c2, c3, c0


@triton.jit
def walk(
    a, lags, reach, b, k, first, T, gamma, p,
    GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    RECURSIVE: tl.constexpr, LAGS: tl.constexpr,
):  # fmt: skip
    """Δ of the starts k [M, 1] of rows b [1, ROWS] by definition, in float64; looks every 8 steps whether anything is left."""
    total = td_error(a, b, k, T, gamma, GIVEN, GAMMAS, VALID)
    x = tl.zeros_like(total) + 1.0
    w = x
    t = first + 1
    left = 1
    while (t < T) & (left != 0):
        for _ in range(8):
            h, ratio, cap = link(a, b, t, T, gamma, p, GIVEN, GAMMAS, VALID, PI, MU, RHO)
            delta = td_error(a, b, t, T, gamma, GIVEN, GAMMAS, VALID)
            started = k < t
            w = tl.where(started, w * h, w)
            x = tl.where(started, tl.where(ratio != 0.0, x * ratio, 0.0), x)
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
    return total


@triton.jit
def walk_rows(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, out, lags, reach, B, T,
    gh, gm, gl, p0h, p0m, p0l, p1h, p1m, p1l, p2h, p2m, p2l, p3h, p3m, p3l,
    GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    ADD_Q: tl.constexpr, RECURSIVE: tl.constexpr, LAGS: tl.constexpr, ROWS: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Δ by its definition, M starts of ROWS rows at a time."""
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    gamma = number(gh, gm, gl)
    p = (number(p0h, p0m, p0l), number(p1h, p1m, p1l), number(p2h, p2m, p2l), number(p3h, p3m, p3l))
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[None, :]
    b = tl.minimum(row, B - 1)
    first = tl.program_id(1) * M
    k = first + tl.arange(0, M)[:, None]
    total = walk(a, lags, reach, b, k, first, T, gamma, p, GIVEN, GAMMAS, VALID, PI, MU, RHO, RECURSIVE, LAGS)
    write(a, out, b * T + k, (row < B) & (k < T), total, ADD_Q, VALID)


@triton.jit
def transpose_rows(
    gradient, g, ratio, cap, out, lags, reach, T, RECURSIVE: tl.constexpr, LAGS: tl.constexpr, N: tl.constexpr
):
    """e_t = Σ_{k≤t} w_{k:t} y_{k:t} G_k into `out`, which holds G; N starts of one row at a time."""
    b = tl.program_id(0).to(tl.int64) * T
    first = tl.program_id(1) * N
    k = first + tl.arange(0, N)
    w = tl.load(gradient + b + k, k < T, 0.0)
    x = tl.full([N], 1.0, tl.float64)
    for t in range(first + 1, T):
        h = tl.load(g + b + t - 1)
        r = tl.load(ratio + b + t)
        started = k < t
        w = tl.where(started, w * h, w)
        x = tl.where(started, tl.where(r != 0.0, x * r, 0.0), x)
        y = tl.minimum(x, tl.load(cap + b + t))
        if RECURSIVE:
            x = tl.where(started, y, x)
        if LAGS:
            near = started & (t - k < reach)
            y = tl.where(near, tl.minimum(y, tl.load(lags + t - k - 1, near, 0.0)), 0.0)
        tl.atomic_add(out + b + t, tl.sum(tl.where(started & (w != 0.0), w * y, 0.0), 0))


@triton.jit
def step_rows(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, out, pair, reach, B, T,
    gh, gm, gl, p0h, p0m, p0l, p1h, p1m, p1l, p2h, p2m, p2l, p3h, p3m, p3l, lh, lm, ll,
    GAMMAS: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    ADD_Q: tl.constexpr, PAIR: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Custom traces: p is the first carry, l their λ."""
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    gamma = number(gh, gm, gl)
    lam = number(lh, lm, ll)
    b = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * N
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
        pi, mu, rho = probabilities(a, b * T + t, inside, PI, MU, RHO)
        delta = td_error(a, b, t, T, gamma, False, GAMMAS, VALID)
        if PAIR:
            now_pair = tl.load(pair + b * T + t).to(tl.int64)
        started = k < t
        w = tl.where(started, w * h, w)
        w = tl.where(t - k < reach, w, 0.0)
        lag = (t - k).to(tl.float64)
        n0, n1, n2, n3, beta = step(c0, c1, c2, c3, pi, mu, rho, lam, lag, start_pair, now_pair)
        c0, c1 = tl.where(started, n0, c0), tl.where(started, n1, c1)
        c2, c3 = tl.where(started, n2, c2), tl.where(started, n3, c3)
        total += tl.where(started & (w != 0.0), w * beta * delta, 0.0)
    write(a, out, b * T + k, k < T, total, ADD_Q, VALID)
