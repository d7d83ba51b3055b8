"""Triton kernels. A trace passes from t−1 to t with h_t = discount_{t-1} decay_t and ratio_t; where either is 0 it is *cut*.

`linear_rows`   cap = ∞: the reverse recursion as an associative scan, O(T).
`prepare`, `sweep`   caps, in blocks of N steps. In a block let R_t, D_t be the products of ratio and h from its first step to t,

    C_t = cap_t / R_t,   E_t = D_t R_t δ_t.        A trace that comes with x = A and weight w is worth there

    w Σ_t E_t min(C_t, A)                          at read-out
    w Σ_t E_t min(min_{s≤t} C_s, A)                for a recursive cap, since x ↦ min(a, b x) is closed under composition,

so a pair (start, step) costs a minimum and a multiply-add, for a whole tile of starts × steps at once. Where
products within a block leave the range in which this is exact, the row is walked step by step (`walk`).
`walk_rows`    the definition, step by step, in float64: bounds by lag, and the transpose.
`step_rows`    custom traces.

`factors` and `step` are placeholders, bound to a rule by `triton_rules.bound`. With GIVEN, δ, g, ratio and cap come as arrays.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def factors(pi, mu, rho, p0, p1, p2, p3):
    """Bound to a rule."""
    return p0, p0, p0


@triton.jit
def step(c0, c1, c2, c3, pi, mu, rho, lam, lag, start_pair, pair):
    """Bound to a custom trace."""
    return c0, c1, c2, c3, c0


@triton.jit
def td_error(a, b, t, T, gamma, GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr):
    """δ_t in float64; 0 outside the row and at invalid steps."""
    inside = (t >= 0) & (t < T)
    at = b * T + t
    if GIVEN:
        return tl.load(a[0] + at, inside, 0.0).to(tl.float64)
    if VALID:
        inside &= tl.load(a[5] + at, inside, 0) != 0
    ends = tl.load(a[3] + at, inside, 0) != 0
    v = tl.load(a[2] + at, inside & (ends == 0), 0.0).to(tl.float64)
    g = gamma
    if GAMMAS:
        g = tl.load(a[6] + at, inside, 0.0).to(tl.float64)
    return (
        tl.load(a[0] + at, inside, 0.0).to(tl.float64) + g * v - tl.load(a[1] + at, inside, 0.0).to(tl.float64)
    )  # fmt: skip


@triton.jit
def probabilities(a, at, inside, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr):
    """π, μ, ρ in float64; 1 where nothing may be read or nothing is."""
    log_pi = tl.full([], 0.0, tl.float64)
    log_mu = tl.full([], 0.0, tl.float64)
    if PI or RHO:
        log_pi = tl.load(a[7] + at, inside, 0.0).to(tl.float64)
    if MU or RHO:
        log_mu = tl.load(a[8] + at, inside, 0.0).to(tl.float64)
    pi = tl.full([], 1.0, tl.float64)
    mu = tl.full([], 1.0, tl.float64)
    rho = tl.full([], 1.0, tl.float64)
    if PI:
        pi = tl.exp(log_pi)
    if MU:
        mu = tl.exp(log_mu)
    if RHO:
        rho = tl.exp(log_pi - log_mu)
    return pi, mu, rho


@triton.jit
def passes(a, b, t, T, gamma, GAMMAS: tl.constexpr, VALID: tl.constexpr):
    """discount_{t-1}, where a trace may pass from t−1 to t, else 0; and where that is."""
    inside = (t >= 1) & (t < T)
    at = b * T + t
    if VALID:
        inside &= (tl.load(a[5] + at, inside, 0) != 0) & (tl.load(a[5] + at - 1, inside, 0) != 0)
    inside &= (tl.load(a[3] + at - 1, inside, 1) == 0) & (tl.load(a[4] + at - 1, inside, 1) == 0)
    g = tl.where(inside, gamma, 0.0)
    if GAMMAS:
        g = tl.load(a[6] + at - 1, inside, 0.0).to(tl.float64)
    return g, inside


@triton.jit
def link(
    a, b, t, T, gamma, p, GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr,
    PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
):  # fmt: skip
    """h_t, ratio_t and cap_t in float64; h and ratio are both 0 where the trace is cut."""
    if GIVEN:
        inside = (t >= 1) & (t < T)
        at = b * T + t
        h = tl.load(a[1] + at - 1, inside, 0.0).to(tl.float64)
        ratio = tl.load(a[7] + at, inside, 0.0).to(tl.float64)
        cap = tl.load(a[8] + at, inside, 0.0).to(tl.float64)
    else:
        h, inside = passes(a, b, t, T, gamma, GAMMAS, VALID)
        pi, mu, rho = probabilities(a, b * T + t, inside, PI, MU, RHO)
        decay, ratio, cap = factors(pi, mu, rho, p[0], p[1], p[2], p[3])
        h = h * decay
        ratio = tl.where(inside, ratio, 0.0)
        cap = tl.where(inside, cap, 0.0)
    cut = (h == 0.0) | (ratio == 0.0)
    return tl.where(cut, 0.0, h), tl.where(cut, 0.0, ratio), cap


@triton.jit
def then(later_x, later_c, x, c):
    """x + c · later, as a pair that can be composed further; a zero factor passes nothing on, not even an overflow."""
    return x + tl.where(c != 0.0, c * later_x, 0.0), c * later_c


@triton.jit
def times(a, b):
    """The product."""
    return a * b


@triton.jit
def least(a, b):
    """The smaller one."""
    return tl.minimum(a, b)


@triton.jit
def plus(a, b):
    """The sum."""
    return a + b


@triton.jit
def number(high, middle, low):
    """Triton passes floats in float32: three of them make a float64."""
    return tl.full([], 0.0, tl.float64) + low + middle + high


@triton.jit
def write(a, out, at, inside, correction, ADD_Q: tl.constexpr, VALID: tl.constexpr):
    """Store Δ or q + Δ, and 0 at invalid steps."""
    live = inside
    if VALID:
        live &= tl.load(a[5] + at, inside, 0) != 0
    if ADD_Q:
        correction = correction + tl.load(a[1] + at, live, 0.0)
    tl.store(out + at, tl.where(live, correction, 0.0).to(out.dtype.element_ty), inside)


@triton.jit
def linear_rows(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, out, B, T,
    gh, gm, gl, p0h, p0m, p0l, p1h, p1m, p1l, p2h, p2m, p2l, p3h, p3m, p3l,
    GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    ADD_Q: tl.constexpr, ROWS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Δ_k = δ_k + h_{k+1} ratio_{k+1} Δ_{k+1}, in chunks of N steps from the row's end on."""
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    gamma = number(gh, gm, gl)
    p = (number(p0h, p0m, p0l), number(p1h, p1m, p1l), number(p2h, p2m, p2l), number(p3h, p3m, p3l))
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    b = tl.minimum(row, B - 1)
    lane = tl.arange(0, N)[None, :]
    carry = tl.zeros([ROWS, 1], tl.float64)
    chunks = tl.cdiv(T, N)
    for i in range(chunks):
        t = (chunks - 1 - i) * N + lane
        delta = td_error(a, b, t, T, gamma, GIVEN, GAMMAS, VALID)
        h, ratio, _ = link(a, b, t + 1, T, gamma, p, GIVEN, GAMMAS, VALID, PI, MU, RHO)
        x, c = tl.associative_scan((delta, h * ratio), 1, then, reverse=True)
        x = x + tl.where(c != 0.0, c * carry, 0.0)
        carry = tl.sum(tl.where(lane == 0, x, 0.0), 1)[:, None]
        write(a, out, b * T + t, (row < B) & (t < T), x, ADD_Q, VALID)


