"""Peng's Q(λ), the uncorrected n-step return and V-trace: their fixed points and moduli."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offtrace as ot
from offtrace.mdps import bifurcation, epsilon_greedy, garnet, mixture, random_policy
from offtrace.operators import Operator, clipped_policy, tradeoff, uncorrected, v_trace
from offtrace.operators.uncorrected_operators import uncorrected_variance
from operators.brute import tiny


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), lam=st.floats(0, 1))
def test_peng(seed: int, lam: float) -> None:
    mdp, pi, mu = tiny(seed, 0.9)
    found = uncorrected(ot.PengQ(lam), mdp, pi, mu)
    np.testing.assert_allclose(found.fixed_point, mdp.q(mixture(mu, pi, lam)), atol=1e-9)
    assert abs(found.contraction.midpoint - 0.9 * (1 - lam) / (1 - 0.9 * lam)) < 1e-9


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), lam=st.floats(0, 1), gamma=st.sampled_from([0.0, 0.5, 0.9, 0.999]))
def test_intervals_contain_the_truth_and_print_it(seed: int, lam: float, gamma: float) -> None:
    """Moduli that are known in closed form; a true 0 prints as 0."""
    mdp, pi, mu = tiny(seed, gamma)
    ulp = 4e-16
    for lam_ in (0.0, lam, 1.0):
        found, truth = uncorrected(ot.PengQ(lam_), mdp, pi, mu).contraction, gamma * (1 - lam_) / (1 - gamma * lam_)
        assert found.lower - ulp <= truth <= found.upper + ulp
        assert found.width < 1e-9
    assert str(uncorrected(ot.PengQ(1.0), mdp, pi, mu).contraction) == "0"
    assert str(uncorrected(ot.PengQ(1.0), mdp, pi, mu).spectral_radius) == "0"
    certain = v_trace(mdp, pi, mu, rho_bar=1e9, c_bar=1e9)  # importance sampling on states: rate 0
    assert certain.contraction.lower == 0
    assert certain.contraction.upper < 1e-7
    found = uncorrected(ot.NStep(3), mdp, pi, mu)
    assert found.contraction.lower - ulp <= gamma**3 <= found.contraction.upper + ulp
    wanted = mdp.q(mixture(mu, pi, lam))
    found = uncorrected(ot.PengQ(lam), mdp, pi, mu)
    assert np.abs(found.fixed_point - wanted).max() <= 2 * found.fixed_point_error + 1e-10 * (1 + np.abs(wanted).max())


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 6))
def test_n_step(seed: int, n: int) -> None:
    mdp, pi, mu = tiny(seed, 0.9)
    found = uncorrected(ot.NStep(n), mdp, pi, mu)
    assert abs(found.contraction.midpoint - 0.9**n) < 1e-9
    on_policy = uncorrected(ot.NStep(n), mdp, pi, pi)
    np.testing.assert_allclose(on_policy.fixed_point, mdp.q(pi), atol=1e-8)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), lam=st.floats(0, 1), rho_bar=st.floats(0.3, 3), terminal=st.booleans())
def test_v_trace(seed: int, lam: float, rho_bar: float, terminal: bool) -> None:
    """Its fixed point is the value of π_ρ̄ ∝ min(ρ̄μ, π); with ρ̄ above every ratio, that of π."""
    mdp, pi, mu = tiny(seed, 0.9, terminal=terminal)
    for bar in (rho_bar, 1e9):
        policy = clipped_policy(pi, mu, bar)
        wanted = (policy * mdp.q(policy)).sum(axis=1)
        found = v_trace(mdp, pi, mu, lam, rho_bar=bar, c_bar=min(bar, 1.0))
        np.testing.assert_allclose(found.fixed_point, wanted, atol=1e-8)
        np.testing.assert_allclose(found.apply(wanted), wanted, atol=1e-8)


def test_tradeoff() -> None:
    mdp = bifurcation(1)
    q = mdp.optimal_q()
    pi, mu = epsilon_greedy(q, 0.1), epsilon_greedy(q, 0.4)
    found = tradeoff(mdp, pi, mu, np.zeros_like(q), lams=(0.0, 0.9))
    by_name = {(p.family, p.lam): p for p in found.points}
    one_step = Operator(ot.OneStep(), mdp, target=pi, behavior=mu)
    for p in found.points:
        if p.lam == 0 and not p.family.startswith("α-"):
            assert abs(p.contraction.midpoint - one_step.contraction.midpoint) < 1e-4
        if p.family != "V-trace":
            other = {"Peng's Q(λ)": p.lam != 0, "α-Retrace, over α": p.lam != 1}.get(p.family, False)
            assert (p.bias > 1e-6) == other
    assert by_name["Retrace", 0.9].contraction < by_name["Tree Backup", 0.9].contraction
    cut, uncut = by_name["Retrace", 0.0].variance, by_name["Retrace", 0.9].variance
    assert cut is not None
    assert uncut is not None
    assert uncut > cut
    assert "Retrace" in str(found)
    for family, lam in (("Peng's Q(λ)", 0.0), ("α-Retrace, over α", 1.0), ("Retrace", 0.9)):
        assert str(by_name[family, lam].bias) == "0"
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.close(found.figure())


def test_a_custom_trace_is_swept_over_its_own_lam() -> None:
    mdp = garnet(3, 2, 2, seed=1, gamma=0.8)
    pi, mu, given = random_policy(mdp, 0), random_policy(mdp, 1), {"lams": (0.0, 0.6), "bounds": (), "mixes": ()}
    custom = ot.StepTrace(lambda xp, c, now: (c * now.lam * xp.minimum(1.0, now.rho),) * 2, title="own", horizon=6)
    found = tradeoff(mdp, pi, mu, np.ones((3, 2)), families=[custom, ot.Retrace(horizon=6)], **given)
    own, listed = found.points[:2], found.points[2:]
    assert [(p.family, p.lam) for p in own] == [("own", 0.0), ("own", 0.6)]
    for one, other in zip(own, listed, strict=True):
        assert one.variance is not None
        assert other.variance is not None
        assert one.contraction.midpoint == pytest.approx(other.contraction.midpoint, abs=1e-6)
        assert one.variance.midpoint == pytest.approx(other.variance.midpoint, abs=1e-6)


def test_variance_of_peng_against_samples() -> None:
    mdp = garnet(3, 2, 2, seed=1, gamma=0.8)
    rng = np.random.default_rng(0)
    pi, mu, Q = random_policy(mdp, rng), random_policy(mdp, rng), rng.normal(size=(3, 2))
    bounds, v = uncorrected_variance(ot.PengQ(0.7), mdp, pi, mu, Q), (pi * Q).sum(axis=1)
    assert bounds is not None
    wanted, upper = bounds
    np.testing.assert_allclose(wanted, upper, rtol=1e-9)
    steps = mdp.rollout(mu, seed=rng, steps=400_000)
    ends = {"terminated": steps["terminated"], "truncated": steps["truncated"]}
    G = ot.targets(ot.PengQ(0.7), reward=steps["reward"], next_value=v[steps["next_state"]], gamma=0.8, **ends)
    checked = 0
    for s in range(3):
        for a in range(2):
            seen = G[(steps["state"] == s) & (steps["action"] == a)]
            if len(seen) > 10_000:
                checked += 1
                assert seen.var() == pytest.approx(wanted[s, a], rel=0.05)
    assert checked == 5


def test_the_tradeoff_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    mdp = garnet(4, 2, 2, seed=2, gamma=0.9)
    rng = np.random.default_rng(1)
    found = tradeoff(
        mdp, random_policy(mdp, rng), random_policy(mdp, rng), np.zeros((4, 2)), lams=(0.0, 0.9), tolerance=1e-3
    )
    figure = found.figure()
    drawn = [len(axes.lines) for axes in figure.axes]
    assert len(drawn) == 3
    assert all(n >= 2 for n in drawn)  # the level, and at least one family
    figure.savefig(tmp_path / "tradeoff.png")
