"""What is true and what the paper only claims: DESIGN.md section 5, held by computation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offtrace as ot
from offtrace.mdps import MDP, alternating, garnet, one_state_two_actions, q_lambda_tight, random_policy
from offtrace.operators import Interval, Operator, certify
from operators.brute import tiny


def _at_two(xp: Any, carry: Any, now: ot.Step) -> tuple[Any, Any]:
    return carry, xp.where(now.lag == 2, 1.0, 0.0)


def _product_at_two(xp: Any, carry: Any, now: ot.Step) -> tuple[Any, Any]:
    return carry * now.rho, xp.where(now.lag == 2, carry * now.rho, 0.0)


ON_POLICY = {"target": (1.0,), "behavior": (1.0,)}


def _first_action(xp: Any, carry: Any, now: ot.Step) -> tuple[Any, Any]:
    return carry, xp.where(now.pair == 0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("trace", "policies"),
    [
        (ot.TruncatedIS(bound=(0.0, np.inf, 0.0)), {}),
        (ot.StepTrace(_product_at_two, horizon=3), {}),
        (ot.TruncatedIS(bound=(0.0, 1.0, 0.0)), ON_POLICY),
        (ot.StepTrace(_at_two, horizon=3), ON_POLICY),
        (ot.StepTrace(_at_two), ON_POLICY),
    ],
)
def test_theorem_1_is_refuted(trace: Any, policies: Any) -> None:
    """Two states that alternate, β = (1, 0, ρ₁ρ₂, 0, 0, …), off-policy and on-policy: the eigenvalue −(γ + γ² + γ³)."""
    mdp, pi, mu = alternating(0.9, **policies)
    op = Operator(trace, mdp, target=pi, behavior=mu)
    assert op.method == "exact chain"
    assert 0.9 + 0.81 + 0.729 in op.spectral_radius
    assert 0.9 + 0.81 + 0.729 in op.contraction
    assert op.spectral_radius.width < 1e-7
    found = certify(trace, mdp, pi, mu)
    assert found.product.holds is not False
    assert found.recursive.holds is False
    assert found.recursive.violation is not None
    assert len(found.recursive.violation.pairs) == 3
    if op.certain:
        assert (found.verdict, found.converges) == ("expands", False)
    else:  # a step that looks at the lag may do anything later on
        assert found.verdict == "undecided"
        assert "beyond lag" in str(found)


def test_losing_the_contraction_is_not_divergence() -> None:
    """Daley et al. 2023: ‖Z‖ = 1 exactly, while the spectral radius is 1/3."""
    mdp, pi, mu = one_state_two_actions()[:3]
    trace = ot.StepTrace(_first_action, reads=("rho", "pair"), title="first action")
    found = certify(trace, mdp, pi, mu)
    assert found.method == "exact chain"
    assert 1.0 in found.contraction
    assert found.contraction.width < 1e-9
    assert 1 / 3 in found.spectral_radius
    assert found.spectral_radius.width < 1e-9
    assert found.verdict == "undecided"  # it is 1, neither below nor above
    assert found.converges is True
    assert found.recursive.holds is False


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), gamma=st.sampled_from([0.5, 0.9, 0.99]))
def test_rates_at_the_two_ends(seed: int, gamma: float) -> None:
    mdp, pi, mu = tiny(seed, gamma)
    sampling = Operator(ot.ImportanceSampling(), mdp, target=pi, behavior=mu)
    one_step = Operator(ot.OneStep(), mdp, target=pi, behavior=mu)
    assert sampling.contraction.upper < 1e-9
    assert gamma in one_step.contraction
    assert one_step.contraction.width < 1e-10


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), lam=st.floats(0, 1), gamma=st.sampled_from([0.5, 0.9]))
def test_harutyunyan_bound(seed: int, lam: float, gamma: float) -> None:
    """‖Z‖ ≤ γ(1 − λ + λε)/(1 − λγ), ε = max_s ‖π − μ‖₁."""
    mdp, pi, mu = tiny(seed, gamma)
    found = Operator(ot.QLambda(lam=lam), mdp, target=pi, behavior=mu).contraction
    ε = np.abs(pi - mu).sum(axis=1).max()
    assert found.lower <= gamma * (1 - lam + lam * ε) / (1 - lam * gamma) + 1e-12


def test_harutyunyan_bound_is_tight() -> None:
    mdp, pi, mu = q_lambda_tight(0.9, 1.0)
    found = Operator(ot.QLambda(lam=0.5), mdp, target=pi, behavior=mu).contraction
    assert abs(found.midpoint - 0.9 * (1 - 0.5 + 0.5 * 1.0) / (1 - 0.45)) < 1e-9


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_iterating_shrinks_as_the_interval_says(seed: int) -> None:
    mdp, pi, mu = tiny(seed, 0.9)
    op = Operator(ot.NonMarkovRetrace(lam=0.9), mdp, target=pi, behavior=mu)
    fixed = mdp.q(pi)
    Q = np.random.default_rng(seed).normal(size=pi.shape)
    before, after = np.abs(Q - fixed).max(), np.abs(op.apply(Q) - fixed).max()
    assert after <= op.contraction.upper * before + 1e-9
    np.testing.assert_allclose(op.iterate(Q, 400), fixed, atol=1e-5)


def test_infinite_variance_is_said() -> None:
    """One state, two actions: γ²E_μ[ρ²] ≥ 1 makes importance sampling's variance infinite; a linear solve would not tell."""
    mdp = MDP(np.ones((1, 2, 1)), [[1.0, 0.0]], 0.9)
    pi, mu = np.array([[0.9, 0.1]]), np.array([[0.1, 0.9]])
    Q = np.zeros((1, 2))
    op = Operator(ot.ImportanceSampling(), mdp, target=pi, behavior=mu)
    assert op.second_moment_radius == pytest.approx(0.81 * (0.81 / 0.1 + 0.01 / 0.9))
    assert np.isinf(op.variance(Q)).all()
    assert (op.variance(mdp.q(pi)) < 1e-12).all() or np.isinf(op.variance(mdp.q(pi))).all()
    for trace in (ot.Retrace(), ot.NonMarkovRetrace(), ot.TruncatedIS(bound=3.0)):
        capped = Operator(trace, mdp, target=pi, behavior=mu)
        assert np.isfinite(capped.variance(Q)).all()
        assert capped.second_moment_radius < 1


