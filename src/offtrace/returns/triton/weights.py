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

from offtrace.returns.triton.rules import least
from offtrace.returns.triton.scan import number

TOKEN, PREFIX, SEQUENCE, GEOMETRIC = (tl.constexpr(i) for i in range(4))
SMALLEST, LARGEST = tl.constexpr(-708.0), tl.constexpr(709.0)
"""log ρ beyond which ρ is 0, or infinite, in float64."""


@triton.jit
def log_factors(log_rho, pi, mu, rho, p0, p1, p2, p3):
    """Stand in for the logarithms of the rule's factors; `rules.bound` puts them here."""
    return p0, p0, p0


@triton.jit
def plus(a, b):
    """Return log(e^a e^b), where 0 · ∞ is 0."""
    none = float("-inf")
    return tl.where((a == none) | (b == none), none, a + b)


@triton.jit
def then(f_a, f_b, f_d, f_n, g_a, g_b, g_d, g_n):
    """Return the map f, then g; d is the sum of log decay, n how many decisions there are."""
    passed = tl.where(f_b == float("inf"), float("inf"), plus(g_a, f_b))
    return plus(f_a, g_a), least(passed, g_b), plus(f_d, g_d), f_n + g_n


@triton.jit
def then_in_segments(f_a, f_b, f_d, f_n, f_id, g_a, g_b, g_d, g_n, g_id):
    """Return the same of the last segment in f and g. Ids do not fall, and a step without a decision has none: n is 0."""
    a, b, d, n = then(f_a, f_b, f_d, f_n, g_a, g_b, g_d, g_n)
    other = (f_n > 0) & (g_n > 0) & (f_id != g_id)
    a, b, d = tl.where(other, g_a, a), tl.where(other, g_b, b), tl.where(other, g_d, d)
    return a, b, d, tl.where(other, g_n, n), tl.where(g_n > 0, g_id, f_id)


@triton.jit
def place(x, i, N: tl.constexpr):
    """Return place i of x [N], as [1]."""
    return tl.sum(tl.where(tl.arange(0, N) == i, x, tl.zeros_like(x)), 0) + tl.zeros([1], x.dtype)


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
        return tl.exp(x)


@triton.jit
def weigh_rows(
    log_pi, log_mu, mask, segment, T, lh, lm, ll, uh, um, ul, p0h, p0m, p0l, p1h, p1m, p1l, p2h, p2m, p2l, p3h, p3m, p3l, out,
    PI: tl.constexpr, MU: tl.constexpr, RHO: tl.constexpr, MASK: tl.constexpr, SEGMENT: tl.constexpr,
    LEVEL: tl.constexpr, RECURSIVE: tl.constexpr, BOUNDED: tl.constexpr, DROP: tl.constexpr, SINGLE: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """Compute the weights of a row, in blocks of N."""
    p0, p1, p2, p3 = number(p0h, p0m, p0l), number(p1h, p1m, p1l), number(p2h, p2m, p2l), number(p3h, p3m, p3l)
    lower, upper = number(lh, lm, ll), number(uh, um, ul)
    at = tl.program_id(0).to(tl.int64) * T
    t = tl.arange(0, N)
    inf = float("inf")
    before_a = tl.zeros([1], tl.float64)
    before_b = before_a + inf
    before_d = before_a
    before_n = tl.zeros([1], tl.int32)
    before_id = tl.zeros([1], tl.int64)
    final = before_b  # the cap at read-out of the last decision
    for i in range(tl.cdiv(T, N)):
        here = i * N + t < T
        decision = here
        if MASK:
            decision = here & (tl.load(mask + at + i * N + t, here, 0) != 0)
        log_rho = tl.zeros([N], tl.float64)
        pi = log_rho
        mu = log_rho
        bad = log_rho
        if PI or RHO:
            pi = tl.load(log_pi + at + i * N + t, here, 0.0).to(tl.float64)
            bad = tl.where(pi < inf, 0.0, float("nan"))
        if MU or RHO:
            mu = tl.load(log_mu + at + i * N + t, here, 0.0).to(tl.float64)
            bad = tl.where(tl.abs(mu) < inf, bad, float("nan"))
        log_rho = pi - mu
        log_rho = tl.where(log_rho < SMALLEST, -inf, tl.where(log_rho > LARGEST, inf, log_rho))
        d, a, b = log_factors(log_rho, tl.exp(pi), tl.exp(mu), tl.exp(log_rho), p0, p1, p2, p3)
        a = tl.where(decision, a + bad, 0.0)
        b = tl.where(decision, b, inf)
        d = tl.where(decision, d, 0.0)
        n = decision.to(tl.int32)
        if LEVEL == TOKEN:
            x = plus(d, least(a, b))
        else:
            scanned = b
            if not RECURSIVE:
                scanned = tl.zeros([N], tl.float64) + inf
            if SEGMENT:
                ids = tl.load(segment + at + i * N + t, here, 0).to(tl.int64)
                a, c, d, n, ids = tl.associative_scan((a, scanned, d, n, ids), 0, then_in_segments)
                a, c, d, n, ids = then_in_segments(before_a, before_b, before_d, before_n, before_id, a, c, d, n, ids)
                before_id = place(ids, N - 1, N)
            else:
                a, c, d, n = tl.associative_scan((a, scanned, d, n), 0, then)
                a, c, d, n = then(before_a, before_b, before_d, before_n, a, c, d, n)
            before_a, before_b = place(a, N - 1, N), place(c, N - 1, N)
            before_d, before_n = place(d, N - 1, N), place(n, N - 1, N)
            if not RECURSIVE:
                latest = tl.max(tl.where(decision, t, -1), 0)
                final = tl.where(latest < 0, final, place(tl.where(decision, b, 0.0), latest, N))
            x = plus(d, least(a, c if RECURSIVE else b))
        if LEVEL <= PREFIX:
            w = held(e_to(x, SINGLE), lower, upper, BOUNDED, DROP)
            tl.store(out + at + i * N + t, tl.where(decision, w, 0.0).to(out.dtype.element_ty), here)
    if LEVEL > PREFIX:
        x = plus(before_d, least(before_a, before_b if RECURSIVE else final))
        if LEVEL == GEOMETRIC:
            x = x / tl.maximum(before_n, 1)
        w = held(e_to(x, SINGLE), lower, upper, BOUNDED, DROP)
        for i in range(tl.cdiv(T, N)):
            here = i * N + t < T
            decision = here
            if MASK:
                decision = here & (tl.load(mask + at + i * N + t, here, 0) != 0)
            tl.store(out + at + i * N + t, tl.where(decision, w, 0.0).to(out.dtype.element_ty), here)
