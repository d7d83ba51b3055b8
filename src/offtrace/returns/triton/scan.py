"""The functions that all Triton kernels share, and the kernel for traces without a cap.

A trace leaves t−1 with g_{t-1} = discount_{t-1} and enters t with decay_t and ratio_t; where any of them is 0 it is *cut*.
Caps are in `caps`; horizons, bounds by lag, custom traces and the transpose in `walks`.

`factors` is a placeholder, bound to a rule by `rules.bound`. The arrays come as a tuple: reward, q, next_value,
terminated, truncated, valid, gamma, log_pi, log_mu, each [B, T]; with GIVEN it is δ, g, five that are not read, ratio and cap.

A kernel's arguments are arrays that it reads, numbers, arrays that it writes, constants. What it changes stands among both
kinds of arrays, as JAX wants it; it is then read where it is written.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from offtrace.returns.triton import scaled

WHOLE, MAPS, FROM_ENDS, REST = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
"""The passes of `linear_rows`."""
SWEEP, TREE, WALK = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""The stages of a row with a cap: what is to be done with it, or was done last."""
LARGEST = tl.constexpr(1e30)
"""A cap at read-out that is larger is taken as one that is not known."""
LITTLE, MUCH = tl.constexpr(70.0), tl.constexpr(900.0)
"""Powers of two: a product that is lost below the range of float64 and then grows by less than `LITTLE` stays negligible; one
that moves by less than `MUCH` either way stays within it."""


@triton.jit
def factors(pi, mu, rho, p0, p1, p2, p3):
    """Stand in for the rule's factors; `rules.bound` puts them here."""
    return p0, p0, p0


@triton.jit
def times(a, b):
    """Return the product, for scans."""
    return a * b


@triton.jit
def lower(a, b):
    """Return the smaller one, for scans."""
    return tl.minimum(a, b)


@triton.jit
def live(a, at, inside, VALID: tl.constexpr):
    """Tell where there is a step that is not padding."""
    if VALID:
        inside = inside & (tl.load(a[5] + at, inside, 0) != 0)
    return inside


# Loads are masked by the row's ends alone, and what must not be read is selected away: so they can be vectors.


@triton.jit
def td_error(a, b, t, T, gamma, GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr):
    """Return δ_t in float64; 0 outside the row and at invalid steps."""
    inside = (t >= 0) & (t < T)
    at = b * T + t
    delta = tl.load(a[0] + at, inside, 0.0).to(tl.float64)
    if not GIVEN:
        q = tl.load(a[1] + at, inside, 0.0).to(tl.float64)
        v = tl.load(a[2] + at, inside, 0.0).to(tl.float64)
        v = tl.where(tl.load(a[3] + at, inside, 0) != 0, 0.0, v)
        g = gamma
        if GAMMAS:
            g = tl.load(a[6] + at, inside, 0.0).to(tl.float64)
        delta = delta + g * v - q
        if VALID:
            delta = tl.where(live(a, at, inside, VALID), delta, 0.0)
    return delta


@triton.jit
def e_to(x):
    """Return e^x; what is below the smallest normal number counts as 0."""
    return tl.where(x < -708.0, 0.0, tl.exp(x))


@triton.jit
def probabilities(a, at, inside, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr):
    """Return π, μ, ρ in float64, 1 where nothing is read; and NaN where no such action could have been taken, else 0."""
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
        pi = e_to(log_pi)
    if MU:
        mu = e_to(log_mu)
    if RHO:
        rho = e_to(log_pi - log_mu)
    # μ = 0, π infinite, or either NaN. A rule's own xp.where could hide it, so it is told beside them.
    bad = tl.where(tl.abs(log_mu) < float("inf"), tl.where(log_pi < float("inf"), 0.0, float("nan")), float("nan"))
    return pi, mu, rho, bad


@triton.jit
def leaves(a, b, t, T, gamma, GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr):
    """Return discount_t in float64 where a trace may leave step t for the next, else 0."""
    inside = (t >= 0) & (t < T)
    at = b * T + t
    if GIVEN:
        g = tl.load(a[1] + at, inside, 0.0).to(tl.float64)
    else:
        goes_on = (tl.load(a[3] + at, inside, 1) == 0) & (tl.load(a[4] + at, inside, 1) == 0)
        g = gamma
        if GAMMAS:
            g = tl.load(a[6] + at, inside, 0.0).to(tl.float64)
        g = tl.where(goes_on & live(a, at, inside, VALID), g, 0.0)
    return g


