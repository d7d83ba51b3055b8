"""What the paper says of specific algorithms in policy evaluation, each as a computation."""

from __future__ import annotations

from functools import partial

import numpy as np

import offtrace.traces as ot
from offtrace.mdps import alternating, one_state_two_actions, powers_of_two, q_lambda_tight
from offtrace.operators.auditing.claims.common import FIRST_ACTION, Found, battery, claim, operators, sizes
from offtrace.operators.falsify import falsify
from offtrace.operators.operator import Operator
from offtrace.operators.proofs import proof

SEARCH = 1.0
"""Seconds that each search of the audit may take."""


@claim("Q(λ) converges when π and μ are near, and not when they differ too much", "Section 2.2")
def _q_lambda() -> Found:
    excess, near = -np.inf, 0
    for lam in (0.3, 0.6, 1.0):
        for op in operators(ot.QLambda(lam)):
            γ, ε = op.mdp.gamma, np.abs(op.setting.pi - op.setting.mu).sum(axis=1).max()
            bound = γ * (1 - lam + lam * ε) / (1 - lam * γ)
            excess, near = max(excess, op.contraction.lower - bound), near + (bound < 1)
    mdp, pi, mu = q_lambda_tight()
    far = Operator(ot.QLambda(1.0), mdp, target=pi, behavior=mu)
    numbers = (
        f"largest ‖Z‖ − γ(1−λ+λε)/(1−λγ), ε = max ‖π − μ‖₁: {excess:.1e}, where {near} of "
        f"{3 * len(battery())} such bounds are below 1. Far apart, λ = 1: {sizes(far)}"
    )
    shown = (partial(proof, ot.QLambda(1.0), mdp, pi, mu),)
    return Found(excess > 1e-9 or not far.spectral_radius > 1, numbers, "random MDPs; q_lambda_tight(gamma=0.9)", shown)


def searched(*traces: ot.Trace) -> Found:
    """Real searches for divergence, in few words."""
    refuted, said = False, []
    for trace in traces:
        search = falsify(trace, budget=SEARCH, seed=7)
        seen = (
            f"diverges, radius {search.radius}, ‖Z‖ = {search.contraction}"
            if search.found
            else f"largest radius {search.radius.upper:.5f}"
        )
        said.append(f"{trace.title}, λ = {getattr(trace, 'lam', 1.0):g}: {seen} in {search.tried:,} MDPs")
        refuted |= search.found
    shown = tuple(partial(proof, trace, *powers_of_two()) for trace in traces)
    return Found(refuted, "; ".join(said), "falsify: 3 states, 2 actions, γ = 0.98", shown)


@claim("Tree Backup and Retrace converge for arbitrary π and μ (evaluation)", "Section 2.2")
def _per_decision() -> Found:
    return searched(ot.TreeBackup(), ot.Retrace())


@claim("Retrace does not cut on-policy: at λ = 1 its rate is that of importance sampling, 0", "Section 2.2")
def _retrace_on_policy() -> Found:
    worst = max(Operator(ot.Retrace(), m, target=mu, behavior=mu).contraction.upper for m, _, mu in battery())
    mdp, pi, _ = powers_of_two()
    shown = (partial(proof, ot.Retrace(), mdp, pi, pi),)
    return Found(worst > 1e-6, f"largest ‖Z‖ = {worst:.1e}", f"{len(battery())} random MDPs, π = μ", shown)


@claim("Non-Markov Retrace converges (evaluation)", "Section 4.3")
def _non_markov_retrace() -> Found:
    return searched(ot.NonMarkovRetrace(), ot.NonMarkovRetrace(0.9))


@claim("Truncated IS converges for any choice of d_t", "Section 4.3")
def _truncated_is_by_lag() -> Found:
    mdp, pi, mu = alternating()
    whole, one = (Operator(ot.TruncatedIS(bound=(0.0, d, 0.0)), mdp, target=pi, behavior=mu) for d in (2.25, 1.0))
    numbers = f"off-policy, d = (0, 9/4, 0, …), so that β_2 = ρ₁ρ₂: {sizes(whole)}; d = (0, 1, 0, …): {sizes(one)}"
    shown = tuple(partial(proof, op.trace, mdp, pi, mu) for op in (whole, one))
    return Found(whole.spectral_radius > 1, numbers, "alternating(gamma=0.9)", shown)


