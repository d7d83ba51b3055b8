"""Triton kernels for traces with a cap, recursive or at read-out: a pair (start, step) costs a minimum and a multiply-add.

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

Where one does, or products within a block leave the range in which all this is exact, the starts are walked by definition, with
numbers of any size. With MARKS such rows are marked instead, for `triton_tree`, and `lifetimes` has marked those in which traces
live long: a sweep takes as long as they live.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from offtrace.returns.torch.triton_scan import apart, enters, leaves, lower, number, td_error, times, together, write
from offtrace.returns.torch.triton_walks import walk_of_any_size


@triton.jit
def prepare(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, room, ends, B, T, steps, groups,
    gh, gm, gl, p0h, p0m, p0l, p1h, p1m, p1l, p2h, p2m, p2l, p3h, p3m, p3l,
    GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    RECURSIVE: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, N: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Store C, E, 1/R, D of each step, [groups of rows, steps, 4, ROWS], and R, D of blocks, [groups of rows, blocks, 2, ROWS].

    R of a block is negative where it holds a cut, and NaN where it is out of range.

    At a cut both products go on, so that later starts find their own; C is 0 there, or −1 for a cap at read-out, which
    must end the traces as well.
    """
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    gamma = number(gh, gm, gl)
    p = (number(p0h, p0m, p0l), number(p1h, p1m, p1l), number(p2h, p2m, p2l), number(p3h, p3m, p3l))
    kind = room.dtype.element_ty
    rows, part = (tl.program_id(0) % groups).to(tl.int64), tl.program_id(0) // groups
    b = tl.minimum(rows * ROWS + tl.arange(0, ROWS), B - 1)[:, None, None]
    block = part * BLOCKS + tl.arange(0, BLOCKS)
    j = tl.arange(0, N)[None, None, :]
    t = block[None, :, None] * N + j
    delta = td_error(a, b, t, T, gamma, GIVEN, GAMMAS, VALID)
    decay, ratio, cap = enters(a, b, t, T, p, GIVEN, VALID, PI, MU, RHO, RECURSIVE)
    g = leaves(a, b, t, T, gamma, GIVEN, GAMMAS, VALID)
    before = leaves(a, b, block[None, :, None] * 8 - 1, T, gamma, GIVEN, GAMMAS, VALID)
    g0, g1, g2, g3, g4, g5, g6, _ = apart(tl.reshape(g, (ROWS * BLOCKS, 8)), ROWS * BLOCKS)
    g = together(tl.reshape(before, (ROWS * BLOCKS,)), g0, g1, g2, g3, g4, g5, g6, ROWS * BLOCKS)
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
    at = (rows * steps + t) * (4 * ROWS) + lane[:, None, None]
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


@triton.jit
def lifetimes(ends, left_over, B, blocks, ROWS: tl.constexpr, BLOCKS: tl.constexpr, LIFE: tl.constexpr):
    """Mark the rows in which a trace lives for more than LIFE blocks, in the mean over all starts."""
    rows = tl.program_id(0).to(tl.int64)
    row = rows * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, BLOCKS)[:, None]
    end = tl.load(ends + (rows * blocks + i) * (2 * ROWS) + tl.arange(0, ROWS)[None, :], i < blocks, -1.0)
    next_cut = tl.associative_scan(tl.where(end < 0.0, i, BLOCKS), 0, lower, reverse=True)
    life = tl.sum(tl.where(i < blocks, tl.minimum(next_cut, blocks) - i, 0), 0)
    tl.store(left_over + row, (life > LIFE * blocks).to(tl.int32), row < B)


