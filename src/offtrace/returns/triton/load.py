"""What the kernels read and write: δ, discounts and a rule's factors, from the user's arrays or given, and Δ.

A trace leaves t−1 with g_{t-1} = discount_{t-1} and enters t with decay_t and ratio_t; where any of them is 0 it is *cut*.

The arrays come as a tuple `a`: reward, q, next_value, terminated, truncated, valid, gamma, log_pi, log_mu, each [B, T]. RULE is
the rule's function of `rule_source`; without one, `a` is δ, g, five that are not read, ratio and cap. Numbers come as a tuple
`n`: γ, the rule's four parameters, and what makes w of ρ on state values. READS says which of all that there is, as a sum of the
constants below.

On STATES q is V, δ is w δ with w = min(ρ̄, share ρ + 1 − share), and a trace meets at t the action of t−1 (`numpy.read_steps`).

A kernel's arguments are arrays that it reads, whole numbers, other numbers, arrays that it writes, constants. What it changes
stands among both kinds of arrays, as JAX wants it; it is then read where it is written.
"""

# pyright: reportInvalidTypeForm=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

PI, MU, RHO, GAMMAS, VALID, STATES = (tl.constexpr(1 << i) for i in range(6))
"""The rule reads π, μ, ρ; γ is an array; there is padding; the values are those of states."""
ADD_Q, PADDED = tl.constexpr(1), tl.constexpr(2)
"""How Δ is written: with q, and with 0 where there is padding."""


@triton.jit
def times(a, b):
    """Return the product, for scans."""
    return a * b


@triton.jit
def lower(a, b):
    """Return the smaller one, for scans."""
    return tl.minimum(a, b)


@triton.jit
def numbers(gamma, p0, p1, p2, p3, share, bound):
    """Return the numbers of a call as float64."""
    none = tl.full([], 0.0, tl.float64)
    return none + gamma, none + p0, none + p1, none + p2, none + p3, none + share, none + bound


@triton.jit
def live(a, at, inside, READS: tl.constexpr):
    """Tell where there is a step that is not padding."""
    if VALID & READS:
        inside = inside & (tl.load(a[5] + at, inside, 0) != 0)
    return inside


@triton.jit
def e_to(x):
    """Return e^x; what is below the smallest normal number counts as 0."""
    return tl.where(x < -708.0, 0.0, tl.exp(x))


# Loads are masked by the row's ends alone, and what must not be read is selected away: so they can be vectors.


@triton.jit
def td_error(a, b, t, T, n, RULE: tl.constexpr, READS: tl.constexpr):
    """Return δ_t, or w_t δ_t on state values, in float64; 0 outside the row and at invalid steps."""
    inside = (t >= 0) & (t < T)
    at = b * T + t
    delta = tl.load(a[0] + at, inside, 0.0).to(tl.float64)
    if RULE is not None:
        q = tl.load(a[1] + at, inside, 0.0).to(tl.float64)
        v = tl.load(a[2] + at, inside, 0.0).to(tl.float64)
        v = tl.where(tl.load(a[3] + at, inside, 0) != 0, 0.0, v)
        g = n[0]
        if GAMMAS & READS:
            g = tl.load(a[6] + at, inside, 0.0).to(tl.float64)
        delta = delta + g * v - q
        if STATES & READS:
            delta = delta * state_weight(a, at, inside, n)
        if VALID & READS:
            delta = tl.where(live(a, at, inside, READS), delta, 0.0)
    return delta


@triton.jit
def state_weight(a, at, inside, n):
    """Return w = min(ρ̄, share ρ + 1 − share), NaN where no such action could have been taken."""
    _, _, rho, bad = probabilities(a, at, inside, RHO)
    weight = n[5] * rho + (1.0 - n[5]) + bad
    return tl.where(weight > n[6], n[6], weight)


@triton.jit
def probabilities(a, at, inside, READS: tl.constexpr):
    """Return π, μ, ρ in float64, 1 where nothing is read; and NaN where no such action could have been taken, else 0."""
    log_pi = tl.full([], 0.0, tl.float64)
    log_mu = tl.full([], 0.0, tl.float64)
    if (PI | RHO) & READS:
        log_pi = tl.load(a[7] + at, inside, 0.0).to(tl.float64)
    if (MU | RHO) & READS:
        log_mu = tl.load(a[8] + at, inside, 0.0).to(tl.float64)
    pi = tl.full([], 1.0, tl.float64)
    mu = tl.full([], 1.0, tl.float64)
    rho = tl.full([], 1.0, tl.float64)
    if PI & READS:
        pi = e_to(log_pi)
    if MU & READS:
        mu = e_to(log_mu)
    if RHO & READS:
        rho = e_to(log_pi - log_mu)
    # μ = 0, π infinite, or either NaN. A rule's own xp.where could hide it, so it is returned separately.
    bad = tl.where(tl.abs(log_mu) < float("inf"), tl.where(log_pi < float("inf"), 0.0, float("nan")), float("nan"))
    return pi, mu, rho, bad


