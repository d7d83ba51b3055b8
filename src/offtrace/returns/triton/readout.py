"""Triton kernels for caps at read-out in rows of any length: near-linear work, whatever the data.

With L and K the sums of log ratio and of log h over the row, a trace that starts at k is worth, at the later steps t,

    Σ_t e^(K_t − K_k) δ_t min(cap_t, e^(L_t − L_k)) = Σ_t e^(K_t − K_k) cap_t δ_t min(1, e^(a_k − θ_t)),

where a_k = −L_k and θ_t = log cap_t − L_t. So a step is read at its cap by the starts with a_k ≥ θ_t, and below it, by a factor
that is the same for all of them, by the others. Of a stretch of steps, sorted by θ, two numbers at each place i answer any start
before it: Q_i, the sum of e^K cap δ of the places up to i, and V_i, that of the places from i on, each times e^(θ_i − θ) ≤ 1:

    Q_{r-1} + e^(a_k − θ_r) V_r          where r is the first place with θ_r > a_k; K counts from the stretch's first step.

Blocks of BLOCK steps are swept by `sweep`, each as a separate row, and sorted here. `level` then goes over pairs of neighbouring
stretches, twice as long each time: the starts of the first one look into the second, and the two are merged. A place's rank in
the other stretch is all that merging takes, since Q and V of both are sums that are added up.

Nothing is ever subtracted but logarithms, in float64. Cuts are counted: a trace lives where there is none between. A row with a
number that is not known, or a cap beyond LARGEST, is walked by definition.
"""

# pyright: reportInvalidTypeForm=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from offtrace.returns.triton.load import link, numbers, td_error, write
from offtrace.returns.triton.sweep import SWEEP

NEVER = tl.constexpr(2.0**100)
"""The logarithm of what is never reached."""


@triton.jit
def log_of(x):
    """Return log x of x ≥ 0."""
    return tl.where(x > 0.0, tl.log(x), -NEVER)


