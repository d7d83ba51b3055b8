"""A Triton kernel for the weights of decisions: tokens, prefixes and whole rows, in one pass over the arrays, or two.

A decision is the map x ↦ min(a x, b), as in `weights.scan`: maps are scanned in blocks, and a row's blocks follow each other.
Everything is a logarithm in float64. log ρ is a difference of what is given, and a rule's logarithms are those of its
expressions: most rules take neither an exponential nor a logarithm at a step. Only the weight itself is an exponential, in
float32 where that is wanted.
"""

# pyright: reportInvalidTypeForm=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false, reportPossiblyUnboundVariable=false
from __future__ import annotations

import triton
import triton.language as tl

from offtrace.returns.triton.load import numbers
from offtrace.returns.triton.rule_source import ENDLESS, LARGEST, NOTHING, SMALLEST

TOKEN, PREFIX, SUFFIX, SEQUENCE, GEOMETRIC = (tl.constexpr(i) for i in range(5))
ONE, SAME, OTHER = (tl.constexpr(i) for i in range(3))
"""What a rule's decays are: all 1, all the same number, or another one at each step."""


@triton.jit
def lowest(a, b):
    """Return the smaller one; a NaN of a stays. Triton's own minimum takes three times as many instructions in float64."""
    return tl.where(b < a, b, a)


@triton.jit
def then(f_a, f_b, g_a, g_b):
    """Return the map f, then g."""
    return f_a + g_a, lowest(g_a + f_b, g_b)


@triton.jit
def before(f_a, f_b, g_a, g_b):
    """Return the map g, then f: for scans from the row's end on."""
    return f_a + g_a, lowest(f_a + g_b, f_b)


@triton.jit
def then_and_count(f_a, f_b, f_n, g_a, g_b, g_n):
    """Return f, then g, and how many decisions are in both."""
    a, b = then(f_a, f_b, g_a, g_b)
    return a, b, f_n + g_n


@triton.jit
def before_and_count(f_a, f_b, f_n, g_a, g_b, g_n):
    """Return g, then f, and how many decisions are in both."""
    a, b = before(f_a, f_b, g_a, g_b)
    return a, b, f_n + g_n


@triton.jit
def then_in_segments(f_a, f_b, f_d, f_n, f_id, g_a, g_b, g_d, g_n, g_id):
    """Return f, then g, of the last segment in them; d is the sum of log decay, n how many decisions there are.

    Ids do not fall, and a step without a decision has none: there n is 0.
    """
    a, b = then(f_a, f_b, g_a, g_b)
    d, n = f_d + g_d, f_n + g_n
    other = (f_n > 0) & (g_n > 0) & (f_id != g_id)
    a, b, d = tl.where(other, g_a, a), tl.where(other, g_b, b), tl.where(other, g_d, d)
    return a, b, d, tl.where(other, g_n, n), tl.where(g_n > 0, g_id, f_id)


