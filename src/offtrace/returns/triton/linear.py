"""The Triton kernels for traces without a cap: Δ_k = δ_k + g_k s_{k+1} Δ_{k+1}, g = discount, s = decay · ratio.

`linear_rows` scans a row from its end, in chunks. Where there are few rows, each is taken in `parts`, in three launches: MAPS
stores what a part does to the Δ that follows it, `linear_ends` turns that into Δ at the parts' ends, and FROM_ENDS
continues from there.

Rows whose products may leave the range of floats are scanned again with numbers of any size (`big_float`): by the same launch, or
by `linear_odd` after all parts.
"""

# pyright: reportInvalidTypeForm=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from offtrace.returns.triton import big_float
from offtrace.returns.triton.load import (  # fmt: skip
    STATES,
    enters,
    leaves,
    live,
    numbers,
    state_weight,
    td_error,
    write,
    write_states,
)

WHOLE, MAPS, FROM_ENDS = (tl.constexpr(i) for i in range(3))
"""The passes of `linear_rows`."""


@triton.jit
def split_in_eight(x, LANES: tl.constexpr):
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
def join_eight(x0, x1, x2, x3, x4, x5, x6, x7, LANES: tl.constexpr):
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
    return ((up > big_float.RISE) & ((up > big_float.RANGE) | (down > big_float.RANGE))).to(tl.int32)


@triton.jit(do_not_specialize=["B", "parts"])
def linear_ends(known, B, parts, maps, odd, PARTS: tl.constexpr):
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
    tl.store(odd + b + tl.arange(0, 1), beyond(up, down))


@triton.jit(do_not_specialize=["B", "parts", "chunks"])
def linear_rows(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, maps, B, T, parts, chunks,
    gamma: tl.float64, p0: tl.float64, p1: tl.float64, p2: tl.float64, p3: tl.float64, share: tl.float64, bound: tl.float64,
    lam: tl.float64, out, target, advantage, RULE: tl.constexpr, READS: tl.constexpr, HOW: tl.constexpr, ROWS: tl.constexpr,
    GROUPS: tl.constexpr, PASS: tl.constexpr,
):  # fmt: skip
    """Compute Δ in chunks of GROUPS · 8 steps from the row's end: a part of ROWS rows. On state values write all results.

    A pass that is to store MAPS has them instead of `out`.

    Eight steps are one thread's and go one by one; groups of eight, numbered from the end, are scanned. (A scan in reverse
    would be one line; Triton's turns all lanes round, which takes longer than all the rest.)
    """
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    n = numbers(gamma, p0, p1, p2, p3, share, bound)
    lam = n[0] * 0.0 + lam
    LANES: tl.constexpr = ROWS * GROUPS
    lane = tl.arange(0, LANES)[:, None]
    part, rows = 0, tl.program_id(0) * ROWS
    if PASS != WHOLE:
        part, rows = tl.program_id(0) % parts, tl.program_id(0) // parts * ROWS
    row = (rows + lane // GROUPS).to(tl.int64)
    b = tl.minimum(row, B - 1)
    group = tl.arange(0, GROUPS)[None, :]
    own = rows + tl.arange(0, ROWS)
    map_at = (own.to(tl.int64) * parts + part) * 5
    later = tl.broadcast_to(tl.maximum(group - 1, 0), (ROWS, GROUPS))
    end_x = tl.zeros([ROWS, 1], tl.float64)  # Δ of the step after the chunk, and what it is entered with
    end_s = tl.zeros([ROWS, 1], tl.float64)
    end_g = tl.zeros([ROWS, 1], tl.float64)  # what the part is left with
    if PASS == FROM_ENDS:
        end_x = tl.load(maps + map_at, own < B, 0.0)[:, None]
        end_s = tl.load(maps + map_at + 1, own < B, 0.0)[:, None]
    up = tl.zeros([ROWS, GROUPS], tl.float32)
    down = tl.zeros([ROWS, GROUPS], tl.float32)
    for i in range(chunks):
        t = (((part + 1) * chunks - i) * GROUPS - 1 - lane % GROUPS) * 8 + tl.arange(0, 8)[None, :]
        plain, weight = None, None
        if (STATES & READS) and PASS != MAPS:
            plain = td_error(a, b, t, T, n, RULE, READS - STATES)
            weight = state_weight(a, b * T + t, (t >= 0) & (t < T), n)
            delta = tl.where(live(a, b * T + t, t < T, READS), plain * weight, 0.0)
        else:
            delta = td_error(a, b, t, T, n, RULE, READS)
        decay, ratio, _ = enters(a, b, t, T, n, RULE, READS, False)
        leaving, entering = leaves(a, b, t, T, n, RULE, READS), passed(decay, ratio)
        if RULE is None:
            more, less = bits(entering * leaving, tl.full([], 1.0, tl.float64))
        else:
            more, less = bits(entering, leaving)
        up += tl.reshape(tl.sum(more, 1), (ROWS, GROUPS))
        down += tl.reshape(tl.sum(less, 1), (ROWS, GROUPS))
        d0, d1, d2, d3, d4, d5, d6, d7 = split_in_eight(delta, LANES)
        s0, s1, s2, s3, s4, s5, s6, s7 = split_in_eight(entering, LANES)
        g0, g1, g2, g3, g4, g5, g6, g7 = split_in_eight(leaving, LANES)
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
            total = join_eight(d0, d1, d2, d3, d4, d5, d6, d7, LANES)
            inside = (row < B) & (t >= 0) & (t < T)
            if STATES & READS:
                following = join_eight(d1, d2, d3, d4, d5, d6, d7, next_x, LANES)
                write_states(
                    a, b, t, T, n, lam, plain, weight, leaving, total, following, target, advantage, out, inside, READS
                )  # fmt: skip
            else:
                write(x1, x5, out, b * T + t, inside, total, HOW)
    up, down = tl.sum(up, 1), tl.sum(down, 1)
    if PASS == MAPS:
        tl.store(out + map_at, tl.reshape(end_x, (ROWS,)), own < B)
        tl.store(out + map_at + 1, tl.reshape(end_s, (ROWS,)), own < B)
        tl.store(out + map_at + 2, tl.reshape(end_g, (ROWS,)), own < B)
        tl.store(out + map_at + 3, up, own < B)
        tl.store(out + map_at + 4, down, own < B)
    elif PASS == WHOLE:
        again = tl.where(own < B, beyond(up, down), 0)
        if tl.max(again, 0) != 0:
            tl.debug_barrier()  # the same places are written again
            for r in range(ROWS):
                if tl.sum(tl.where(own == rows + r, again, 0), 0) != 0:
                    odd = (rows + r).to(tl.int64)
                    big_float.scan_row(a, odd, T, n, lam, out, target, advantage, RULE, READS, HOW)


@triton.jit
def linear_odd(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, odd, done, T,
    gamma: tl.float64, p0: tl.float64, p1: tl.float64, p2: tl.float64, p3: tl.float64, share: tl.float64, bound: tl.float64,
    lam: tl.float64, out, target, advantage, RULE: tl.constexpr, READS: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """Compute Δ of a row that is marked as odd."""
    b = tl.program_id(0).to(tl.int64)
    if tl.load(odd + b) != 0:
        a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
        n = numbers(gamma, p0, p1, p2, p3, share, bound)
        big_float.scan_row(a, b, T, n, n[0] * 0.0 + lam, out, target, advantage, RULE, READS, HOW)