@triton.jit
def walk(
    a, lags, reach, b, k, first, T, gamma, p, x, w, total,
    GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    RECURSIVE: tl.constexpr, LAGS: tl.constexpr,
):  # fmt: skip
    """The starts k of row b, step by step from `first` on, in float64; looks every 16 steps whether anything is left."""
    t = first
    left = 1
    while (t < T) & (left != 0):
        for _ in range(16):
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
        left = tl.max(((w != 0.0) & (x != 0.0) & (k < T)).to(tl.int32), 0)
        if LAGS:
            left = left & (t - tl.max(k, 0) < reach).to(tl.int32)
    return total


@triton.jit
def walk_rows(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, out, lags, reach, B, T,
    gh, gm, gl, p0h, p0m, p0l, p1h, p1m, p1l, p2h, p2m, p2l, p3h, p3m, p3l,
    GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    ADD_Q: tl.constexpr, RECURSIVE: tl.constexpr, LAGS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Δ by its definition, N starts of one row at a time."""
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    gamma = number(gh, gm, gl)
    p = (number(p0h, p0m, p0l), number(p1h, p1m, p1l), number(p2h, p2m, p2l), number(p3h, p3m, p3l))
    b = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * N
    k = first + tl.arange(0, N)
    one = tl.full([N], 1.0, tl.float64)
    total = td_error(a, b, k, T, gamma, GIVEN, GAMMAS, VALID)
    total = walk(
        a, lags, reach, b, k, first + 1, T, gamma, p, one, one, total,
        GIVEN, GAMMAS, VALID, PI, MU, RHO, RECURSIVE, LAGS,
    )  # fmt: skip
    write(a, out, b * T + k, k < T, total, ADD_Q, VALID)


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
        h, inside = passes(a, b, t, T, gamma, GAMMAS, VALID)
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


@triton.jit
def prepare(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, products, weights, caps, lowest, sums, segments, ends, wide,
    B, T, blocks,
    gh, gm, gl, p0h, p0m, p0l, p1h, p1m, p1l, p2h, p2m, p2l, p3h, p3m, p3l, most, small,
    GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    RECURSIVE: tl.constexpr, ROWS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """R, D, C, min C and E of blocks, how often the trace was cut in a block up to t, and R, D of the whole block."""
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    gamma = number(gh, gm, gl)
    p = (number(p0h, p0m, p0l), number(p1h, p1m, p1l), number(p2h, p2m, p2l), number(p3h, p3m, p3l))
    block = tl.program_id(1)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    b = tl.minimum(row, B - 1)[:, None]
    lane = tl.arange(0, N)[None, :]
    t = block * N + lane
    delta = td_error(a, b, t, T, gamma, GIVEN, GAMMAS, VALID)
    h, ratio, cap = link(a, b, t, T, gamma, p, GIVEN, GAMMAS, VALID, PI, MU, RHO)
    cut = ratio == 0.0
    segment = tl.associative_scan(cut.to(tl.int32), 1, plus)
    R = tl.associative_scan(tl.where(cut, 1.0, ratio), 1, times)
    D = tl.associative_scan(tl.where(cut, 1.0, h), 1, times)
    C = cap / R
    size = tl.abs(delta)
    odd = (most < R) | (small > R) | (1e5 * small > D) | (1e-4 * small > D * R) | (size > most)
    odd |= ((size > 0.0) & (size < 1e6 * small)) | ((cap > 0.0) & (cap < 1e6 * small)) | (cap > most)
    at = b * (blocks * N) + t
    inside = (row < B)[:, None] & (t < blocks * N)
    kind = products.dtype.element_ty
    tl.store(products + at, R.to(kind), inside)
    tl.store(weights + at, D.to(kind), inside)
    tl.store(caps + at, C.to(kind), inside)
    tl.store(sums + at, (D * R * delta).to(kind), inside)
    tl.store(segments + at, segment.to(tl.int8), inside)
    if RECURSIVE:
        tl.store(lowest + at, tl.associative_scan(C, 1, least).to(kind), inside)
    each = row * blocks + block
    tl.store(ends + 2 * each, tl.sum(tl.where(lane == N - 1, R, 0.0), 1), row < B)
    tl.store(ends + 2 * each + 1, tl.sum(tl.where(lane == N - 1, D, 0.0), 1), row < B)
    tl.store(wide + each, tl.max((odd & (t < T)).to(tl.int32), 1), row < B)


@triton.jit
def sweep(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, products, weights, caps, lowest, sums, segments, ends, wide, out,
    B, T, blocks,
    gh, gm, gl, p0h, p0m, p0l, p1h, p1m, p1l, p2h, p2m, p2l, p3h, p3m, p3l,
    GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    ADD_Q: tl.constexpr, RECURSIVE: tl.constexpr, N: tl.constexpr, MOST_BLOCKS: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Δ of the N starts of one block of one row."""
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    b = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    i = tl.arange(0, N)
    k = block * N + i
    j = tl.arange(0, MOST_BLOCKS)
    if tl.max(tl.load(wide + b * blocks + j, (j >= block) & (j < blocks), 0), 0) != 0:
        gamma = number(gh, gm, gl)
        p = (number(p0h, p0m, p0l), number(p1h, p1m, p1l), number(p2h, p2m, p2l), number(p3h, p3m, p3l))
        one = tl.full([N], 1.0, tl.float64)
        whole = td_error(a, b, k, T, gamma, GIVEN, GAMMAS, VALID)
        whole = walk(
            a, x0, 0, b, k, block * N + 1, T, gamma, p, one, one, whole,
            GIVEN, GAMMAS, VALID, PI, MU, RHO, RECURSIVE, False,
        )  # fmt: skip
        write(a, out, b * T + k, k < T, whole, ADD_Q, VALID)
    else:
        at = b * (blocks * N) + k
        R, D = tl.load(products + at), tl.load(weights + at)
        C, E, segment = tl.load(caps + at), tl.load(sums + at), tl.load(segments + at).to(tl.int32)
        # Steps go down and starts across: a thread then sums its own starts, without asking others.
        reached = segment[:, None] == segment[None, :]
        x = 1.0 / R
        clip = tl.where(reached & (i[:, None] > i[None, :]), C[:, None], float("inf"))
        if RECURSIVE:
            clip = tl.associative_scan(clip, 0, least)
        y = tl.minimum(clip, x[None, :])
        total = tl.sum(tl.where(reached & (i[:, None] >= i[None, :]), E[:, None] * y, 0.0), 0)
        if RECURSIVE:
            x = tl.minimum(x, tl.min(clip, 0))
        end = tl.load(ends + 2 * (b * blocks + block)).to(tl.float64)
        A = x.to(tl.float64) * end
        w = tl.load(ends + 2 * (b * blocks + block) + 1) / D.to(tl.float64)
        w = tl.where(segment == tl.max(segment, 0), w, 0.0)
        total = total / D
        goes_on = 1
        n = block + 1
        while (n < blocks) & (goes_on != 0):
            at = b * (blocks * N) + n * N + i
            E, cuts = tl.load(sums + at), tl.load(segments + at)
            C = tl.load(lowest + at) if RECURSIVE else tl.load(caps + at)
            E = tl.where(cuts == 0, E, 0.0)
            x = tl.minimum(A, LARGEST).to(E.dtype)
            total += w.to(E.dtype) * tl.sum(E[:, None] * tl.minimum(C[:, None], x[None, :]), 0)
            goes_on = (tl.max(cuts.to(tl.int32), 0) == 0).to(tl.int32)
            end = tl.load(ends + 2 * (b * blocks + n))
            if RECURSIVE:
                A = tl.minimum(A, tl.min(C, 0).to(tl.float64))
            A = A * end
            w = w * tl.load(ends + 2 * (b * blocks + n) + 1)
            n += 1
        write(a, out, b * T + k, k < T, total, ADD_Q, VALID)