@triton.jit(do_not_specialize=["B", "parts"])
def running_sums(pieces, stage, B, parts, sums, EACH: tl.constexpr, PARTS: tl.constexpr):
    """Add up the EACH pieces of every part, and these sums up to each part, [3, B, parts]; a row to a program."""
    b = (tl.program_id(0) // 3).to(tl.int64)
    if tl.load(stage + b) == SWEEP:
        return
    plane = (b * 0 + B) * parts * (tl.program_id(0) % 3)
    before = tl.zeros([1], tl.float64)
    for i in range(tl.cdiv(parts, PARTS)):
        part = i * PARTS + tl.arange(0, PARTS)
        at = plane + b * parts + part
        piece = tl.load(pieces + (at * EACH)[:, None] + tl.arange(0, EACH)[None, :], (part < parts)[:, None], 0.0)
        total = tl.sum(piece, 1)
        tl.store(sums + at, before + tl.cumsum(total, 0), part < parts)
        before += tl.sum(total, 0)


@triton.jit
def shrunk(f1, v1, f2, v2):
    """Compose V of places, from the largest θ on; f is e^(θ − θ of the place before)."""
    return f1 * f2, v2 + f2 * v1


@triton.jit(do_not_specialize=["B", "parts", "plane"])
def sorted_blocks(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, stage, sums, B, T, parts, plane,
    gamma: tl.float64, p0: tl.float64, p1: tl.float64, p2: tl.float64, p3: tl.float64, share: tl.float64, bound: tl.float64,
    thresholds, reached, below, starts, weights, RULE: tl.constexpr, READS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store θ, Q and V of each block, sorted; and of its starts a_k and the weight with which each leaves the block."""
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    n = numbers(gamma, p0, p1, p2, p3, share, bound)
    block = tl.program_id(0).to(tl.int64) + tl.zeros([1, 1], tl.int64)
    b = block // parts
    if tl.load(stage + tl.program_id(0) // parts) == SWEEP:
        return
    t = (block % parts).to(tl.int32) * BLOCK + tl.arange(0, BLOCK)[None, :]
    delta = td_error(a, b, t, T, n, RULE, READS)
    h, ratio, cap = link(a, b, t, T, n, RULE, READS, False)
    cut = (h == 0.0) | (ratio == 0.0)
    L = tl.load(sums + block - 1, block % parts > 0, 0.0) + tl.cumsum(tl.log(tl.where(cut, 1.0, ratio)), 1)
    cuts = tl.cumsum(cut.to(tl.int32), 1)
    column = tl.arange(0, BLOCK)[None, :]
    at = block * BLOCK + column
    log_h = tl.log(tl.where(cut, 1.0, h))
    K = tl.cumsum(log_h, 1)
    alive = cuts == tl.sum(cut.to(tl.int32), 1)[:, None]
    tl.store(starts + at, -L)
    tl.store(weights + at, tl.where(alive, tl.exp(tl.sum(log_h, 1)[:, None] - K), 0.0))
    theta = log_of(tl.where(cut, 0.0, cap)) - L
    term = tl.where(cuts == 0, tl.exp(K) * cap * delta, 0.0)
    # Sorted by bits of θ that are in the order of integers. The last ones give way to the step's place in the block, and to 0 in
    # what is stored, so that the thresholds are sorted to the last bit: merging relies on that. V counts from there.
    bits = theta.to(tl.int64, bitcast=True)
    order = tl.sort(((bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)) & -BLOCK) | column, 1)
    index = (order & (BLOCK - 1)).to(tl.int32)
    bits = order & -BLOCK
    stored = (bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)).to(tl.float64, bitcast=True)
    tl.store(thresholds + at, stored)
    tl.store(reached + at, tl.cumsum(tl.gather(term, index, 1), 1))
    term = tl.gather(term, index, 1) * tl.exp(stored - tl.gather(theta, index, 1))
    backwards = tl.broadcast_to(BLOCK - 1 - column, theta.shape)
    stored = tl.gather(stored, backwards, 1)
    higher = tl.gather(stored, tl.broadcast_to(tl.maximum(column - 1, 0), theta.shape), 1)
    _, V = tl.associative_scan((tl.exp(stored - higher), tl.gather(term, backwards, 1)), 1, shrunk)
    tl.store(below + block * BLOCK + backwards, V)


@triton.jit
def rank(keys, length, size, x, EQUAL: tl.constexpr):
    """Return how many of `length` sorted keys, at most `size` = 2ⁿ, are below x, or at most x if EQUAL."""
    r = tl.zeros_like(x).to(tl.int32)
    step = size
    while step > 1:
        step = step // 2
        probe = tl.load(keys + r + step - 1, r + step <= length, float("inf"))
        r = tl.where((probe <= x) if EQUAL else (probe < x), r + step, r)
    probe = tl.load(keys + r, r < length, float("inf"))
    return tl.where((probe <= x) if EQUAL else (probe < x), r + 1, r)


@triton.jit
def weight_between(sums, plane, first, last):
    """Return e^ΣlogH of the blocks after `first` up to `last`, 0 where a trace is cut there."""
    k = tl.load(sums + plane + last) - tl.load(sums + plane + first)
    cuts = tl.load(sums + 2 * plane + last) - tl.load(sums + 2 * plane + first)
    return tl.where(cuts == 0.0, tl.exp(k), 0.0)


@triton.jit(do_not_specialize=["B", "parts", "plane", "size", "how"])
def level(
    q, valid, stage, sums, thresholds, reached, below, starts, weights, partial, old_thresholds, old_reached, old_below,
    B, T, parts, plane, size, how, more_thresholds, more_reached, more_below, out, BLOCK: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Let the starts of a stretch of `size` steps look into the next one, and merge the two; a block to a program.

    What is known so far is in `partial`, and so is `out`, but for the last level: there it is the result, and nothing is merged.
    The memory of the level before the last one is used again.
    """
    plane = plane.to(tl.int64)
    part = tl.program_id(0) % parts
    b = (tl.program_id(0) // parts).to(tl.int64)
    if tl.load(stage + b) == SWEEP:
        return
    sums += b * parts
    row = b * parts * BLOCK
    own = part * BLOCK // size
    other = own + 1 - own % 2 * 2
    length = tl.minimum(tl.maximum(parts * BLOCK - other * size, 0), size)
    left = own - own % 2
    first, last = left * (size // BLOCK), tl.minimum((left + 1) * (size // BLOCK), parts) - 1
    i = tl.arange(0, BLOCK)
    at = row + part * BLOCK + i
    keys = thresholds + row + other * size
    inside = part * BLOCK + i < T
    total = tl.load(partial + b * T + part * BLOCK + i, inside, 0.0).to(tl.float64)
    if (own % 2 == 0) & (length > 0):
        x = tl.load(starts + at)
        r = rank(keys, length, size, x, True)
        there = row + other * size + r
        value = tl.load(reached + there - 1, r > 0, 0.0).to(tl.float64)
        factor = tl.exp(x - tl.load(keys + r, r < length, NEVER))
        value += factor * tl.load(below + there, r < length, 0.0)
        total += tl.load(weights + at) * weight_between(sums, plane, part, last) * value
    if LAST:
        write(q, valid, out, b * T + part * BLOCK + i, inside, total, how)
    else:
        tl.store(out + b * T + part * BLOCK + i, total, inside)
        x = tl.load(thresholds + at)
        Q, V = tl.load(reached + at).to(tl.float64), tl.load(below + at).to(tl.float64)
        # D of the first stretch: from before its first block on.
        none = tl.load(sums + plane + first - 1, first > 0, 0.0)
        no_cuts = tl.load(sums + 2 * plane + first - 1, first > 0, 0.0)
        k, cuts = tl.load(sums + plane + last) - none, tl.load(sums + 2 * plane + last) - no_cuts
        D = tl.where(cuts == 0.0, tl.exp(k), 0.0)
        if own % 2 == 0:
            r = rank(keys, length, size, x, False)
        else:
            r = rank(keys, length, size, x, True)
        there = row + other * size + r
        lower = tl.load(reached + there - 1, r > 0, 0.0).to(tl.float64)
        factor = tl.exp(x - tl.load(keys + r, r < length, NEVER))
        higher = factor * tl.load(below + there, r < length, 0.0)
        if own % 2 == 0:
            Q += D * lower
            V += D * higher
        else:
            Q = lower + D * Q
            V = higher + D * V
        to = row + left * size + part * BLOCK + i - own * size + r
        tl.store(more_thresholds + to, x)
        tl.store(more_reached + to, Q)
        tl.store(more_below + to, V)
