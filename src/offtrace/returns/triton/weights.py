"""A Triton kernel for the weights of decisions: tokens, prefixes and whole rows, in one pass over the arrays, or two.

A decision is the map x ↦ min(a x, b), as in `weight_scan`: maps are scanned in blocks, and a row's blocks follow each other.
Everything is a logarithm in float64. log ρ is a difference of what is given, and a rule's logarithms are those of its
expressions: most rules take neither an exponential nor a logarithm at a step. Only the weight itself is an exponential, in
float32 where that is wanted.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from offtrace.returns.triton.scan import number

TOKEN, PREFIX, SUFFIX, SEQUENCE, GEOMETRIC = (tl.constexpr(i) for i in range(5))
SMALLEST, LARGEST = tl.constexpr(-708.0), tl.constexpr(709.0)
"""log ρ beyond which ρ is 0, or infinite, in float64."""
NOTHING, ENDLESS = tl.constexpr(-1e300), tl.constexpr(1e290)
"""log 0 and log ∞ as finite numbers: so sums need no cases, and 0 · ∞ is 0."""


@triton.jit
def log_factors(log_rho, pi, mu, rho, p0, p1, p2, p3):
    """Stand in for the logarithms of the rule's factors; `rules.bound` puts them here."""
    return p0, p0, p0


@triton.jit
def finite(x):
    """Return a logarithm, with finite numbers for −∞ and ∞; a NaN stays."""
    return tl.where(x < NOTHING, NOTHING, tl.where(x > ENDLESS, ENDLESS, x))


@triton.jit
def then(f_a, f_b, g_a, g_b):
    """Return the map f, then g. A NaN of b is lost, and is in a."""
    return f_a + g_a, tl.minimum(g_a + f_b, g_b)


@triton.jit
def before(f_a, f_b, g_a, g_b):
    """Return the map g, then f: for scans from the row's end on."""
    return f_a + g_a, tl.minimum(f_a + g_b, f_b)


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
def place(x, i, N: tl.constexpr):
    """Return place i of x [N], as [1]."""
    return tl.sum(tl.where(tl.arange(0, N) == i, x, tl.zeros_like(x)), 0) + tl.zeros([1], x.dtype)


@triton.jit
def shifted(x, first, N: tl.constexpr):
    """Return what stands one place before, and `first` in the first one."""
    t = tl.arange(0, N)
    return tl.where(t == 0, first, tl.gather(x, tl.maximum(t - 1, 0), 0))


@triton.jit
def lowest(a, b):
    """Return the smaller one; a NaN of a stays."""
    return tl.where(a == a, tl.minimum(a, b), a)


@triton.jit
def held(weights, lower, upper, BOUNDED: tl.constexpr, DROP: tl.constexpr):
    """Return weights held to the interval, or 0 outside of it."""
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
        x = x * 1.4426950408889634
        x = tl.where(x < -200.0, -200.0, tl.where(x > 200.0, 200.0, x))  # a NaN stays
        whole = tl.floor(x)
        half = (whole * 0.5).to(tl.int32)
        rest = whole.to(tl.int32) - half
        y = tl.exp2((x - whole).to(tl.float32))
        y *= ((half + 127) << 23).to(tl.float32, bitcast=True)
        y *= ((rest + 127) << 23).to(tl.float32, bitcast=True)
        return tl.where(x == x, y, float("nan"))
    else:
        return tl.where(x > LARGEST + 0.75, float("inf"), tl.exp(x))