@triton.jit
def end_of(x, N: tl.constexpr):
    """Return the last place of x [N], as [1]. Of neighbours, which a thread has, the last one is taken first."""
    M: tl.constexpr = N if N < 4 else N // 4
    if N >= 4:
        for _ in tl.static_range(2):
            x = tl.split(x.reshape(x.shape[0] // 2, 2))[1]
    return tl.sum(tl.where(tl.arange(0, M) == M - 1, x, tl.zeros_like(x)), 0) + tl.zeros([1], x.dtype)


@triton.jit
def turned(x, N: tl.constexpr):
    """Return x [N] with every four neighbours in the opposite order: a thread has them, and so this moves nothing."""
    if N < 4:
        return x
    else:
        even, odd = tl.split(x.reshape(N // 4, 2, 2))
        x0, x2 = tl.split(even)
        x1, x3 = tl.split(odd)
        return tl.join(tl.join(x3, x1), tl.join(x2, x0)).reshape(N)


@triton.jit
def held(weights, lower, upper, BOUNDED: tl.constexpr, DROP: tl.constexpr):
    """Return weights that are bounded by the interval, or 0 outside of it."""
    if BOUNDED:
        if DROP:
            weights = tl.where((weights < lower) | (weights > upper), 0.0, weights)
        else:
            weights = tl.where(weights < lower, lower, tl.where(weights > upper, upper, weights))
    return weights


@triton.jit
def e_to(x, SINGLE: tl.constexpr):
    """Return e^x; with float32's digits if SINGLE, which takes a tenth of the time."""
    if SINGLE:
        # 1.5 · 2^52 is so large that a sum with it is rounded to a whole number, whose last bits are those of the sum.
        shifted = x * 1.4426950408889634 + 6755399441055744.0
        whole = shifted.to(tl.int64, bitcast=True).to(tl.int32)
        y = tl.exp2((x * 1.4426950408889634 - (shifted - 6755399441055744.0)).to(tl.float32))
        half = whole >> 1
        y *= ((half + 127) << 23).to(tl.float32, bitcast=True)
        y *= ((whole - half + 127) << 23).to(tl.float32, bitcast=True)
        y = tl.where(x < -140.0, 0.0, y)  # where the whole number is any, and the power too
        return tl.where(x > 140.0, float("inf"), y)
    else:
        return tl.where(x > LARGEST + 0.75, float("inf"), tl.exp(x))


@triton.jit
def steps_of(block, blocks, t, N: tl.constexpr, GROUP: tl.constexpr, BACK: tl.constexpr):
    """Return the steps of a block; from the row's end on if BACK, but neighbours in their own order, to be loaded at once."""
    return (blocks - block) * N - GROUP - t // GROUP * GROUP + t % GROUP if BACK else block * N + t


@triton.jit
def loaded(
    log_pi, log_mu, mask, first, step, here, PI: tl.constexpr, MU: tl.constexpr, MASK: tl.constexpr, N: tl.constexpr
):
    """Return log π, log μ and the mask at these steps; 0 and 1 where there is none."""
    at = first + step
    pi = tl.load(log_pi + at, here, 0.0) if PI else tl.zeros([N], tl.float32)
    mu = tl.load(log_mu + at, here, 0.0) if MU else tl.zeros([N], tl.float32)
    return pi, mu, tl.load(mask + at, here, 0) if MASK else tl.full([N], 1, tl.int8)


@triton.jit
def weigh_rows(
    log_pi, log_mu, mask, segment, starts, T, lower: tl.float64, upper: tl.float64,
    p0: tl.float64, p1: tl.float64, p2: tl.float64, p3: tl.float64, total: tl.float64, out,
    RULE: tl.constexpr, PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr, MASK: tl.constexpr, SEGMENT: tl.constexpr,
    LEVEL: tl.constexpr, RECURSIVE: tl.constexpr, DECAYS: tl.constexpr, ONE_CAP: tl.constexpr, BOUNDED: tl.constexpr,
    DROP: tl.constexpr, SINGLE: tl.constexpr, PACKED: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Compute the weights of a row, in blocks of N; suffixes from the row's end on. RULE returns logarithms (`rule_source`).

    Packed rows lie in flat arrays, from starts[b] up to starts[b + 1], whatever T is; nothing beyond `total` is touched.
    """
    lower, upper, p0, p1, p2, p3, total = numbers(lower, upper, p0, p1, p2, p3, total)
    first = tl.program_id(0).to(tl.int64) * T
    if PACKED:
        entries = total.to(tl.int64)
        first = tl.maximum(tl.minimum(tl.load(starts + tl.program_id(0)).to(tl.int64), entries), 0)
        T = (tl.maximum(tl.minimum(tl.load(starts + tl.program_id(0) + 1).to(tl.int64), entries), first) - first).to(
            tl.int32
        )
    t = tl.arange(0, N)
    zero = tl.zeros([1], tl.float64)
    before_a = zero
    before_b = zero + ENDLESS
    before_d = zero
    before_n = tl.zeros([1], tl.int32)
    before_id = tl.zeros([1], tl.int64)
    final = zero + ENDLESS  # the cap at read-out of the last decision
    blocks = tl.cdiv(T, N)
    BACK: tl.constexpr = LEVEL == SUFFIX
    COUNTS: tl.constexpr = LEVEL == GEOMETRIC or DECAYS == SAME or (BACK and not RECURSIVE)
    GROUP: tl.constexpr = 4 if N >= 4 else 1
    SUMS: tl.constexpr = LEVEL > SUFFIX and not RECURSIVE  # of a row nothing else is needed
    if BACK:  # no decision comes after the last step
        last = first + T - 1 + tl.zeros([1], tl.int32)
        alone = held(e_to(zero, SINGLE), lower, upper, BOUNDED, DROP)
        any_step = last >= first  # a packed row may be empty
        if MASK:
            alone = tl.where(tl.load(mask + last, any_step, 0) != 0, alone, 0.0)
        tl.store(out + last, alone.to(out.dtype.element_ty), any_step)
    step = steps_of(0, blocks, t, N, GROUP, BACK)
    pi, mu, marked = loaded(log_pi, log_mu, mask, first, step, (step < T) & (step >= 0), PI or RHO, MU or RHO, MASK, N)
    for block in range(blocks):
        here = step < T
        at = first + step
        decision = here & (marked != 0)
        later = steps_of(block + 1, blocks, t, N, GROUP, BACK)
        there = (later < T) & (later >= 0)
        # the next block is on its way while this one is scanned
        next_pi, next_mu, next_marked = loaded(log_pi, log_mu, mask, first, later, there, PI or RHO, MU or RHO, MASK, N)
        if PI or RHO:
            pi = tl.where(pi < float("inf"), pi, float("nan")).to(pi.dtype)
        if MU or RHO:
            mu = tl.where(tl.abs(mu) < float("inf"), mu, float("nan")).to(mu.dtype)
        if BACK:
            pi, mu, decision = turned(pi, N), turned(mu, N), turned(decision.to(tl.int8), N) != 0
        size = pi.to(tl.float32) - mu.to(tl.float32)  # compared in float32, which is faster
        pi64, mu64 = pi.to(tl.float64), mu.to(tl.float64)
        log_rho = tl.where(size < SMALLEST, NOTHING, tl.where(size > LARGEST, ENDLESS, pi64 - mu64))
        rho = tl.where(size < SMALLEST, 0.0, tl.exp(log_rho))
        d, a, b = RULE(log_rho, tl.exp(pi64), tl.exp(mu64), rho, p0, p1, p2, p3)
        a = tl.where(decision & (size == size), a, tl.where(decision, float("nan"), 0.0))
        cap = tl.where(decision, b, ENDLESS)
        b = cap
        n = decision.to(tl.int32)
        one_d = d
        d = tl.where(decision, d, 0.0)
        if LEVEL == TOKEN:
            x = lowest(a, b) + d
        elif SEGMENT:
            ids = tl.load(segment + at, here, 0).to(tl.int64)
            scanned = b if RECURSIVE else tl.zeros([N], tl.float64) + ENDLESS
            a, b, d, n, ids = tl.associative_scan((a, scanned, d, n, ids), 0, then_in_segments)
            a, b, d, n, ids = then_in_segments(before_a, before_b, before_d, before_n, before_id, a, b, d, n, ids)
            before_a, before_b, before_d = end_of(a, N), end_of(b, N), end_of(d, N)
            before_n, before_id = end_of(n, N), end_of(ids, N)
            x = lowest(a, b if RECURSIVE else cap) + d
        elif SUMS:
            before_a += tl.sum(a, 0)
            before_n += tl.sum(n, 0)
            if DECAYS == OTHER:
                before_d += tl.sum(d, 0)
            if not ONE_CAP:
                latest = tl.max(tl.where(decision, t, -1), 0)
                chosen = tl.sum(tl.where(t == latest, cap, 0.0), 0)
                final = tl.where(latest < 0, final, chosen)
        else:
            # A block is scanned alone, and what comes before it is put in front afterwards: so no scan waits for another.
            if COUNTS and not RECURSIVE:
                n = before_n + tl.cumsum(n, 0)
                before_n = end_of(n, N)
                if BACK:  # the cap of the last decision acts, and no other
                    b = tl.where(decision & (n == 1), b, ENDLESS)
            if DECAYS == OTHER:
                d = before_d + tl.cumsum(d, 0)
                before_d = end_of(d, N)
            if BACK or RECURSIVE:
                if COUNTS and RECURSIVE:
                    a, b, n = tl.associative_scan((a, b, n), 0, before_and_count if BACK else then_and_count)
                    n += before_n
                    before_n = end_of(n, N)
                else:
                    a, b = tl.associative_scan((a, b), 0, before if BACK else then)
                end_a, end_b = end_of(a, N), end_of(b, N)
                if BACK:
                    x = lowest(before_a + lowest(a, b), before_b)
                    before_b = lowest(before_a + end_b, before_b)
                    before_a += end_a
                else:  # what comes before is a number
                    x = lowest(before_a + a, b)
                    before_a = lowest(before_a + end_a, end_b)
            else:
                a = tl.cumsum(a, 0)
                x = lowest(before_a + a, cap)
                before_a += end_of(a, N)
            if DECAYS == OTHER:
                x += d
            elif DECAYS == SAME:
                x += one_d * n
        if LEVEL <= SUFFIX:
            w = held(e_to(x, SINGLE), lower, upper, BOUNDED, DROP)
            if BACK:  # what is from here on is what comes after the step before
                w = turned(w, N)
                at, here = at - 1, here & (step > 0)
                decision = here
                if MASK:
                    decision = here & (tl.load(mask + at, here, 0) != 0)
            tl.store(out + at, tl.where(decision, w, 0.0).to(out.dtype.element_ty), here)
        step, pi, mu, marked = later, next_pi, next_mu, next_marked
    if LEVEL > SUFFIX:
        x = lowest(before_a, final)
        if DECAYS == OTHER:
            x += before_d
        if DECAYS == SAME or (SUMS and ONE_CAP):
            d, a, b = RULE(zero, zero, zero, zero, p0, p1, p2, p3)
            if SUMS and ONE_CAP:
                x = lowest(before_a, b)
            if DECAYS == SAME:
                x += d * before_n
        if LEVEL == GEOMETRIC:
            x = x / tl.maximum(before_n, 1)
        w = held(e_to(x, SINGLE), lower, upper, BOUNDED, DROP)
        for i in range(blocks):
            here = i * N + t < T
            decision = here
            if MASK:
                decision = here & (tl.load(mask + first + i * N + t, here, 0) != 0)
            tl.store(out + first + i * N + t, tl.where(decision, w, 0.0).to(out.dtype.element_ty), here)