@claim("Truncated IS with one bound d = 1 converges", "Section 4.3")
def _truncated_is() -> Found:
    mdp, pi, mu = powers_of_two()
    op = Operator(ot.TruncatedIS(1.0), mdp, target=pi, behavior=mu, tolerance=1e-5)
    least = np.linalg.eigvals(op.Z).real.min()
    numbers = f"spectral radius {op.spectral_radius}, eigenvalue {least:.4f}; ‖Z‖ = {op.contraction}"
    return Found(op.spectral_radius > 1, numbers, "powers_of_two(gamma=0.98)", (partial(proof, op.trace, mdp, pi, mu),))


@claim(
    "its two counterexamples, Truncated IS off-policy and binary traces on-policy, demonstrate divergence",
    "its successor, Daley et al. 2023: repository, Counterexamples 5.7 and 5.8",
)
def _successor() -> Found:
    off, on = one_state_two_actions(target=(0.6, 0.4), gamma=0.94), one_state_two_actions()
    truncated, binary = (
        Operator(trace, mdp, target=pi, behavior=mu)
        for trace, (mdp, pi, mu) in ((ot.TruncatedIS(1.0), off), (FIRST_ACTION, on))
    )
    numbers = (
        f"5.7: {sizes(truncated)}; 5.8: {sizes(binary)}. Neither contracts; iterating M converges in both. Read as saying "
        "that M may diverge where β_t ≤ β_{t-1}ρ_t fails, it holds: the row above"
    )
    return Found(
        all(op.spectral_radius < 1 for op in (truncated, binary)),
        numbers,
        "one_state_two_actions(target=(.6, .4), gamma=.94); one_state_two_actions()",
        (partial(proof, ot.TruncatedIS(1.0), *off),),
    )


SPREAD = "one_state_two_actions(target=(.9, .1), behavior=(.1, .9), gamma=.9)"


def variance_of_truncated_is(*bound: float) -> float:
    """The variance of Δ for Q = 0 where r = 1 for the rarer action; `bound` are d_1, d_2, …, and later β are 0."""
    mdp, pi, mu = one_state_two_actions(target=(0.9, 0.1), behavior=(0.1, 0.9), gamma=0.9, reward=(1.0, 0.0))
    trace = ot.TruncatedIS(bound=bound, horizon=len(bound) + 1)
    return float(np.max(Operator(trace, mdp, target=pi, behavior=mu).variance(np.zeros((1, 2)))))


@claim("for any d_t ≥ 0 the variance of Truncated IS is finite, of each term γ^tβ_tδ_t", "Section 2.2")
def _variance_of_a_term() -> Found:
    lags, γ = (5, 10, 20, 40), 0.9
    terms = [variance_of_truncated_is(*[0.0] * (t - 1), 9.0**t) for t in lags]  # δ_0 is given by the start
    share = max(v / (γ * 9.0) ** (2 * t) for v, t in zip(terms, lags, strict=True))
    numbers = (
        f"read as that of a term it holds, as |γ^tβ_tδ_t| ≤ γ^t d_t max|δ|. d_t = 9^t, lags {', '.join(map(str, lags))}: "
        f"{', '.join(f'{v:.1e}' for v in terms)}; largest share of the bound {share:.1e}. Of the sum it does not: the row below"
    )
    return Found(not (np.isfinite(terms).all() and share <= 1), numbers, SPREAD)


@claim(
    "for any d_t ≥ 0 the variance of Truncated IS is finite, of the sum Σ γ^tβ_tδ_t that it estimates with",
    "Section 2.2",
)
def _variance_of_the_sum() -> Found:
    mdp, pi, mu = one_state_two_actions(target=(0.9, 0.1), behavior=(0.1, 0.9), gamma=0.9, reward=(1.0, 0.0))
    Q, lags = np.zeros((1, 2)), (5, 10, 20, 40)
    sums = [variance_of_truncated_is(*[9.0**t for t in range(1, n + 1)]) for n in lags]  # 9^t never truncates
    constant, limit = (
        float(np.max(Operator(trace, mdp, target=pi, behavior=mu).variance(Q)))
        for trace in (ot.TruncatedIS(1.0), ot.ImportanceSampling())
    )
    grown = ", ".join(f"{v:.1e}" for v in sums)
    numbers = (
        f"d_t = 9^t: up to lag {', '.join(map(str, lags))}: {grown}; of all: {limit}. "
        f"With one bound for all t it is finite, as |Δ| ≤ d max|δ|/(1−γ): d = 1: {constant:.3g}"
    )
    return Found(not np.isfinite(limit) and sums[-1] > 1e6 * sums[0], numbers, SPREAD)