def test_variance_is_infinite_only_where_it_can_be_reached() -> None:
    """State 0 leads to 1, where ratios explode; state 2 stays by itself, on-policy."""
    P = np.zeros((3, 2, 3))
    P[0, :, 1] = P[1, :, 1] = P[2, :, 2] = 1.0
    mdp = MDP(P, np.arange(6.0).reshape(3, 2), 0.9)
    pi = np.array([[0.5, 0.5], [0.9, 0.1], [0.5, 0.5]])
    mu = np.array([[0.5, 0.5], [0.1, 0.9], [0.5, 0.5]])
    found = Operator(ot.ImportanceSampling(), mdp, target=pi, behavior=mu).variance(np.zeros((3, 2)))
    assert np.isinf(found).tolist() == [[True, True], [True, True], [False, False]]
    assert found[2, 0] == pytest.approx(0.25 * 0.81 / (1 - 0.81))  # Var of a sum of independent rewards 4 or 5


def test_variance_of_large_mdps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above DENSE pairs by iterative solves and ratios: the same numbers, and the same infinities."""
    mdp = garnet(30, 2, 3, seed=1, gamma=0.95)
    rng = np.random.default_rng(0)
    pi, mu, Q = random_policy(mdp, rng), random_policy(mdp, rng), rng.normal(size=(30, 2))
    traces = ot.Retrace(0.9), ot.TreeBackup(), ot.ImportanceSampling()
    dense = [Operator(trace, mdp, target=pi, behavior=mu).variance_bounds(Q) for trace in traces]
    monkeypatch.setattr("offtrace.operators.solve.closed_form.DENSE", 20)
    for trace, (lower, upper) in zip(traces, dense, strict=True):
        low, high = Operator(trace, mdp, target=pi, behavior=mu).variance_bounds(Q)
        assert (low <= upper + 1e-12).all()
        assert (lower <= high + 1e-12).all()
        if isinstance(trace, ot.ImportanceSampling):
            assert np.isinf(high).all()
        else:
            np.testing.assert_allclose(low, high, rtol=1e-7)


def test_one_step_condition_and_history() -> None:
    """Truncated IS violates the recursive condition; the history that shows it is a real one."""
    mdp, pi, mu = tiny(0, 0.9)
    found = certify(ot.TruncatedIS(), mdp, pi, mu)
    assert found.product.holds is True
    assert found.recursive.holds is False
    violation = found.recursive.violation
    assert violation is not None
    ratios = [pi[z] / mu[z] for z in violation.pairs]
    before, now = (min(1.0, float(np.prod(ratios[1 : t + 1]))) for t in (len(ratios) - 2, len(ratios) - 1))
    assert violation.beta == pytest.approx(now)
    assert violation.bound == pytest.approx(before * ratios[-1])
    assert now > before * ratios[-1]
    for trace in (ot.NonMarkovRetrace(), ot.RBIS(lam=0.9), ot.Retrace(), ot.AlphaRetrace(mix=0.3)):
        assert certify(trace, mdp, pi, mu).recursive.holds is True


def test_certificates_print() -> None:
    mdp, pi, mu = tiny(0, 0.9)
    found = certify(ot.Retrace(lam=0.9), mdp, pi, mu)
    assert str(found).startswith("Retrace(lam=0.9): contracts")
    assert "‖Z‖" in str(found)
    assert found._repr_html_().startswith("<table>")
    assert found.speedup is not None
    assert found.speedup.lower > 1
    assert certify(ot.Retrace(), *tiny(0, 0.0)).speedup is None
    whole = certify(ot.replacing(lam=0.9), mdp, pi, mu, budget=0.3)
    assert (whole.verdict, whole.method) == ("undecided", "Monte Carlo")
    assert "not a proof" in str(whole)
    assert isinstance(whole.contraction, Interval)


@pytest.mark.usefixtures("counted_clock")
def test_monte_carlo_covers_the_truth() -> None:
    """The replacing trace on a MDP that never comes back is importance sampling with λ."""
    P = np.zeros((3, 2, 3))
    P[0, :, 1], P[1, :, 2], P[2, :, 2] = 1.0, 1.0, 1.0
    mdp = MDP(P, [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]], 0.9, terminal=[False, False, True])
    pi, mu = np.tile([0.6, 0.4], (3, 1)), np.tile([0.5, 0.5], (3, 1))
    op = Operator(ot.replacing(lam=0.9), mdp, target=pi, behavior=mu)
    assert op.method == "exact chain"  # finitely many products
    wanted = Operator(ot.ImportanceSampling(lam=0.9), mdp, target=pi, behavior=mu)
    np.testing.assert_allclose(op.C, wanted.C, atol=1e-9)
    loop, pi, mu = tiny(0, 0.5)
    guess = Operator(ot.StepTrace(_retrace, lam=0.9), loop, target=pi, behavior=mu)
    truth = Operator(ot.Retrace(lam=0.9), loop, target=pi, behavior=mu)
    assert guess.method == "Monte Carlo"
    assert not guess.certain
    assert (np.abs(guess.C - truth.C) <= guess.C_error + 1e-9).all()
    assert truth.contraction.midpoint in guess.contraction


def _retrace(xp: Any, carry: Any, now: ot.Step) -> tuple[Any, Any]:
    carry = carry * now.lam * xp.minimum(now.rho, 1.0)
    return carry, carry
