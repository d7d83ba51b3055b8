"""C, Z, M and the variance, for every trace, against enumeration of all histories and against samples."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offtrace as ot
from helpers import BUILT_IN, CUSTOM, name_of
from offtrace.mdps import bifurcation, epsilon_greedy, garnet, random_policy
from offtrace.operators import Operator
from operators.brute import C_by_enumeration, corrected, every_trajectory, tiny

FINITE = [trace for trace in BUILT_IN if (trace.horizon or 0) < 100]


def shortened(trace: Any, n: int) -> Any:
    return replace(trace, horizon=min(n, trace.horizon or n))


@pytest.mark.parametrize("trace", BUILT_IN, ids=name_of)
def test_C_is_the_sum_over_all_histories(trace: Any) -> None:
    """γ = 0.05: what nine pairs leave out is below 1e-10 (importance sampling has K_t e = e, and no trace has more)."""
    mdp, pi, mu = tiny(3, gamma=0.05, branching=1, trace=trace)
    op = Operator(trace, mdp, target=pi, behavior=mu, tolerance=1e-8)
    wanted = C_by_enumeration(trace, mdp, pi, mu, 8)
    assert op.method in ("closed form", "exact chain", "bounds")
    assert (np.abs(op.C - wanted) <= op.C_error + 1e-9).all()
    assert op.C_error.max() < 1e-8


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("trace", [*BUILT_IN, *CUSTOM], ids=name_of)
def test_C_with_a_horizon_is_the_sum_over_all_histories(trace: Any, seed: int) -> None:
    mdp, pi, mu = tiny(seed, gamma=0.9, terminal=seed == 1, trace=trace)
    trace = shortened(trace, 4)
    op = Operator(trace, mdp, target=pi, behavior=mu)
    wanted = C_by_enumeration(trace, mdp, pi, mu, 4)
    assert (np.abs(op.C - wanted) <= op.C_error + 1e-13).all()
    assert op.C_error.max() < 1e-9
    assert op.method in ("closed form", "exact chain")


@pytest.mark.parametrize("trace", [*BUILT_IN, *CUSTOM[:3]], ids=name_of)
def test_mean_coefficients(trace: Any) -> None:
    """E[β_t] is the row sum of K_t; discounted they add up to C e."""
    mdp, pi, mu = tiny(4, gamma=0.8, trace=trace)
    trace = shortened(trace, 40)
    if not isinstance(trace, ot.StepTrace):
        op = Operator(trace, mdp, target=pi, behavior=mu)
        mean = op.mean_coefficients(40, per_pair=True)
        np.testing.assert_allclose(mean @ 0.8 ** np.arange(40), op.C.sum(axis=1), atol=2e-5)
        assert op.magnitude.largest.width < 1e-5
        assert abs(op.magnitude.largest.midpoint - op.C.sum(axis=1).max()) < 1e-5


@cache
def trajectories(seed: int, gamma: float, branching: int, terminal: bool, depth: int) -> list[tuple[int, Any, Any]]:
    """All of them, from two pairs of a `tiny`: μ is the same for all traces."""
    mdp, _, mu = tiny(seed, gamma, branching, terminal)
    return [(start, *every_trajectory(mdp, mu, start, depth)) for start in (0, 3)]


def moments(trace: Any, *where: Any) -> tuple[list[float], list[float], list[float], list[float]]:
    """E[Δ] and Var[Δ] of `corrections` over all trajectories, and what the operator says of them."""
    mdp, pi, mu = tiny(*where[:-1], trace=trace)
    Q = np.random.default_rng(7).normal(size=pi.shape) * (~mdp.terminal)[:, None]
    op = Operator(trace, mdp, target=pi, behavior=mu)
    wanted, spread = op.apply(Q) - Q, op.variance(Q)
    made = []
    for start, p, steps in trajectories(*where):
        Δ = corrected(trace, mdp, pi, mu, Q, steps)
        made.append((p @ Δ, wanted.flat[start], p @ (Δ - p @ Δ) ** 2, spread.flat[start]))
    mean, found, variance, said = (list(each) for each in zip(*made, strict=True))
    return mean, found, variance, said


@pytest.mark.parametrize("trace", [*BUILT_IN, *CUSTOM], ids=name_of)
def test_the_mean_over_all_trajectories_is_the_operator(trace: Any) -> None:
    """The mean of `corrections` over trajectories is MQ − Q, and their variance is `variance`."""
    mean, wanted, variance, spread = moments(shortened(trace, 4), 5, 0.9, 2, True, 4)
    np.testing.assert_allclose(wanted, mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(spread, variance, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("trace", FINITE, ids=name_of)
def test_without_a_horizon_it_is_the_operator_too(trace: Any) -> None:
    """Interpolated where values of x do not merge. What twelve steps leave out is a part of γ^12 = 2e-5."""
    mean, wanted, variance, spread = moments(trace, 9, 0.4, 1, False, 12)
    np.testing.assert_allclose(wanted, mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(spread, variance, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("trace", BUILT_IN, ids=name_of)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000), gamma=st.sampled_from([0.3, 0.9]))
def test_lemma_1_and_row_sums(trace: Any, seed: int, gamma: float) -> None:
    """MQ − Q^π = Z(Q − Q^π); Ze = γe − (1−γ)S, S = E[Σ_{t≥1} γ^tβ_t]; the fixed point is Q^π (α-Retrace: the mixture's)."""
    mdp, pi, mu = tiny(seed, gamma, trace=trace)
    op = Operator(trace, mdp, target=pi, behavior=mu, tolerance=1e-4)
    target = op.setting.evaluated
    Q, fixed = np.random.default_rng(seed).normal(size=pi.shape), mdp.q(target)
    error = (op.apply(Q) - fixed).ravel() - op.Z @ (Q - fixed).ravel()
    assert np.abs(error).max() < 1e-9 * (1 + np.abs(op.C).sum(axis=1).max()) * (1 + np.abs(fixed).max())
    np.testing.assert_allclose(op.apply(fixed), fixed, atol=1e-9 * (1 + np.abs(fixed).max()))
    S = op.C.sum(axis=1) - 1
    np.testing.assert_allclose(op.Z.sum(axis=1), gamma - (1 - gamma) * S, atol=1e-10)
    assert op.spectral_radius.lower <= op.contraction.upper
    if trace.recursive_condition:
        assert op.contraction.upper <= gamma + 1e-9
        assert (op.Z + op.Z_error).min() >= -1e-12


@pytest.mark.parametrize("cls", [ot.ImportanceSampling, ot.Retrace, ot.TreeBackup, ot.QLambda])
def test_closed_form_against_the_chain(cls: Any) -> None:
    """The same rule with a cap that never acts goes through the chain."""

    class Capped(cls):
        per_decision = False

        @staticmethod
        def factors(xp: Any, pi: Any, mu: Any, rho: Any, lam: Any) -> Any:
            decay, ratio, _ = cls.factors(xp, pi, mu, rho, lam)
            return decay, ratio, 1e12

    mdp = garnet(4, 2, 2, seed=1, gamma=0.8)
    rng = np.random.default_rng(0)
    pi, mu = random_policy(mdp, rng, 5.0), random_policy(mdp, rng, 5.0)
    exact, chain = (
        Operator(trace, mdp, target=pi, behavior=mu, tolerance=1e-5) for trace in (cls(lam=0.9), Capped(lam=0.9))
    )
    assert chain.method != exact.method == "closed form"
    assert (np.abs(exact.C - chain.C) <= chain.C_error + exact.C_error).all()


def test_the_modulus_alone_agrees_with_all_of_C() -> None:
    mdp = bifurcation(1)
    q = mdp.optimal_q()
    pi, mu = epsilon_greedy(q, 0.1), epsilon_greedy(q, 0.3)
    for trace in (ot.NonMarkovRetrace(lam=0.9), ot.RBIS(lam=0.9), ot.Retrace(lam=0.9)):
        one = Operator(trace, mdp, target=pi, behavior=mu)
        every = Operator(trace, mdp, target=pi, behavior=mu)
        assert every.C.shape == (mdp.pairs, mdp.pairs)
        assert one.reached
        assert every.reached
        assert abs(one.contraction.midpoint - every.contraction.midpoint) <= 1e-6


@pytest.mark.parametrize(
    "trace", [ot.NonMarkovRetrace(lam=0.9), ot.TruncatedIS(), ot.HistoryBounded(bound=3.0), ot.RBIS(lam=0.8)]
)
def test_bounds_against_the_exact_chain(trace: Any) -> None:
    """Ratios of 1.5 and 0.5 merge to 1,800 values within 60 steps, an exact chain; at γ = 0.6 what is left is below 1e-13."""
    mdp = garnet(4, 2, 2, seed=8, gamma=0.6)
    pi, mu = np.tile([0.75, 0.25], (4, 1)), np.full((4, 2), 0.5)
    exact = Operator(replace(trace, horizon=60), mdp, target=pi, behavior=mu)
    rough = Operator(trace, mdp, target=pi, behavior=mu, tolerance=1e-3)
    assert (exact.method, rough.method) == ("exact chain", "bounds")
    assert exact.C_error.max() < 1e-9
    assert (np.abs(exact.C - rough.C) <= exact.C_error + rough.C_error + 1e-12).all()


def test_finer_bounds_lie_within_coarser_ones() -> None:
    mdp = garnet(3, 2, 2, seed=3, gamma=0.9)
    rng = np.random.default_rng(2)
    pi, mu = random_policy(mdp, rng), random_policy(mdp, rng)
    for trace in (ot.TruncatedIS(lam=0.9), ot.HistoryBounded(bound=3.0)):
        coarse, fine = (Operator(trace, mdp, target=pi, behavior=mu, tolerance=t) for t in (1e-2, 1e-6))
        assert fine.contraction.width <= 1e-6
        assert (np.abs(fine.C - coarse.C) <= fine.C_error + coarse.C_error).all()
        assert coarse.contraction.lower - 1e-12 <= fine.contraction.midpoint <= coarse.contraction.upper + 1e-12
