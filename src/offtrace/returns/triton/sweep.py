"""Triton kernels for traces with a cap: a pair (start, step) costs a minimum and a multiply-add.

In blocks of N steps let R_t, D_t be the products of ratio and of h_t = discount_{t-1} decay_t from the block's first step to t,

    C_t = cap_t / R_t,   E_t = D_t R_t δ_t.        A trace that comes with x = A and weight w is worth there

    w Σ_t E_t min(C_t, A)                          at read-out
    w Σ_t E_t min(min_{s≤t} C_s, A)                for a recursive cap, since x ↦ min(a, b x) is closed under composition.

`prepare` makes C, E, 1/R, D. In `sweep` a thread has a row to itself, with M starts side by side, and goes from step to step.
From block to block only P and W change, the products of ratio and h that lead there: one each for a row, in float64. x takes
over a power of two of P, which costs no digit. So float32 arrays are swept in float32; a trace below its range counts as 0.
The lowest trace of a row is one number too, since x ↦ min(a, b x) keeps the order of traces: it tells if one may have been lost,
and what ratios raise the product by since then is the most that it can have come back by. So does the highest, which for a cap
at read-out may leave the range at the other end.

Where one does, or products within a block leave the range in which all this is exact, the starts are marked: `sweep_again` does
them in float64, or by definition with numbers of any size (`big_float`).

A row goes through stages. Where it is at that of a SWEEP, a row that is out of range is left to a TREE instead (`tree`,
`readout`), as are rows in which traces live long, which `lifetimes` finds out: a sweep takes as long as they live.

A row may come in `parts` of `steps` steps, each of which is swept as if it were a row: what traces are worth beyond their part is
then for `readout` to add. For that `prepare` stores sums of logarithms as well.
"""

# pyright: reportInvalidTypeForm=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false
from __future__ import annotations

import triton
import triton.language as tl

from offtrace.returns.triton import big_float
from offtrace.returns.triton.linear import join_eight, split_in_eight
from offtrace.returns.triton.load import enters, leaves, numbers, td_error, times, write

SWEEP, TREE, WALK = (tl.constexpr(i) for i in range(3))
"""The stages of a row with a cap: what is to be done with it, or was done last."""
LARGEST = tl.constexpr(1e30)
"""A cap at read-out that is larger is taken as one that is not known."""