@triton.jit
def weigh_rows(
    log_pi, log_mu, mask, segment, T, lh, lm, ll, uh, um, ul, p0h, p0m, p0l, p1h, p1m, p1l, p2h, p2m, p2l, p3h, p3m, p3l, out,
    PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr, MASK: tl.constexpr, SEGMENT: tl.constexpr, LEVEL: tl.constexpr,
    RECURSIVE: tl.constexpr, DECAYS: tl.constexpr, BOUNDED: tl.constexpr, DROP: tl.constexpr, SINGLE: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """Compute the weights of a row, in blocks of N; suffixes from the row's end on."""
    p0, p1, p2, p3 = number(p0h, p0m, p0l), number(p1h, p1m, p1l), number(p2h, p2m, p2l), number(p3h, p3m, p3l)
    lower, upper = number(lh, lm, ll), number(uh, um, ul)
    first = tl.program_id(0).to(tl.int64) * T
    t = tl.arange(0, N)
    zero = tl.zeros([1], tl.float64)
    before_a = zero
    before_b = zero + ENDLESS
    before_d = zero
    before_n = tl.zeros([1], tl.int32)
    before_id = tl.zeros([1], tl.int64)
    final = zero + ENDLESS  # the cap at read-out of the last decision
    for i in range(tl.cdiv(T, N)):
        here = i * N + t < T
        at = first + (T - 1 - i * N - t if LEVEL == SUFFIX else i * N + t)
        decision = here
        if MASK:
            decision = here & (tl.load(mask + at, here, 0) != 0)
        pi = tl.zeros([N], tl.float64)
        mu = pi
        bad = pi
        if PI or RHO:
            pi = tl.load(log_pi + at, here, 0.0).to(tl.float64)
            bad = tl.where(pi < float("inf"), 0.0, float("nan"))
        if MU or RHO:
            mu = tl.load(log_mu + at, here, 0.0).to(tl.float64)
            bad = tl.where(tl.abs(mu) < float("inf"), bad, float("nan"))
        log_rho = pi - mu
        log_rho = tl.where(log_rho < SMALLEST, float("-inf"), tl.where(log_rho > LARGEST, float("inf"), log_rho))
        d, a, b = log_factors(log_rho, tl.exp(pi), tl.exp(mu), tl.exp(log_rho), p0, p1, p2, p3)
        a = tl.where(decision, finite(a) + bad, 0.0)
        b = tl.where(decision, finite(b), ENDLESS)
        d = tl.where(decision, finite(d), 0.0)
        n = decision.to(tl.int32)
        cap = b
        if LEVEL == TOKEN:
            x = lowest(a, b) + d
        else:
            if SEGMENT:
                ids = tl.load(segment + at, here, 0).to(tl.int64)
                scanned = b if RECURSIVE else tl.zeros([N], tl.float64) + ENDLESS
                a, b, d, n, ids = tl.associative_scan((a, scanned, d, n, ids), 0, then_in_segments)
                a, b, d, n, ids = then_in_segments(before_a, before_b, before_d, before_n, before_id, a, b, d, n, ids)
                before_b, before_id = place(b, N - 1, N), place(ids, N - 1, N)
                before_n = place(n, N - 1, N)
            else:
                if LEVEL == GEOMETRIC or (LEVEL == SUFFIX and not RECURSIVE):
                    n = before_n + tl.cumsum(n, 0)
                    before_n = place(n, N - 1, N)
                if DECAYS:
                    d = before_d + tl.cumsum(d, 0)
                if LEVEL == SUFFIX:
                    if not RECURSIVE:  # the cap of the last decision acts, and no other
                        b = tl.where(decision & (n == 1), b, ENDLESS)
                    a, b = tl.associative_scan((a, b), 0, before)
                    a, b = before(before_a, before_b, a, b)
                elif RECURSIVE:
                    a, b = tl.associative_scan((a, b), 0, then)
                    a, b = then(before_a, before_b, a, b)
                else:
                    a = before_a + tl.cumsum(a, 0)
                if RECURSIVE or LEVEL == SUFFIX:
                    end_b = place(b, N - 1, N)
                    if LEVEL == SUFFIX:
                        b = shifted(b, before_b, N)
                    before_b = end_b
            end_a, end_d = place(a, N - 1, N), place(d, N - 1, N)
            if LEVEL == SUFFIX:  # of the decisions after this one
                a, d = shifted(a, before_a, N), shifted(d, before_d, N)
            before_a, before_d = end_a, end_d
            x = lowest(a, b if RECURSIVE or LEVEL == SUFFIX else cap)
            if DECAYS:
                x += d
            if LEVEL > SUFFIX and not RECURSIVE:
                latest = tl.max(tl.where(decision, t, -1), 0)
                final = tl.where(latest < 0, final, place(tl.where(decision, cap, 0.0), latest, N))
        if LEVEL <= SUFFIX:
            w = held(e_to(x, SINGLE), lower, upper, BOUNDED, DROP)
            tl.store(out + at, tl.where(decision, w, 0.0).to(out.dtype.element_ty), here)
    if LEVEL > SUFFIX:
        x = lowest(before_a, before_b if RECURSIVE else final)
        if DECAYS:
            x += before_d
        if LEVEL == GEOMETRIC:
            x = x / tl.maximum(before_n, 1)
        w = held(e_to(x, SINGLE), lower, upper, BOUNDED, DROP)
        for i in range(tl.cdiv(T, N)):
            here = i * N + t < T
            decision = here
            if MASK:
                decision = here & (tl.load(mask + first + i * N + t, here, 0) != 0)
            tl.store(out + first + i * N + t, tl.where(decision, w, 0.0).to(out.dtype.element_ty), here)