@triton.jit
def leaves(a, b, t, T, n, RULE: tl.constexpr, READS: tl.constexpr):
    """Return discount_t in float64 where a trace may leave step t for the next, else 0."""
    inside = (t >= 0) & (t < T)
    at = b * T + t
    if RULE is None:
        g = tl.load(a[1] + at, inside, 0.0).to(tl.float64)
    else:
        goes_on = (tl.load(a[3] + at, inside, 1) == 0) & (tl.load(a[4] + at, inside, 1) == 0)
        g = n[0]
        if GAMMAS & READS:
            g = tl.load(a[6] + at, inside, 0.0).to(tl.float64)
        g = tl.where(goes_on & live(a, at, inside, READS), g, 0.0)
    return g


@triton.jit
def enters(a, b, t, T, n, RULE: tl.constexpr, READS: tl.constexpr, RECURSIVE: tl.constexpr):
    """Return decay_t, ratio_t and cap_t in float64; all are 0 where no trace may enter. ratio is NaN where it is not known."""
    inside = (t >= 0) & (t < T)
    at = b * T + t
    if RULE is None:
        decay = tl.full([], 1.0, tl.float64)
        ratio = tl.load(a[7] + at, inside, 0.0).to(tl.float64)
        cap = tl.load(a[8] + at, inside, 0.0).to(tl.float64)
    else:
        inside = live(a, at, inside, READS)
        met, met_inside = at, (t >= 0) & (t < T)
        if STATES & READS:
            met, met_inside = at - 1, (t > 0) & (t < T)
            inside = inside & live(a, met, met_inside, READS)
        pi, mu, rho, bad = probabilities(a, met, met_inside, READS)
        decay, ratio, cap = RULE(pi, mu, rho, n[1], n[2], n[3], n[4])
        # An infinite ratio clips every trace to a recursive cap. Without one it is as good as unknown.
        ratio = ratio + bad
        if not RECURSIVE:
            ratio = tl.where(ratio < float("inf"), ratio, float("nan"))
    return tl.where(inside, decay, 0.0), tl.where(inside, ratio, 0.0), tl.where(inside, cap, 0.0)


@triton.jit
def link(a, b, t, T, n, RULE: tl.constexpr, READS: tl.constexpr, RECURSIVE: tl.constexpr):
    """Return h_t, ratio_t and cap_t in float64; h and ratio are both 0 where the trace is cut."""
    decay, ratio, cap = enters(a, b, t, T, n, RULE, READS, RECURSIVE)
    h = leaves(a, b, t - 1, T, n, RULE, READS) * decay
    cut = (h == 0.0) | (ratio == 0.0)
    return tl.where(cut, 0.0, h), tl.where(cut, 0.0, ratio), cap


@triton.jit
def write(q, valid, out, at, inside, correction, how):
    """Store Δ, as `how` says; it may be a number of the call, so that all ways are one program."""
    correction = correction + tl.load(q + at, inside & (how % 2 == 1), 0.0)
    live = tl.load(valid + at, inside & (how >= 2), 1) != 0
    tl.store(out + at, tl.where(live, correction, 0.0).to(out.dtype.element_ty), inside)


@triton.jit
def fill(value, size, out, N: tl.constexpr):
    """Write one value to `size` places."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, value, i < size)


@triton.jit
def write_states(
    a, b, t, T, n, lam, delta, weight, discount, correction, following, target, advantage, out, inside,
    READS: tl.constexpr,
):  # fmt: skip
    """Store V + Δ, w (δ + λ discount (target_{t+1} − next_value)), and Δ; `following` is Δ one step later."""
    at = b * T + t
    valid = live(a, at, inside, READS)
    ahead = inside & (t + 1 < T)
    goes_on = live(a, at + 1, ahead, READS) & (discount > 0.0)
    # What v_{t+1} adds to V(s_{t+1}); next_value is the true one, so that it is never the next episode's.
    next_value = tl.load(a[2] + at, inside, 0.0).to(tl.float64)
    more = tl.load(a[1] + at + 1, ahead, 0.0).to(tl.float64) + following - next_value
    delta += tl.where(goes_on, discount * lam * more, 0.0)
    value = tl.load(a[1] + at, inside, 0.0).to(tl.float64)
    kind = out.dtype.element_ty
    tl.store(target + at, tl.where(valid, value + correction, 0.0).to(kind), inside)
    tl.store(advantage + at, tl.where(valid & (weight != 0.0), weight * delta, 0.0).to(kind), inside)
    tl.store(out + at, tl.where(valid, correction, 0.0).to(kind), inside)


@triton.jit(do_not_specialize=["chunks"])
def state_results(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, excesses, T, chunks,
    gamma: tl.float64, p0: tl.float64, p1: tl.float64, p2: tl.float64, p3: tl.float64, share: tl.float64, bound: tl.float64,
    lam: tl.float64, target, advantage, correction, RULE: tl.constexpr, READS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Store target, advantage and correction, of Δ: N steps of a row."""
    a = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    n = numbers(gamma, p0, p1, p2, p3, share, bound)
    b = (tl.program_id(0) // chunks).to(tl.int64)
    t = tl.program_id(0) % chunks * N + tl.arange(0, N)
    at, inside = b * T + t, t < T
    excess = tl.load(excesses + at, inside, 0.0).to(tl.float64)
    following = tl.load(excesses + at + 1, t + 1 < T, 0.0).to(tl.float64)
    delta, weight = td_error(a, b, t, T, n, RULE, READS - STATES), state_weight(a, at, inside, n)
    discount = leaves(a, b, t, T, n, RULE, READS)
    write_states(
        a, b, t, T, n, lam, delta, weight, discount, excess, following, target, advantage, correction, inside, READS
    )