@triton.jit
def mantissa(P):
    """Return m, 2ⁿ and n of P = m · 2ⁿ > 0, with m in [1, 2)."""
    bits = P.to(tl.int64, bitcast=True)
    m = (bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000
    power = bits & 0x7FF0000000000000
    return m.to(tl.float64, bitcast=True), power.to(tl.float64, bitcast=True), (power >> 52).to(tl.int32) - 1023


@triton.jit
def sweep(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, room, ends, left_over, out, B, T, steps, groups,
    gh, gm, gl, p0h, p0m, p0l, p1h, p1m, p1l, p2h, p2m, p2l, p3h, p3m, p3l,
    GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    ADD_Q: tl.constexpr, RECURSIVE: tl.constexpr, ROWS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PART: tl.constexpr,
    LEAST: tl.constexpr, LOST: tl.constexpr, BACK: tl.constexpr, MARKS: tl.constexpr,
):  # fmt: skip
    """Compute Δ of M starts in each of ROWS rows, but for rows that are marked."""
    rows, first = (tl.program_id(0) % groups).to(tl.int64), tl.program_id(0) // groups * M
    row = rows * ROWS + tl.arange(0, ROWS)
    marked = tl.full([ROWS], 0, tl.int32)
    if MARKS:
        marked = tl.load(left_over + row, row < B, 1)
    if tl.min(marked) == 0:
        sweep_starts(
            x0, x1, x2, x3, x4, x5, x6, x7, x8, room, ends, left_over, marked[None, :], out, B, T, steps, rows, first,
            gh, gm, gl, p0h, p0m, p0l, p1h, p1m, p1l, p2h, p2m, p2l, p3h, p3m, p3l,
            GIVEN, GAMMAS, VALID, PI, MU, RHO, ADD_Q, RECURSIVE, ROWS, M, N, PART, LEAST, LOST, BACK, MARKS,
        )  # fmt: skip


@triton.jit
def sweep_starts(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, room, ends, left_over, marked, out, B, T, steps, rows, first,
    gh, gm, gl, p0h, p0m, p0l, p1h, p1m, p1l, p2h, p2m, p2l, p3h, p3m, p3l,
    GIVEN: tl.constexpr, GAMMAS: tl.constexpr, VALID: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr,
    ADD_Q: tl.constexpr, RECURSIVE: tl.constexpr, ROWS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PART: tl.constexpr,
    LEAST: tl.constexpr, LOST: tl.constexpr, BACK: tl.constexpr, MARKS: tl.constexpr,
):  # fmt: skip
    """Compute Δ of M starts from `first` on in each of ROWS rows."""
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    kind = room.dtype.element_ty
    lane = tl.arange(0, ROWS)[None, :]
    i = tl.arange(0, M)[:, None]
    at = room + (rows * steps + first) * (4 * ROWS) + lane
    end = ends + (rows * (steps // N) + first // N) * (2 * ROWS) + lane
    W = tl.full([1, ROWS], 1.0, tl.float64)
    for m in tl.static_range(M // N):
        W *= tl.load(end + m * 2 * ROWS + ROWS)
    odd = (W < LEAST).to(tl.int32)
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
    W = tl.where(marked != 0, 0.0, W)
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
        R = tl.load(end)
        D = tl.load(end + ROWS)
        P, power, n = mantissa(P * tl.abs(R))
        lowest, highest = tl.minimum(lowest + n, 0), tl.maximum(highest + n, 0)
        lost, over = tl.minimum(lost, lowest), tl.maximum(over, highest)
        back = tl.where(lost < -LOST, tl.maximum(back + n, 0), 0)
        fall = tl.where(over > LOST, tl.minimum(fall + n, 0), 0)
        _, _, weight = mantissa(W * foremost)
        odd |= (((R != R) | (back + weight > BACK) | ((fall < -BACK) & (not RECURSIVE))) & (W != 0.0)).to(tl.int32)
        W = tl.where(R < 0.0, 0.0, W * D)
        x = x * power.to(kind)
        end += 2 * ROWS
        t += N
        left = tl.max((W != 0.0).to(tl.int32))
    row = rows * ROWS + lane
    b = tl.minimum(row, B - 1)
    odd = tl.where(marked != 0, 0, odd)
    if MARKS:
        tl.store(left_over + row, 1, (row < B) & (odd != 0))
        odd = odd * 0
    if tl.max(odd) == 0:
        write(a, out, b * T + first + i, (row < B) & (first + i < T), acc / unit, ADD_Q, VALID)
    else:
        gamma = number(gh, gm, gl)
        p = (number(p0h, p0m, p0l), number(p1h, p1m, p1l), number(p2h, p2m, p2l), number(p3h, p3m, p3l))
        for part in range(M // PART):  # a few at a time: whatever registers this takes are taken all along
            k = first + part * PART + tl.arange(0, PART)[:, None]
            whole = walk_of_any_size(
                a, x0, 0, b, k, first + part * PART, T, gamma, p,
                GIVEN, GAMMAS, VALID, PI, MU, RHO, RECURSIVE, False,
            )  # fmt: skip
            write(a, out, b * T + k, (row < B) & (k < T), whole, ADD_Q, VALID)