@triton.jit(do_not_specialize=["B", "parts", "groups"])
def prepare(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, stages, B, T, parts, steps, groups,
    gamma: tl.float64, p0: tl.float64, p1: tl.float64, p2: tl.float64, p3: tl.float64, share: tl.float64, bound: tl.float64,
    room, ends, sums, marks, stage,
    RULE: tl.constexpr, READS: tl.constexpr, RECURSIVE: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
    N: tl.constexpr, MOST: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    """Store C, E, 1/R, D of each step, [groups of rows, steps, 4, ROWS], and R, D of blocks, [groups of rows, blocks, 2, ROWS].

    R of a block is negative where it holds a cut, and NaN where it is out of range.

    At a cut both products go on, so that later starts find their own; C is 0 there, or −1 for a cap at read-out, which
    must end the traces as well.

    With a STAGE only rows that are there are needed. For a TREE the sums of log ratio and of log h, and the number of cuts, are
    stored as well, [3, rows, groups of blocks]; rows with something that is not known are left to a WALK. The marks of a
    sweep that makes some are cleared.
    """
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    n = numbers(gamma, p0, p1, p2, p3, share, bound)
    kind = room.dtype.element_ty
    rows, part = (tl.program_id(0) % groups).to(tl.int64), tl.program_id(0) // groups
    row = tl.minimum(rows * ROWS + tl.arange(0, ROWS), (rows * 0 + B) * parts - 1)[:, None, None]
    if STAGE != SWEEP:
        tl.store(marks + tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.zeros([ROWS], tl.int32))
    b, first = row // parts, (row % parts * steps).to(tl.int32)
    if STAGE is not None:
        if tl.max((tl.load(stages + b) == STAGE).to(tl.int32)) == 0:
            return
    block = part * BLOCKS + tl.arange(0, BLOCKS)
    j = tl.arange(0, N)[None, None, :]
    within = block[None, :, None] * N + j
    t = first + within
    delta = td_error(a, b, t, T, n, RULE, READS)
    decay, ratio, cap = enters(a, b, t, T, n, RULE, READS, RECURSIVE)
    g = leaves(a, b, t, T, n, RULE, READS)
    before = leaves(a, b, first + block[None, :, None] * 8 - 1, T, n, RULE, READS)
    g0, g1, g2, g3, g4, g5, g6, _ = split_in_eight(tl.reshape(g, (ROWS * BLOCKS, 8)), ROWS * BLOCKS)
    g = join_eight(tl.reshape(before, (ROWS * BLOCKS,)), g0, g1, g2, g3, g4, g5, g6, ROWS * BLOCKS)
    h = tl.reshape(g, (ROWS, BLOCKS, 8)) * decay
    cut = (h == 0.0) | (ratio == 0.0)
    R = tl.associative_scan(tl.where(cut, 1.0, ratio), 2, times)
    D = tl.associative_scan(tl.where(cut, 1.0, h), 2, times)
    E = (D * R * delta).to(kind)
    start = 1.0 / R.to(kind)
    C = tl.where(cut, 0.0, cap).to(kind) * start
    size = tl.abs(E)
    large = tl.max(tl.maximum(tl.maximum(R.to(kind), start), tl.maximum(size, size * C)), 2)
    small = tl.where(C > 0.0, tl.minimum(D.to(kind), C), D.to(kind))
    small = tl.min(tl.where(delta != 0.0, tl.minimum(small, size), small), 2)
    unknown = tl.max(((ratio != ratio) | (h != h)).to(tl.int32), 2) != 0
    odd = (large > MOST) | (small < 1.0 / MOST) | unknown
    if not RECURSIVE:
        C = tl.where(cut, -1.0, C)
    lane = tl.arange(0, ROWS).to(tl.int64)
    at = (rows * steps + within) * (4 * ROWS) + lane[:, None, None]
    tl.store(room + at, C)
    tl.store(room + at + ROWS, E)
    tl.store(room + at + 2 * ROWS, start)
    tl.store(room + at + 3 * ROWS, D.to(kind))
    end = tl.sum(tl.where(j == N - 1, R, 0.0), 2)
    end = tl.where(tl.max(cut.to(tl.int32), 2) != 0, -end, end)
    end = tl.where(odd, float("nan"), end)
    at = (rows * (steps // N) + block[None, :]) * (2 * ROWS) + lane[:, None]
    tl.store(ends + at, end)
    tl.store(ends + at + ROWS, tl.sum(tl.where(j == N - 1, D, 0.0), 2))
    if STAGE == TREE:
        known = (tl.abs(delta) < float("inf")) & (cut | ((ratio < float("inf")) & (h < float("inf")) & (cap < LARGEST)))
        own = rows * ROWS + tl.arange(0, ROWS)
        pieces = steps // (N * BLOCKS)
        plane = (rows * 0 + B) * parts * pieces
        at = sums + own * pieces + part
        there = own < (rows * 0 + B) * parts
        tl.store(at, tl.sum(tl.sum(tl.log(tl.where(cut, 1.0, ratio)), 2), 1), there)
        tl.store(at + plane, tl.sum(tl.sum(tl.log(tl.where(cut, 1.0, h)), 2), 1), there)
        tl.store(at + 2 * plane, tl.sum(tl.sum(cut.to(tl.int32), 2), 1).to(tl.float64), there)
        bad = tl.min(tl.min(known.to(tl.int32), 2), 1) == 0
        tl.store(stage + own // parts, WALK, there & bad)


@triton.jit
def later(a, b):
    """Return the larger one, for scans."""
    return tl.maximum(a, b)


@triton.jit(do_not_specialize=["B", "life"])
def lifetimes(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, B, T, life,
    gamma: tl.float64, p0: tl.float64, p1: tl.float64, p2: tl.float64, p3: tl.float64, share: tl.float64, bound: tl.float64,
    stage, RULE: tl.constexpr, READS: tl.constexpr, ROWS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Leave those rows to the tree in which a trace lives for more than `life` steps, in the mean over all starts, as far as the
    ends of episodes tell."""
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    t = tl.arange(0, N)[None, :]
    n = numbers(gamma, p0, p1, p2, p3, share, bound)
    g = leaves(a, tl.minimum(row, B - 1)[:, None], t, T, n, RULE, READS)
    # The last step of an episode is of the next one here.
    begun = tl.associative_scan(tl.where(g == 0.0, t, -1), 1, later)
    lived = tl.sum(tl.where(t < T, t - begun, 0), 1)
    tl.store(stage + row, tl.where(lived > life * T, TREE, SWEEP), row < B)


@triton.jit
def mantissa(P):
    """Return m, 2ⁿ and n of P = m · 2ⁿ > 0, with m in [1, 2)."""
    bits = P.to(tl.int64, bitcast=True)
    m = (bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000
    power = bits & 0x7FF0000000000000
    return m.to(tl.float64, bitcast=True), power.to(tl.float64, bitcast=True), (power >> 52).to(tl.int32) - 1023


@triton.jit(do_not_specialize=["B", "parts", "groups", "now", "leave", "how"])
def sweep(
    q, valid, room, ends, stages, unmarked, swept, B, T, parts, steps, groups, now, leave, how, stage, marks, out,
    RECURSIVE: tl.constexpr, ROWS: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Compute Δ of M starts in each of ROWS rows: of all, or of those whose stage is `now`.

    Starts that are out of range are marked, or their rows left to the TREE if `leave`.
    """
    rows, first = (tl.program_id(0) % groups).to(tl.int64), tl.program_id(0) // groups * M
    row, b, k, there = starts_of(rows, first, B, T, parts, steps, ROWS, M)
    wanted = row // parts < B
    wanted = wanted & (tl.load(stages + b, wanted & (now >= 0), now) == now)
    passed = tl.where(wanted, 0, 1)  # others are done, or will be
    if tl.min(passed) != 0:
        return
    total, odd = traces(room, ends, passed, steps, rows, first, RECURSIVE, ROWS, M, N, False)
    tl.store(stage + b, TREE, wanted & (odd != 0) & (leave != 0))
    tl.store(marks + tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[None, :], odd, wanted & (leave == 0))
    write(q, valid, out, b * T + k, wanted & there, total, how)


@triton.jit
def starts_of(rows, first, B, T, parts, steps, ROWS: tl.constexpr, M: tl.constexpr):
    """Return a program's rows, counted in parts, and those of the arrays; the steps of its starts, and which there are."""
    row = (rows * ROWS + tl.arange(0, ROWS))[None, :]
    k = (row % parts * steps).to(tl.int32) + first + tl.arange(0, M)[:, None]
    return row, tl.minimum(row // parts, B - 1), k, k < T


@triton.jit(do_not_specialize=["B", "parts", "groups", "how"])
def sweep_again(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, room, ends, marks, swept, B, T, parts, steps, groups, how,
    gamma: tl.float64, p0: tl.float64, p1: tl.float64, p2: tl.float64, p3: tl.float64, share: tl.float64, bound: tl.float64,
    out, RULE: tl.constexpr, READS: tl.constexpr, RECURSIVE: tl.constexpr, ROWS: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Compute Δ of marked starts again, PART at a time: in float64, and what that does not hold by definition."""
    rows, first = (tl.program_id(0) % groups).to(tl.int64), tl.program_id(0) // groups * M
    marked = tl.load(marks + tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[None, :]) != 0
    if tl.max(marked.to(tl.int32)) == 0:
        return
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    n = numbers(gamma, p0, p1, p2, p3, share, bound)
    for part in range(M // PART):
        start = first + part * PART
        row, b, k, there = starts_of(rows, start, B, T, parts, steps, ROWS, PART)
        passed = tl.where(marked, 0, 1)
        total, odd = traces(room, ends, passed, steps, rows, start, RECURSIVE, ROWS, PART, N, True)
        if tl.max(odd) != 0:
            offset = (row % parts * steps).to(tl.int32)
            total = big_float.walk_row(a, x0, 0, b, k, offset, start, steps, T, n, RULE, READS, RECURSIVE, False)
        write(x1, x5, out, b * T + k, marked & there, total, how)


@triton.jit
def traces(
    room, ends, passed, steps, rows, first,
    RECURSIVE: tl.constexpr, ROWS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    """Sweep M starts from `first` on in each of ROWS rows. Return Δ, and 1 for rows that are out of range."""
    if DOUBLE or room.dtype.element_ty == tl.float64:
        kind: tl.constexpr = tl.float64
        LEAST: tl.constexpr = 1e-200
        RANGE: tl.constexpr = big_float.RANGE
        RISE: tl.constexpr = big_float.RISE
    else:
        kind: tl.constexpr = tl.float32
        LEAST: tl.constexpr = 1e-36
        RANGE: tl.constexpr = big_float.RANGE_IN_SINGLE
        RISE: tl.constexpr = big_float.RISE_IN_SINGLE
    lane = tl.arange(0, ROWS)[None, :]
    i = tl.arange(0, M)[:, None]
    at = room + (rows * steps + first) * (4 * ROWS) + lane
    end = ends + (rows * (steps // N) + first // N) * (2 * ROWS) + lane
    W = tl.full([1, ROWS], 1.0, tl.float64)
    for m in tl.static_range(M // N):
        W *= tl.load(end + m * 2 * ROWS + ROWS)
    odd = (W < LEAST).to(tl.int32)  # how small the weights of a program's starts may be
    W = 1.0 / tl.sqrt(W)  # the weights of the first and of the last start are then as far from 1
    foremost = W
    P = tl.full([1, ROWS], 1.0, tl.float64)
    lowest = tl.zeros([1, ROWS], tl.int32)  # of all traces, as a power of two
    highest = tl.zeros([1, ROWS], tl.int32)
    lost = tl.zeros([1, ROWS], tl.int32)  # the lowest that it ever was
    over = tl.zeros([1, ROWS], tl.int32)
    back = tl.zeros([1, ROWS], tl.int32)  # what a trace may have grown by since it was lost
    fall = tl.zeros([1, ROWS], tl.int32)  # what one may have fallen by since it was too large
    x = tl.zeros([M, ROWS], kind)
    acc = tl.zeros([M, ROWS], kind)
    unit = tl.zeros([M, ROWS], kind)
    for m in range(M // N):  # starts join: until then x is 0
        inverse = 1.0 / P.to(kind)
        scale = (P * W).to(kind)
        part = tl.zeros([M, ROWS], kind)  # few numbers are added up at a time: the sum of a long row keeps its digits
        for j in tl.static_range(N):
            joins = i == m * N + j
            c = tl.load(at)
            if not RECURSIVE:
                x = tl.where(c < 0.0, 0.0, x)
                c = tl.maximum(c, 0.0)
            start = tl.load(at + 2 * ROWS) * inverse
            y = tl.where(joins, start, tl.minimum(x, c * inverse))
            part += tl.load(at + ROWS) * scale * y
            unit = tl.where(joins, tl.load(at + 3 * ROWS) * W.to(kind), unit)
            x = y if RECURSIVE else tl.where(joins, start, x)
            at += 4 * ROWS
        acc += part
        R = tl.load(end)
        odd |= (R != R).to(tl.int32)
        P, power, n = mantissa(P * tl.abs(R))
        lowest, highest = tl.minimum(lowest + n, 0), tl.maximum(highest + n, 0)
        lost, over = tl.minimum(lost, lowest), tl.maximum(over, highest)
        x = x * power.to(kind)
        W = W * tl.load(end + ROWS)
        end += 2 * ROWS
    W = tl.where(passed != 0, 0.0, W)
    t = first + M
    left = 1
    while (t < steps) & (left != 0):
        inverse = 1.0 / P.to(kind)
        scale = (P * W).to(kind)
        part = tl.zeros([M, ROWS], kind)
        for _ in tl.static_range(N):
            c = tl.load(at)
            if not RECURSIVE:
                scale = tl.where(c < 0.0, 0.0, scale)
            y = tl.minimum(x, c * inverse)
            part += tl.load(at + ROWS) * scale * y
            if RECURSIVE:
                x = y
            at += 4 * ROWS
        acc += tl.where(W != 0.0, part, 0.0)  # where no trace is left, part may be anything
        # RANGE: by how many powers of two a trace may fall before it may be lost; RISE: by how many it may then grow.
        R = tl.load(end)
        D = tl.load(end + ROWS)
        P, power, n = mantissa(P * tl.abs(R))
        lowest, highest = tl.minimum(lowest + n, 0), tl.maximum(highest + n, 0)
        lost, over = tl.minimum(lost, lowest), tl.maximum(over, highest)
        back = tl.where(lost < -RANGE, tl.maximum(back + n, 0), 0)
        fall = tl.where(over > RANGE, tl.minimum(fall + n, 0), 0)
        _, _, weight = mantissa(W * foremost)
        odd |= (((R != R) | (back + weight > RISE) | ((fall < -RISE) & (not RECURSIVE))) & (W != 0.0)).to(tl.int32)
        W = tl.where(R < 0.0, 0.0, W * D)
        x = x * power.to(kind)
        end += 2 * ROWS
        t += N
        left = tl.max((W != 0.0).to(tl.int32))
    return acc / unit, tl.where(passed != 0, 0, odd)
