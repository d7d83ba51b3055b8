"""Every guaranteed interval contains the truth, on the nastiest of tiny MDPs: enumeration of all histories decides.

Zeros in P, π and μ, terminal states, γ = 0 and γ = 1, horizons of 1 and 2, λ = 0, bounds by lag, λ by pair, rewards by
next state.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offtrace as ot
from offtrace.mdps import MDP, garnet, random_policy
from offtrace.operators import Operator, certify
from operators.brute import C_by_enumeration, enumerated, variance_by_enumeration

DEPTH = 5


def nasty(seed: int, gamma: float) -> tuple[MDP, np.ndarray, np.ndarray]:
    """Three states, the last terminal; probabilities of 0 and 1 are common, and μ may miss what π does."""
    rng = np.random.default_rng(seed)

    def simplex(n: int) -> np.ndarray:
        p = rng.dirichlet(np.ones(n)) * (rng.random(n) < 0.6)
        return p / p.sum() if p.sum() > 0 else np.eye(n)[rng.integers(n)]

    P = np.stack([[simplex(3) for _ in range(2)] for _ in range(3)])
    if gamma == 1:
        P = 0.5 * P + 0.5 * np.eye(3)[2]
    P[2] = 0.0
    R = rng.normal(size=(3, 2, 3)) if seed % 2 else rng.normal(size=(3, 2))
    R[2] = 0.0
    mdp = MDP(P, R, gamma, terminal=[False, False, True])
    return mdp, np.stack([simplex(2) for _ in range(3)]), np.stack([simplex(2) for _ in range(3)])


TRACES = [
    ot.OneStep(),
    ot.Retrace(lam=0.0),
    ot.Retrace(lam=0.9),
    ot.ImportanceSampling(),
    ot.QLambda(lam=1.0),
    ot.replacing(lam=0.9),
    ot.count_dependent(lam=0.9),
    ot.VariableLambda(lam=np.array([[0.0, 1.0], [0.5, 0.9], [1.0, 1.0]])),
    ot.NonMarkovRetrace(lam=0.0),
    ot.NonMarkovRetrace(lam=0.9),
    ot.RBIS(lam=0.0),
    ot.RBIS(lam=0.7),
    ot.HistoryBounded(bound=2.5),
    ot.HistoryBounded(bound=0.0),
    ot.TruncatedIS(bound=0.0),
    ot.TruncatedIS(bound=2.0, lam=0.9),
    ot.TruncatedIS(bound=(0.0, 2.0, 0.5), lam=0.9),
    ot.TruncatedIS(bound=(1.0, float("inf"))),
    ot.TruncatedIS(bound=(0.5, 0.0)),
]


def is_within(found: tuple[np.ndarray, np.ndarray], wanted: np.ndarray, more: float = 0.0) -> None:
    lower, upper = found
    slack = 1e-12 * (1 + np.abs(wanted))
    assert (lower - slack <= wanted + more).all()
    assert (wanted <= upper + slack).all()


@pytest.mark.parametrize("trace", TRACES, ids=repr)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 100_000), gamma=st.sampled_from([0.0, 0.1, 0.9, 1.0]), n=st.sampled_from([1, 2, DEPTH]))
def test_with_a_horizon(trace: Any, seed: int, gamma: float, n: int) -> None:
    mdp, pi, mu = nasty(seed, gamma)
    trace = replace(trace, horizon=n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        op = Operator(trace, mdp, target=pi, behavior=mu)
    known = np.repeat(~mdp.terminal, 2)
    C, means = np.zeros((6, 6)), np.zeros((6, n + 1))
    for pairs, p, β in enumerated(_by_hand(trace), mdp, pi, mu, n):
        C[pairs[0], pairs[-1]] += gamma ** (len(pairs) - 1) * p * β
        means[pairs[0], len(pairs) - 1] += p * β
    is_within((op.C - op.C_error, op.C + op.C_error), C)
    Z = np.eye(6) - C @ (np.eye(6) - gamma * mdp.P_pi(pi).toarray())
    is_within((op.Z - op.Z_error, op.Z + op.Z_error), Z)
    norm, radius = np.abs(Z[known]).sum(axis=1).max(), np.abs(np.linalg.eigvals(Z)).max()
    assert op.contraction.lower - 1e-12 <= norm <= op.contraction.upper + 1e-12
    assert op.spectral_radius.lower - 1e-6 <= radius <= op.spectral_radius.upper + 1e-6
    is_within(op.mean_coefficient_bounds(n + 1, per_pair=True), means)
    Q = np.random.default_rng(seed).normal(size=(3, 2))
    wanted = variance_by_enumeration(_by_hand(trace), mdp, pi, mu, Q, n)
    found = op.variance_bounds(Q)
    is_within((found[0].ravel(), found[1].ravel()), wanted)
    assert (found[1] - found[0]).max() <= 1e-5 * (1 + wanted.max())


@pytest.mark.parametrize("trace", TRACES, ids=repr)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 100_000))
def test_without_a_horizon(trace: Any, seed: int) -> None:
    """γ = 0.02: what DEPTH + 1 pairs leave out is small, and is allowed for."""
    if isinstance(trace, ot.StepTrace):
        return  # too many carries: Monte Carlo
    mdp, pi, mu = nasty(seed, 0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        op = Operator(trace, mdp, target=pi, behavior=mu)
    C = C_by_enumeration(_by_hand(trace), mdp, pi, mu, DEPTH + 1)
    ρ = np.divide(pi, mu, out=np.zeros_like(pi), where=mu > 0)
    rest = 0.02 ** (DEPTH + 1) * 2 * max(1.0, (mu * ρ).sum(axis=1).max()) ** (DEPTH + 1)
    is_within((op.C - op.C_error, op.C + op.C_error), C, rest)
    Q = np.random.default_rng(seed).normal(size=(3, 2))
    lower, upper = op.variance_bounds(Q)
    wanted = variance_by_enumeration(_by_hand(trace), mdp, pi, mu, Q, DEPTH + 1)
    largest = (mu * ρ**2).sum(axis=1).max()
    if 0.02**2 * largest < 0.02:
        rest = 1e-6 * (1 + wanted)
        assert (lower.ravel() <= wanted + rest).all()
        assert (wanted <= upper.ravel() + rest).all()


def _by_hand(trace: Any) -> Any:
    """λ by pair cannot be given to the oracle, which takes one for each step: it is a custom trace there."""
    if not isinstance(trace, ot.VariableLambda):
        return trace
    lam = np.asarray(trace.lam).ravel()
    return ot.HistoryTrace(
        lambda h: float(np.prod(h.rho[1:] * lam[h.pair[1:]])), reads=("rho", "pair"), horizon=trace.horizon
    )


@pytest.mark.parametrize("trace", [ot.NonMarkovRetrace(0.9), ot.RBIS(0.8), ot.TruncatedIS(2.0), ot.HistoryBounded(3.0)])
def test_bounds_of_variance_and_means_against_the_exact_chain(trace: Any) -> None:
    """Where values of x do not merge, chords and lines hold E[β_t] and E[Δ²] between them, at any grid."""
    mdp = garnet(4, 2, 2, seed=8, gamma=0.6)
    pi, mu = np.tile([0.75, 0.25], (4, 1)), np.full((4, 2), 0.5)
    Q = np.random.default_rng(0).normal(size=(4, 2))
    exact = Operator(replace(trace, horizon=50), mdp, target=pi, behavior=mu)
    assert exact.method == "exact chain"
    for tolerance in (1e-2, 1e-6):
        rough = Operator(trace, mdp, target=pi, behavior=mu, tolerance=tolerance)
        assert rough.method == "bounds"
        lower, upper = rough.variance_bounds(Q)
        is_within((lower, upper), exact.variance(Q))
        assert (upper - lower).max() <= tolerance * max(1.0, 2 * upper.max() + (rough.apply(Q) - Q).max() ** 2)
        lower, upper = rough.mean_coefficient_bounds(12, per_pair=True)
        is_within((lower, upper), exact.mean_coefficients(12, per_pair=True))
        assert (upper - lower).max() <= tolerance


def _fading(xp: Any, carry: Any, now: ot.Step) -> tuple[Any, Any]:
    carry = xp.minimum(1.0, carry * now.rho)
    return carry, carry / now.lag


def test_a_declared_bound_decides() -> None:
    """β reads the lag, and without a horizon nobody can know what it does later on, unless the trace promises something."""
    mdp = garnet(2, 2, 2, seed=0, gamma=0.5)
    pi, mu = np.tile([0.75, 0.25], (2, 1)), np.full((2, 2), 0.5)
    open_ended, bounded = ot.StepTrace(_fading), ot.StepTrace(_fading, bound=1.0)
    found = certify(open_ended, mdp, pi, mu)
    assert (found.verdict, found.converges, found.certain) == ("undecided", None, False)
    assert "not a proof" in str(found)
    assert "give the trace a bound" in str(found)
    found = certify(bounded, mdp, pi, mu)
    assert (found.verdict, found.converges, found.certain) == ("contracts", True, True)
    assert "as the trace declares" in str(found)
    op = Operator(bounded, mdp, target=pi, behavior=mu)
    truth = Operator(ot.StepTrace(_fading, horizon=30), mdp, target=pi, behavior=mu)
    assert (np.abs(op.C - truth.C) <= op.C_error + truth.C_error + 1e-8).all()
    lower, upper = op.mean_coefficient_bounds(60)
    assert lower[-1] == 0  # beyond the lag at which the chain was cut
    assert upper[-1] == 1
    with pytest.raises(ValueError, match=r"declares bound = 0\.25"):
        _ = Operator(ot.StepTrace(_fading, bound=0.25), mdp, target=pi, behavior=mu).C
    with pytest.raises(ValueError, match="bound must lie in"):
        ot.StepTrace(_fading, bound=-1.0)


def _retrace(xp: Any, carry: Any, now: ot.Step) -> tuple[Any, Any]:
    carry = carry * now.lam * xp.minimum(now.rho, 1.0)
    return carry, carry


@pytest.mark.usefixtures("counted_clock")
def test_monte_carlo_estimates_means_and_variances() -> None:
    mdp, pi, mu = nasty(3, 0.5)
    rng = np.random.default_rng(0)
    pi, mu = random_policy(mdp, rng), random_policy(mdp, rng)
    Q = rng.normal(size=(3, 2))
    truth = Operator(ot.Retrace(0.9), mdp, target=pi, behavior=mu)
    guess = Operator(ot.StepTrace(_retrace, lam=0.9), mdp, target=pi, behavior=mu)
    assert guess.method == "Monte Carlo"
    assert not guess.certain
    assert (np.abs(guess.C - truth.C) <= guess.C_error + 1e-9).all()
    lower, upper = guess.mean_coefficient_bounds(6, per_pair=True)
    wanted = truth.mean_coefficients(6, per_pair=True)
    assert ((lower <= wanted + 1e-9) & (wanted <= upper + 1e-9)).all()
    lower, upper = guess.variance_bounds(Q)
    wanted = truth.variance(Q)
    assert ((lower <= wanted + 1e-9) & (wanted <= upper + 1e-9)).all()
    assert (upper - lower).max() < 0.2 * wanted.max()
