"""Triton kernels for recursive caps in rows of any length: near-linear work, whatever the data.

A trace that enters a stretch of steps with x = A leaves it with min(R A, R C), where R is the product of ratios and C the lowest
of C_t = cap_t / R_t: x ↦ min(a, b x) is closed under composition. It is clipped first at the first t with C_t ≤ A. Until then
its terms are linear in A, and from there on they are those of the trace that stands at t with x = cap_t, whatever it was before.
So a stretch is worth

    A Σ_{s<t} D_s R_s δ_s + W_t        with D the product of h, and W_t what the trace clipped at t is worth from there

and what it takes is W_t for each step, lowest_t = min_{s≤t} C_s, in which t is searched for, and A_t Σ_{s<t} D_s R_s δ_s with
A_t = lowest_{t-1}, the largest A that is not clipped before t: it is bounded where the sum alone is not, and A / A_t ≤ 1.

The same holds for a stretch of stretches, a *node* of a tree with LEAF steps in a leaf and FAN children in any other node. A
trace that is clipped in a child leaves it with R C, whatever it was before, so that W of a child is one number as well. Children
are chained: W_c = (what c's trace meets until it is clipped next, in s) + D W_s, which pointer doubling resolves. `leaf_tables`
and `group` build the tree from its leaves, and in `starts` each start looks for what is beyond its leaf, level by level.

Where a trace is cut, its cap is 0. No two sums are ever subtracted. Numbers of a leaf are products in float64, from its first
step; beyond a leaf R, C and A are logarithms. A row with a leaf out of this range, or a number that is not known, is walked by
definition.
"""

# pyright: reportInvalidTypeForm=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from offtrace.returns.triton.load import link, lower, numbers, td_error, times, write
from offtrace.returns.triton.sweep import SWEEP, TREE, WALK

LEAF = tl.constexpr(32)
"""Steps of a leaf: one for each thread of a warp."""
NEVER = tl.constexpr(2.0**100)
"""The logarithm of what is never reached, which float32 holds as well: the difference of two such numbers is 0."""
MOST, FADED = tl.constexpr(1e100), tl.constexpr(1e70)
"""How large a product within a leaf may be, or its inverse; and how large 1 / D, where W is kept in float32."""
LOG_R, LOG_C, WEIGHT, SUM, LOWEST, BEFORE, LOG_THERE, THERE, CLIPPED = (tl.constexpr(i) for i in range(9))
"""What is kept of a node, each as a plane of `nodes`. Of itself: log R, log C, D and C Σ D R δ. Within its parent, from the
parent's first step on: the log of the lowest C up to here, A Σ D R δ of all before it, log R and D where it begins; and what a
trace that was clipped here is worth from the node's end to the parent's, times D of this node."""
NUMBERS = 9


@triton.jit
def log(x):
    """Return log x of x ≥ 0."""
    return tl.where(x > 0.0, tl.log(x), -NEVER)


@triton.jit
def then(a_r, a_c, a_d, a_s, r, c, d, s):
    """Compose two stretches, each with log R, log C, D and C Σ D R δ."""
    c = c - a_r
    less = tl.exp(-tl.abs(a_c - c))
    s = a_d * s
    return a_r + r, tl.minimum(a_c, c), a_d * d, tl.where(a_c < c, a_s + less * s, less * a_s + s)


@triton.jit
def leaf(a, b, t, T, n, RULE: tl.constexpr, READS: tl.constexpr, KEYS: tl.constexpr):
    """Return C, E = D R δ, R and D of the steps t [leaves, LEAF], and 1 where a leaf is out of range."""
    delta = td_error(a, b, t, T, n, RULE, READS)
    h, ratio, cap = link(a, b, t, T, n, RULE, READS, True)
    cut = (h == 0.0) | (cap == 0.0)
    R = tl.associative_scan(tl.where(cut, 1.0, ratio), 1, times)
    D = tl.associative_scan(tl.where(cut, 1.0, h), 1, times)
    C = tl.where(cut, 0.0, cap) / R
    plain = (R <= MOST) & (R >= 1.0 / MOST) & (C <= MOST)  # a NaN is neither
    plain = plain & (1.0 / (FADED if KEYS else MOST) <= D) & (tl.abs(delta) < float("inf"))
    return C, D * R * delta, R, D, tl.max(tl.where(plain, 0, 1), 1)