@triton.jit
def enters(
    a, b, t, T, p, GIVEN: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    RECURSIVE: tl.constexpr,
):  # fmt: skip
    """Return decay_t, ratio_t and cap_t in float64; all are 0 where no trace may enter. ratio is NaN where it is not known."""
    inside = (t >= 0) & (t < T)
    at = b * T + t
    if GIVEN:
        decay = tl.full([], 1.0, tl.float64)
        ratio = tl.load(a[7] + at, inside, 0.0).to(tl.float64)
        cap = tl.load(a[8] + at, inside, 0.0).to(tl.float64)
    else:
        pi, mu, rho, bad = probabilities(a, at, inside, PI, MU, RHO)
        decay, ratio, cap = factors(pi, mu, rho, p[0], p[1], p[2], p[3])
        # An infinite ratio clips every trace to a recursive cap. Without one it is as good as unknown.
        ratio = ratio + bad
        if not RECURSIVE:
            ratio = tl.where(ratio < float("inf"), ratio, float("nan"))
        inside = live(a, at, inside, VALID)
    return tl.where(inside, decay, 0.0), tl.where(inside, ratio, 0.0), tl.where(inside, cap, 0.0)


@triton.jit
def link(
    a, b, t, T, gamma, p, GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr,
    PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr, RECURSIVE: tl.constexpr,
):  # fmt: skip
    """Return h_t, ratio_t and cap_t in float64; h and ratio are both 0 where the trace is cut."""
    decay, ratio, cap = enters(a, b, t, T, p, GIVEN, VALID, PI, MU, RHO, RECURSIVE)
    h = leaves(a, b, t - 1, T, gamma, GIVEN, GAMMAS, VALID) * decay
    cut = (h == 0.0) | (ratio == 0.0)
    return tl.where(cut, 0.0, h), tl.where(cut, 0.0, ratio), cap