@triton.jit
def at_column(x, column, otherwise):
    """Return what x [n, LEAF] holds in these columns; `otherwise` beyond the last."""
    return tl.where(column < LEAF, tl.gather(x, tl.minimum(column, LEAF - 1), 1), otherwise)


@triton.jit
def windows(C, E):
    """Return the lowest C and Σ E of the next 1, 2, 4, 8 and 16 steps."""
    c2, e2 = lowest_of(C, 1), sum_of(E, 1)
    c4, e4 = lowest_of(c2, 2), sum_of(e2, 2)
    c8, e8 = lowest_of(c4, 4), sum_of(e4, 4)
    c16, e16 = lowest_of(c8, 8), sum_of(e8, 8)
    return C, E, c2, e2, c4, e4, c8, e8, c16, e16


@triton.jit
def lowest_of(x, STEPS: tl.constexpr):
    """Return the minimum of windows that are twice as long as STEPS."""
    column = tl.broadcast_to(tl.arange(0, LEAF)[None, :], x.shape)
    return tl.minimum(x, at_column(x, column + STEPS, float("inf")))


@triton.jit
def sum_of(x, STEPS: tl.constexpr):
    """Return the sum over windows that are twice as long as STEPS."""
    column = tl.broadcast_to(tl.arange(0, LEAF)[None, :], x.shape)
    return x + at_column(x, column + STEPS, 0.0)


@triton.jit
def next_clip(w, x):
    """Return the first later step of the leaf at which a trace is clipped, LEAF if none, and Σ E of the steps before it.

    x is what the trace of each step stands at, as seen from the leaf's first step. Of the windows w those in which nothing is
    clipped are passed as a whole, the long ones first.
    """
    t = tl.broadcast_to(tl.arange(0, LEAF)[None, :], x.shape) + 1
    total = tl.zeros_like(x)
    t, total = passing(w[8], w[9], x, t, total, 16)
    t, total = passing(w[6], w[7], x, t, total, 8)
    t, total = passing(w[4], w[5], x, t, total, 4)
    t, total = passing(w[2], w[3], x, t, total, 2)
    t, total = passing(w[0], w[1], x, t, total, 1)
    return tl.minimum(t, LEAF), total


@triton.jit
def passing(c, e, x, t, total, STEPS: tl.constexpr):
    """Pass a window where nothing is clipped."""
    free = at_column(c, t, 0.0) > x
    return tl.where(free, t + STEPS, t), total + tl.where(free, at_column(e, t, 0.0), 0.0)


@triton.jit
def packed(x, KEYS: tl.constexpr):
    """Return what is stored of a number ≥ 0: for float32 arrays 32 bits of its 64, in the same order, so with 21 digits."""
    if KEYS:
        bits = x.to(tl.int64, bitcast=True) + (1 << 30)
        x = ((bits >> 31) - (1 << 31)).to(tl.int32)
    return x


@triton.jit
def unpacked(x, KEYS: tl.constexpr):
    """Return the number that is stored."""
    if KEYS:
        x = ((x.to(tl.int64) + (1 << 31)) << 31).to(tl.float64, bitcast=True)
    return x


@triton.jit
def last(x, SIZE: tl.constexpr):
    """Return the last column of x [n, SIZE]."""
    return tl.sum(tl.where(tl.arange(0, SIZE)[None, :] == SIZE - 1, x, 0.0), 1)


@triton.jit
def shifted(x, first, SIZE: tl.constexpr):
    """Return what stands one column before, and `first` in the first one."""
    column = tl.arange(0, SIZE)[None, :]
    index = tl.zeros_like(x).to(tl.int32) + tl.maximum(column - 1, 0)
    return tl.where(column == 0, first, tl.gather(x, index, 1))


@triton.jit(do_not_specialize=["plane", "B", "programs", "stride"])
def leaf_tables(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, stages, swept, plane, B, T, programs, stride,
    gamma: tl.float64, p0: tl.float64, p1: tl.float64, p2: tl.float64, p3: tl.float64, share: tl.float64, bound: tl.float64,
    lowest, before, clipped, within, leaving, weights, nodes, stage,
    RULE: tl.constexpr, READS: tl.constexpr, FAN: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Store lowest_t, A_t Σ D R δ and W_t of the steps, and what is kept of the leaves themselves; FAN leaves of a row.

    Of each start, store what it is worth within its leaf, and the x and the weight with which it leaves it.
    """
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    n = numbers(gamma, p0, p1, p2, p3, share, bound)
    b = (tl.program_id(0) // programs).to(tl.int64)
    plane = plane.to(tl.int64)  # nine of them may be more than int32 holds
    if tl.load(stage + b) == SWEEP:
        return
    c = tl.program_id(0) % programs * FAN + tl.arange(0, FAN)
    t = c[:, None] * LEAF + tl.arange(0, LEAF)[None, :]
    C, E, R, D, out_of_range = leaf(a, b, t, T, n, RULE, READS, KEYS)
    w = windows(C, E)
    following = lowest_of(w[8], 16)  # the lowest C of all steps up to the leaf's end
    t_next, total = next_clip(w, C)
    W = (E + total) * C
    for _ in tl.static_range(5):  # the chain of clips, at most 2⁵ of them
        W += at_column(W, t_next, 0.0)
        t_next = at_column(t_next, t_next, LEAF)
    x = 1.0 / R
    t_next, total = next_clip(w, x)
    at = b * stride * LEAF + t
    tl.store(within + b * T + t, ((E + total) * x + at_column(W, t_next, 0.0)) / D, t < T)
    x = tl.minimum(x, at_column(following, t * 0 + tl.arange(0, LEAF)[None, :] + 1, float("inf")))
    tl.store(leaving + at, packed(x * last(R, LEAF)[:, None], KEYS))
    tl.store(weights + at, last(D, LEAF)[:, None] / D)
    least = unpacked(packed(tl.associative_scan(C, 1, lower), KEYS), KEYS)
    total = tl.cumsum(E, 1)
    tl.store(lowest + at, packed(least, KEYS))
    tl.store(before + at, shifted(total, 0.0, LEAF) * shifted(least, 0.0, LEAF))
    tl.store(clipped + at, W / tl.sqrt(last(D, LEAF))[:, None])  # so the first and the last step's are as far from 1
    node = nodes + b * stride + c
    tl.store(node + LOG_R * plane, log(last(R, LEAF)))
    tl.store(node + LOG_C * plane, log(last(least, LEAF)))
    tl.store(node + WEIGHT * plane, last(D, LEAF))
    tl.store(node + SUM * plane, last(total, LEAF) * last(least, LEAF))
    if tl.max(out_of_range) != 0:
        tl.store(stage + b, WALK)


@triton.jit
def in_leaf(lowest, before, clipped, weights, leaf, log_a, wanted, KEYS: tl.constexpr):
    """Return what a leaf is worth to traces that enter it with these log x and are clipped there."""
    at = leaf * LEAF
    A = tl.maximum(tl.exp(log_a), unpacked(tl.load(lowest + at + LEAF - 1, wanted, 0), KEYS))
    t = tl.zeros_like(at).to(tl.int32)
    for i in tl.static_range(5):
        probe = unpacked(tl.load(lowest + at + t + (LEAF >> (i + 1)) - 1, wanted, 0), KEYS)
        t = tl.where(probe > A, t + (LEAF >> (i + 1)), t)
    largest = unpacked(tl.load(lowest + at + t - 1, wanted & (t > 0), 0), KEYS)
    linear = A / tl.where(largest > 0.0, largest, 1.0) * tl.load(before + at + t, wanted, 0.0)
    met = tl.load(clipped + at + t, wanted, 0.0) * tl.sqrt(tl.load(weights + leaf, wanted, 0.0))
    return tl.where(t > 0, linear, 0.0) + met


@triton.jit
def place(B, T, LEVEL: tl.constexpr, FAN: tl.constexpr):
    """Return where the nodes of a level begin in `nodes`, and how many a row has; 1 is the level of the leaves."""
    offset = 0
    stride = tl.cdiv(tl.cdiv(T, LEAF), FAN) * FAN
    for _ in tl.static_range(LEVEL - 1):
        offset += B * stride
        stride = tl.cdiv(stride // FAN, FAN) * FAN
    return offset, stride


@triton.jit
def place_beyond(B, T, LEVEL: tl.constexpr, FAN: tl.constexpr):
    """Return where the nodes of a level begin in `beyond`, and how many a row has; those of level 2 come first."""
    offset = 0
    count = tl.cdiv(tl.cdiv(T, LEAF), FAN)
    for _ in tl.static_range(LEVEL - 2):
        offset += B * count
        count = tl.cdiv(count, FAN)
    return offset, count


@triton.jit
def in_node(
    lowest, before, clipped, nodes, plane, B, T, b, node, log_a, wanted,
    LEVEL: tl.constexpr, FAN: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Return what a node of a level is worth to traces that enter it with these log x and are clipped there."""
    value = tl.zeros_like(log_a)
    weight = value + 1.0
    for i in tl.static_range(LEVEL - 1):  # into the child in which they are clipped
        offset, stride = place(B, T, LEVEL - 1 - i, FAN)
        node = node * FAN
        first = nodes + offset + b * stride + node
        log_a = tl.maximum(log_a, tl.load(first + LOWEST * plane + FAN - 1, wanted, 0.0))
        s = tl.zeros_like(node)
        for j in tl.static_range(5):
            if FAN >> (j + 1) > 0:
                probe = tl.load(first + LOWEST * plane + s + (FAN >> (j + 1)) - 1, wanted, 0.0)
                s = tl.where(probe > log_a, s + (FAN >> (j + 1)), s)
        largest = tl.load(first + LOWEST * plane + s - 1, wanted & (s > 0), NEVER)
        value += weight * tl.exp(log_a - largest) * tl.load(first + BEFORE * plane + s, wanted, 0.0)
        weight *= tl.load(first + THERE * plane + s, wanted, 0.0)
        value += weight * tl.load(first + CLIPPED * plane + s, wanted, 0.0)
        log_a += tl.load(first + LOG_THERE * plane + s, wanted, 0.0)
        node = node + s
    _, stride = place(B, T, 1, FAN)
    weights = nodes + WEIGHT * plane
    return value + weight * in_leaf(lowest, before, clipped, weights, b * stride + node, log_a, wanted, KEYS)


@triton.jit
def siblings(nodes, plane, later, known):
    """Return log R, log C, D and C Σ D R δ of stretches of siblings: those that come `later`, up to each one.

    What is not `known` is beyond the row.
    """
    r = tl.where(later, tl.load(nodes + LOG_R * plane, known, 0.0), 0.0)
    c = tl.where(later, tl.load(nodes + LOG_C * plane, known, NEVER), NEVER)
    d = tl.where(later, tl.load(nodes + WEIGHT * plane, known, 0.0), 1.0)
    s = tl.where(later, tl.load(nodes + SUM * plane, known, 0.0), 0.0)
    return tl.associative_scan((r, c, d, s), 1, then)


@triton.jit
def look(table, s, STORED: tl.constexpr):
    """Return what a table of siblings, in registers [n, FAN] or in memory, holds at s."""
    if STORED:
        return tl.load(table + s)
    else:
        return tl.gather(table, s, 1)


@triton.jit
def land(
    r, c, d, total, log_x, lowest, before, clipped, nodes, plane, B, T, b, first,
    LEVEL: tl.constexpr, FAN: tl.constexpr, KEYS: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    """Return what siblings are worth to traces [n, m] until they have passed s, in which they are clipped; its weight, and s.

    r, c, d and total are those of `siblings`, which are nodes of a level; `first` is the first of them.
    """
    s = tl.zeros_like(log_x).to(tl.int32)
    for i in tl.static_range(5):
        if FAN >> (i + 1) > 0:
            s = tl.where(look(c, s + (FAN >> (i + 1)) - 1, STORED) > log_x, s + (FAN >> (i + 1)), s)
    s = tl.where(look(c, s, STORED) > log_x, s + 1, s)
    until = tl.maximum(s - 1, 0)
    some = s > 0
    value = tl.where(some, tl.exp(log_x - look(c, until, STORED)) * look(total, until, STORED), 0.0)
    weight = tl.where(some, look(d, until, STORED), 1.0)
    there = log_x + tl.where(some, look(r, until, STORED), 0.0)
    wanted = (s < FAN) & (there > -0.5 * NEVER)
    met = in_node(lowest, before, clipped, nodes, plane, B, T, b, first + s, there, wanted, LEVEL, FAN, KEYS)
    return value + tl.where(wanted, weight * met, 0.0), tl.where(wanted, weight, 0.0), s


@triton.jit(do_not_specialize=["plane", "wide", "B", "T", "programs"])
def group(
    lowest, before, clipped, stage, known_nodes, known_beyond, plane, wide, B, T, programs, nodes, beyond,
    LEVEL: tl.constexpr, FAN: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Store what is kept of the children of a node, which are of a level, within it; and of the node itself."""
    b = (tl.program_id(0) // programs).to(tl.int64)
    plane = plane.to(tl.int64)  # nine of them may be more than int32 holds
    if tl.load(stage + b) == SWEEP:
        return
    parent = tl.program_id(0) % programs
    offset, stride = place(B, T, LEVEL, FAN)
    above, above_stride = place(B, T, LEVEL + 1, FAN)
    above_stride = tl.where(programs == 1, 1, above_stride)  # the root is alone
    count = tl.cdiv(T, LEAF)
    for _ in tl.static_range(LEVEL - 1):
        count = tl.cdiv(count, FAN)
    child = tl.arange(0, FAN)
    column = child[None, :]
    here = nodes + offset + b * stride + parent * FAN
    known = parent * FAN + column < count
    # From the parent's first step on.
    r, c, d, total = siblings(here + column, plane, column >= 0, known)
    tl.store(here + column + LOWEST * plane, c)
    tl.store(here + column + BEFORE * plane, shifted(total, 0.0, FAN))
    tl.store(here + column + LOG_THERE * plane, shifted(r, 0.0, FAN))
    tl.store(here + column + THERE * plane, shifted(d, 1.0, FAN))
    node = nodes + above + b * above_stride + parent + tl.arange(0, 1)
    tl.store(node + LOG_R * plane, last(r, FAN))
    tl.store(node + LOG_C * plane, last(c, FAN))
    tl.store(node + WEIGHT * plane, last(d, FAN))
    tl.store(node + SUM * plane, last(total, FAN))
    # From each child's end on.
    row = child[:, None]
    r, c, d, total = siblings(here + column + row * 0, plane, column > row, known & (row >= 0))
    has = parent * FAN + row < count
    log_x = tl.load(here + row + LOG_R * plane, has, 0.0) + tl.load(here + row + LOG_C * plane, has, -NEVER)
    value, weight, s = land(
        r, c, d, total, log_x, lowest, before, clipped, nodes, plane, B, T, b, parent * FAN, LEVEL, FAN, KEYS, False
    )
    if LEVEL > 1:
        start, each = place_beyond(B, T, LEVEL, FAN)
        table = beyond + (start + b * each + parent * FAN + row) * FAN + column
        tl.store(table, r, has)
        tl.store(table + wide, c, has)
        tl.store(table + 2 * wide, d, has)
        tl.store(table + 3 * wide, total, has)
    own = tl.reshape(tl.load(here + row + WEIGHT * plane, has, 0.0), (FAN,))
    # W of each child, times its own D: W_c = value + weight · (D W)_s.
    value = tl.reshape(value, (FAN,)) * own
    weight = tl.reshape(weight, (FAN,)) * own
    s = tl.minimum(tl.reshape(s, (FAN,)), FAN - 1)
    for _ in tl.static_range(5):  # 2⁵ children at most
        value += weight * tl.gather(value, s, 0)
        weight *= tl.gather(weight, s, 0)
        s = tl.gather(s, s, 0)
    tl.store(here + child + CLIPPED * plane, value)


@triton.jit(do_not_specialize=["plane", "wide", "B", "programs", "how"])
def starts(
    q, valid, lowest, before, clipped, within, leaving, weights, nodes, beyond, stage,
    plane, wide, B, T, programs, how, out, LEVELS: tl.constexpr, FAN: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Compute Δ of the starts in FAN leaves of a row: what it is worth within the leaf, and what is beyond it, level by level."""
    b = (tl.program_id(0) // programs).to(tl.int64)
    plane = plane.to(tl.int64)  # nine of them may be more than int32 holds
    if tl.load(stage + b) != TREE:
        return
    parent = tl.program_id(0) % programs
    row = tl.arange(0, FAN)[:, None]
    column = tl.arange(0, FAN)[None, :]
    t = (parent * FAN + row) * LEAF + tl.arange(0, LEAF)[None, :]
    _, stride = place(B, T, 1, FAN)
    at = b * stride * LEAF + t
    total = tl.load(within + b * T + t, t < T, 0.0).to(tl.float64)
    log_x = log(unpacked(tl.load(leaving + at), KEYS))
    weight = tl.load(weights + at).to(tl.float64)
    for i in tl.static_range(LEVELS):
        offset, stride = place(B, T, i + 1, FAN)
        count = tl.cdiv(T, LEAF)
        for _ in tl.static_range(i):
            count = tl.cdiv(count, FAN)
        if i == 0:
            here = nodes + b * stride + parent * FAN
            known = (parent * FAN + column < count) & (row >= 0)
            r, c, d, sums = siblings(here + column + row * 0, plane, column > row, known)
            end_r, end_c, end_d = last(r, FAN)[:, None], last(c, FAN)[:, None], last(d, FAN)[:, None]
        else:
            start, each = place_beyond(B, T, i + 1, FAN)
            r = beyond + (start + b * each + parent) * FAN
            c, d, sums = r + wide, r + 2 * wide, r + 3 * wide
            end_r, end_c, end_d = tl.load(r + FAN - 1), tl.load(c + FAN - 1), tl.load(d + FAN - 1)
            parent = parent // FAN
            here = nodes + offset + b * stride + parent * FAN
        value, at_s, s = land(
            r, c, d, sums, log_x, lowest, before, clipped, nodes, plane, B, T, b, parent * FAN, i + 1, FAN, KEYS, i > 0
        )
        met = tl.load(here + CLIPPED * plane + s, at_s != 0.0, 0.0)
        total += weight * (value + at_s * met)
        log_x = end_r + tl.minimum(log_x, end_c)
        weight = weight * end_d
    write(q, valid, out, b * T + t, t < T, total, how)