@triton.jit
def fill(value, size, out, N: tl.constexpr):
    """Write one value to `size` places."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, value, i < size)


@triton.jit
def number(high, middle, low):
    """Add three float32 to a float64: Triton passes floats in float32 (`plans.split`)."""
    none = tl.full([], 0.0, tl.float64)
    high, middle, low = none + high, none + middle, none + low
    exponent = tl.floor(low / 64.0)
    low = low - exponent * 64.0 - 32.0
    return scaled.value(high * 536870912.0 + middle * 32.0 + low, exponent.to(tl.int64) - 53)


@triton.jit
def write(a, out, at, inside, correction, ADD_Q: tl.constexpr, VALID: tl.constexpr):
    """Store Δ or q + Δ; invalid steps get 0."""
    if ADD_Q:
        correction = correction + tl.load(a[1] + at, inside, 0.0)
    if VALID:
        correction = tl.where(live(a, at, inside, VALID), correction, 0.0)
    tl.store(out + at, correction.to(out.dtype.element_ty), inside)


@triton.jit
def apart(x, LANES: tl.constexpr):
    """Split [LANES, 8] into eight [LANES]."""
    even, odd = tl.split(tl.reshape(x, (LANES, 4, 2)))
    x04, x26 = tl.split(tl.reshape(even, (LANES, 2, 2)))
    x15, x37 = tl.split(tl.reshape(odd, (LANES, 2, 2)))
    x0, x4 = tl.split(x04)
    x1, x5 = tl.split(x15)
    x2, x6 = tl.split(x26)
    x3, x7 = tl.split(x37)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def together(x0, x1, x2, x3, x4, x5, x6, x7, LANES: tl.constexpr):
    """Join eight [LANES] to [LANES, 8]."""
    even = tl.reshape(tl.join(tl.join(x0, x4), tl.join(x2, x6)), (LANES, 4))
    odd = tl.reshape(tl.join(tl.join(x1, x5), tl.join(x3, x7)), (LANES, 4))
    return tl.reshape(tl.join(even, odd), (LANES, 8))


@triton.jit
def passed(c, x):
    """Return c · x; it is 0 where c is 0, even if x has overflowed."""
    return tl.where(c != 0.0, c * x, 0.0)


@triton.jit
def then(later_x, later_g, later_s, x, g, s):
    """Combine steps that are worth x, left with g and entered with s, with the later ones."""
    c = passed(g, later_s)
    return x + passed(c, later_x), passed(c, later_g), s


@triton.jit
def bits(s, g):
    """Return how many powers of two a step can raise and lower a product by, through s and g ≤ 1; a zero ends the product."""
    s = tl.log2(tl.where(s > 0.0, s, 1.0).to(tl.float32))
    g = tl.log2(tl.where(g > 0.0, g, 1.0).to(tl.float32))
    return tl.maximum(s, 0.0), tl.maximum(-s, 0.0) - g


@triton.jit
def beyond(up, down):
    """Tell whether products that are raised and lowered by so many powers of two may leave the range of floats."""
    return (up > LITTLE) & ((up > MUCH) | (down > MUCH))


@triton.jit
def linear_ends(maps, odd, B, parts, PARTS: tl.constexpr):
    """Turn what the parts of a row do into Δ of the step after each, and what that step is entered with. Mark odd rows."""
    b = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PARTS)[None, :]  # numbered from the row's end
    at = maps + (b * parts + parts - 1 - i) * 5
    there = i < parts
    x, s = tl.load(at, there, 0.0), tl.load(at + 1, there, 0.0)
    g = tl.load(at + 2, there, 0.0)
    up, down = tl.sum(tl.load(at + 3, there, 0.0), 1), tl.sum(tl.load(at + 4, there, 0.0), 1)
    x, g, s = tl.associative_scan((x, g, s), 1, then)
    tl.debug_barrier()  # all was read before anything is written
    before = maps + (b * parts + parts - 2 - i) * 5
    tl.store(before, x, i < parts - 1)
    tl.store(before + 1, s, i < parts - 1)
    last = maps + (b * parts + parts - 1) * 5 + tl.arange(0, 1)
    tl.store(last, tl.zeros([1], tl.float64))
    tl.store(last + 1, tl.zeros([1], tl.float64))
    tl.store(odd + b + tl.arange(0, 1), beyond(up, down).to(tl.int32))


@triton.jit
def linear_rows(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, maps, odd, out, B, T, parts, chunks,
    gh, gm, gl, p0h, p0m, p0l, p1h, p1m, p1l, p2h, p2m, p2l, p3h, p3m, p3l,
    GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    ADD_Q: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, PASS: tl.constexpr,
):  # fmt: skip
    """Compute Δ_k = δ_k + g_k s_{k+1} Δ_{k+1}, g = discount, s = decay · ratio, in chunks of GROUPS · 8 steps from the row's end.

    Eight steps are one thread's and go one by one; groups of eight, numbered from the end, are scanned. (A scan in reverse
    would be one line; Triton's turns all lanes round, which takes longer than all the rest.)

    Products of s that may leave the range of floats are scanned again, by `linear_of_any_size`.

    Where there are few rows, each is taken in `parts` of so many chunks, in three passes: MAPS stores what a part does to the Δ
    that follows it, `linear_ends` turns that into Δ at the parts' ends, from which FROM_ENDS goes on. Rows that are marked as odd
    are left to a fourth, REST, which takes them WHOLE.
    """
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    gamma = number(gh, gm, gl)
    p = (number(p0h, p0m, p0l), number(p1h, p1m, p1l), number(p2h, p2m, p2l), number(p3h, p3m, p3l))
    LANES: tl.constexpr = ROWS * GROUPS
    lane = tl.arange(0, LANES)[:, None]
    part = tl.program_id(0) % parts
    rows = tl.program_id(0) // parts * ROWS
    row = (rows + lane // GROUPS).to(tl.int64)
    b = tl.minimum(row, B - 1)
    group = tl.arange(0, GROUPS)[None, :]
    own = rows + tl.arange(0, ROWS)
    map_at = maps + (own.to(tl.int64) * parts + part) * 5
    if PASS == REST:
        if tl.max(tl.load(odd + own, own < B, 0)) == 0:
            return
    later = tl.broadcast_to(tl.maximum(group - 1, 0), (ROWS, GROUPS))
    end_x = tl.zeros([ROWS, 1], tl.float64)  # Δ of the step after the chunk, and what it is entered with
    end_s = tl.zeros([ROWS, 1], tl.float64)
    end_g = tl.zeros([ROWS, 1], tl.float64)  # what the part is left with
    if PASS == FROM_ENDS:
        end_x = tl.load(map_at, own < B, 0.0)[:, None]
        end_s = tl.load(map_at + 1, own < B, 0.0)[:, None]
    up = tl.zeros([ROWS, GROUPS], tl.float32)
    down = tl.zeros([ROWS, GROUPS], tl.float32)
    for i in range(chunks):
        t = (((part + 1) * chunks - i) * GROUPS - 1 - lane % GROUPS) * 8 + tl.arange(0, 8)[None, :]
        delta = td_error(a, b, t, T, gamma, GIVEN, GAMMAS, VALID)
        decay, ratio, _ = enters(a, b, t, T, p, GIVEN, VALID, PI, MU, RHO, False)
        leaving, entering = leaves(a, b, t, T, gamma, GIVEN, GAMMAS, VALID), passed(decay, ratio)
        more, less = bits(entering * leaving if GIVEN else entering, tl.full([], 1.0, tl.float64) if GIVEN else leaving)
        up += tl.reshape(tl.sum(more, 1), (ROWS, GROUPS))
        down += tl.reshape(tl.sum(less, 1), (ROWS, GROUPS))
        d0, d1, d2, d3, d4, d5, d6, d7 = apart(delta, LANES)
        s0, s1, s2, s3, s4, s5, s6, s7 = apart(entering, LANES)
        g0, g1, g2, g3, g4, g5, g6, g7 = apart(leaving, LANES)
        c0, c1, c2, c3 = passed(g0, s1), passed(g1, s2), passed(g2, s3), passed(g3, s4)
        c4, c5, c6 = passed(g4, s5), passed(g5, s6), passed(g6, s7)
        x = d5 + passed(c5, d6 + passed(c6, d7))
        x = d2 + passed(c2, d3 + passed(c3, d4 + passed(c4, x)))
        x = d0 + passed(c0, d1 + passed(c1, x))
        g = passed(c0, passed(c1, passed(c2, passed(c3, passed(c4, passed(c5, passed(c6, g7)))))))
        x, g, s = tl.associative_scan(
            (tl.reshape(x, (ROWS, GROUPS)), tl.reshape(g, (ROWS, GROUPS)), tl.reshape(s0, (ROWS, GROUPS))), 1, then
        )
        if PASS == MAPS:
            alone = tl.sum(tl.where(group == GROUPS - 1, g, 0.0), 1)[:, None]
            end_g = tl.where(i == 0, alone, passed(passed(alone, end_s), end_g))
        x, g, s = then(end_x, 0.0, end_s, x, g, s)
        next_x = tl.reshape(tl.where(group == 0, end_x, tl.gather(x, later, 1)), (LANES,))
        next_s = tl.reshape(tl.where(group == 0, end_s, tl.gather(s, later, 1)), (LANES,))
        end_x = tl.sum(tl.where(group == GROUPS - 1, x, 0.0), 1)[:, None]
        end_s = tl.sum(tl.where(group == GROUPS - 1, s, 0.0), 1)[:, None]
        d7 += passed(passed(g7, next_s), next_x)
        d6 += passed(c6, d7)
        d5 += passed(c5, d6)
        d4 += passed(c4, d5)
        d3 += passed(c3, d4)
        d2 += passed(c2, d3)
        d1 += passed(c1, d2)
        d0 += passed(c0, d1)
        if PASS != MAPS:
            total = together(d0, d1, d2, d3, d4, d5, d6, d7, LANES)
            write(a, out, b * T + t, (row < B) & (t < T), total, ADD_Q, VALID)
    up, down = tl.sum(up, 1), tl.sum(down, 1)
    if PASS == MAPS:
        tl.store(map_at, tl.reshape(end_x, (ROWS,)), own < B)
        tl.store(map_at + 1, tl.reshape(end_s, (ROWS,)), own < B)
        tl.store(map_at + 2, tl.reshape(end_g, (ROWS,)), own < B)
        tl.store(map_at + 3, up, own < B)
        tl.store(map_at + 4, down, own < B)
    elif PASS != FROM_ENDS and tl.max(beyond(up, down).to(tl.int32), 0) != 0:
        linear_of_any_size(
            a, out, B, T, gamma, p, GIVEN, GAMMAS, VALID, PI, MU, RHO, ADD_Q, ROWS, GROUPS
        )  # fmt: skip


@triton.jit
def linear_of_any_size(
    a, out, B, T, gamma, p,
    GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    ADD_Q: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Compute the same recursion with numbers of any size, f · 2ⁿ, from the row's end on."""
    N: tl.constexpr = GROUPS * 8
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    b = tl.minimum(row, B - 1)
    i = tl.arange(0, N)[None, :]
    end_f = tl.zeros([ROWS, 1], tl.float64)
    end_n = tl.zeros([ROWS, 1], tl.int64) + scaled.BOTTOM
    none = tl.zeros([ROWS, 1], tl.float64)
    chunks = tl.cdiv(T, N)
    for chunk in range(chunks):
        t = (chunks - chunk) * N - 1 - i
        decay, ratio, _ = enters(a, b, t + 1, T, p, GIVEN, VALID, PI, MU, RHO, False)
        cut = (decay == 0.0) | (ratio == 0.0)
        g, gn = scaled.split(leaves(a, b, t, T, gamma, GIVEN, GAMMAS, VALID))
        s, sn = scaled.split(tl.where(cut, 0.0, ratio))
        d, dn = scaled.split(decay)
        s, sn = scaled.times(s, sn, d, dn)
        none_left = (g == 0.0) | cut
        c, m = scaled.times(tl.where(none_left, 0.0, g), gn, tl.where(none_left, 0.0, s), sn)
        f, n = scaled.split_signed(td_error(a, b, t, T, gamma, GIVEN, GAMMAS, VALID))
        f, n, c, m = tl.associative_scan((f, n, c, m), 1, scaled.then)
        f, n, c, m = scaled.then(end_f, end_n, none, end_n, f, n, c, m)
        end_f = tl.sum(tl.where(i == N - 1, f, 0.0), 1)[:, None]
        end_n = tl.sum(tl.where(i == N - 1, n, 0), 1)[:, None]
        write(a, out, b * T + t, (row < B) & (t < T), scaled.value(f, n), ADD_Q, VALID)
