"""falsify finds what is there, comes back empty where nothing is, and its objective agrees with the certified operator."""

import itertools
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

import offtrace as ot
from offtrace.mdps import MDP, garnet, random_policy
from offtrace.operators import Divergent, Operator, falsify_objective
from offtrace.operators.falsify import falsify


def second_lag(xp, carry, now):
    return carry, xp.where(now.lag == 2.0, 1.0, 0.0)


def clipped_product(xp, carry, now):
    carry = carry * now.rho
    return carry, xp.minimum(1.0, carry)


@pytest.mark.parametrize(
    "trace",
    [
        ot.TruncatedIS(1.0),
        ot.QLambda(1.0),
        ot.TruncatedIS(bound=(0.0, 1.0, 0.0)),
        ot.StepTrace(second_lag, reads=(), title="second lag", horizon=3),
    ],
    ids=lambda trace: f"{trace.title}{trace.lag_bound or ''}",
)
def test_finds_divergence_and_certifies_it(trace, tmp_path):
    found = falsify(trace, budget=60.0, seed=7)
    assert found.found
    assert found.radius.lower > 1
    assert found.radius.width < 1e-3
    found.mdp.save(tmp_path / "found.npz")
    again = MDP.load(tmp_path / "found.npz")
    op = Operator(trace, again, target=found.target, behavior=found.behavior)
    assert op.spectral_radius.lower > 1
    Q = np.zeros((again.S, again.A))  # by then the error has grown, though Q^π is a fixed point
    first = np.abs(Q - again.q(found.target)).max()
    enough = int(np.ceil(np.log(50.0) / np.log(found.radius.lower)))
    assert np.abs(op.iterate(Q, enough) - again.q(found.target)).max() > 2 * first
    assert "diverges" in str(found)


@pytest.mark.parametrize(
    "trace",
    [ot.Retrace(), ot.TreeBackup(), ot.NonMarkovRetrace(), ot.NonMarkovRetrace(0.9), ot.RBIS(), ot.RBIS(0.9)],
    ids=repr,
)
def test_comes_back_empty(trace):
    found = falsify(trace, budget=600.0, tries=4_000, seed=0)
    assert not found.found
    assert found.tried >= 4_000
    assert 0.9 < found.radius.lower <= found.radius.upper <= 0.98 + 1e-9
    assert "no divergence found" in str(found)


def test_the_search_keeps_to_its_budget(monkeypatch):
    """By a clock that goes on by a tenth of a second at each look."""
    clock = itertools.count()
    module = sys.modules[falsify.__module__]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock) / 10))
    found = falsify(ot.StepTrace(clipped_product, title="clipped", horizon=6), budget=1.05)
    assert found.tried == 11  # one at least, and one for each look before the time is over


def test_the_seed_decides_what_is_found():
    first, again, other = (falsify(ot.QLambda(0.6), budget=60.0, seed=seed) for seed in (1, 1, 2))
    assert (first.tried, first.climbs) == (again.tried, again.climbs)
    np.testing.assert_array_equal(first.target, again.target)
    np.testing.assert_array_equal(first.behavior, again.behavior)
    assert first.mdp == again.mdp
    assert first.mdp != other.mdp


@pytest.mark.parametrize(
    "trace",
    [
        ot.TruncatedIS(1.0),
        ot.TruncatedIS(3.0, lam=0.9),
        ot.TruncatedIS((0.5, 2.0, 1.0)),
        ot.TruncatedIS((0.5, 2.0), horizon=5),
        ot.NonMarkovRetrace(),
        ot.RBIS(),
        ot.HistoryBounded(1.0, horizon=4),
        ot.Retrace(0.9),
        ot.QLambda(0.7, horizon=3),
        ot.ImportanceSampling(),
    ],
    ids=repr,
)
def test_objective_agrees_with_the_operator(trace):
    rng = np.random.default_rng(5)
    h = np.array([0.5, 0.7, 0.5])
    P, pi, mu = falsify_objective.decode(rng.normal(size=(3, 30)) * 2, 3, 2, h, np.full(3, 3.0))
    np.testing.assert_allclose(P.sum(axis=2), 1.0)
    np.testing.assert_allclose(pi.reshape(3, 3, 2).sum(axis=2), 1.0)
    np.testing.assert_allclose(mu.reshape(3, 3, 2).sum(axis=2), 1.0)
    exponents = np.log(pi / mu) / h[:, None]
    np.testing.assert_allclose(exponents, np.round(exponents), atol=1e-9)
    bounds = np.array(trace.lag_bound or (np.inf,))
    factors = trace.normal_form(np, pi, mu, pi / mu)
    C = falsify_objective.discounted(P, mu, factors, trace.recursive, bounds, trace.horizon or 0, 0.9, h, 30.0)
    seen = falsify_objective.eigenvalues(C, P, pi, 0.9)
    for k in range(3):
        mdp = MDP(P[k].reshape(3, 2, 3), np.zeros((3, 2)), 0.9, terminal=np.zeros(3, bool))
        op = Operator(trace, mdp, target=pi[k].reshape(3, 2), behavior=mu[k].reshape(3, 2), tolerance=1e-7)
        np.testing.assert_allclose(C[k], op.C, atol=1e-5)
        assert np.abs(seen[k]).max() == pytest.approx(op.spectral_radius.midpoint, abs=1e-4)


@dataclass(frozen=True)
class Swollen(ot.Trace):
    """β = ∏ 1.03ρ: at γ = 0.98, Σ γ^tβ_t has no finite mean anywhere; at γ = 0.9 it has one everywhere."""

    title = "swollen"
    reads = ("rho",)

    @staticmethod
    def factors(xp, pi, mu, rho):
        return 1.03, rho, xp.inf


def test_a_trace_whose_sum_is_infinite():
    with pytest.raises(Divergent, match="infinite mean"):
        falsify(Swollen(), budget=0.1)
    assert not falsify(Swollen(), budget=0.1, gamma=0.5).found


def test_what_is_not_finite_has_no_eigenvalues():
    P = np.full((2, 2, 2), 0.5)
    C = np.stack([np.eye(2), np.full((2, 2), np.inf)])
    seen = falsify_objective.eigenvalues(C, P, np.ones((2, 2)), 0.5)
    np.testing.assert_allclose(sorted(np.abs(seen[0])), [0.0, 0.5], atol=1e-15)
    assert np.isnan(seen[1]).all()


@pytest.mark.parametrize("actions", [1, 2, 4])
def test_policies_on_the_lattice_are_policies(actions):
    rng = np.random.default_rng(6)
    theta = rng.normal(size=(50, 3 * actions * 5)) * 4
    _, pi, mu = falsify_objective.decode(theta, 3, actions, np.full(50, 0.7), np.full(50, 2.1))
    for policy in (pi, mu):
        assert (policy >= 0).all()
        np.testing.assert_allclose(policy.reshape(50, 3, actions).sum(axis=2), 1.0)
    assert (mu > 0).all()


def test_custom_objective_agrees_with_the_normal_form():
    mdp = garnet(2, 2, 2, seed=0, gamma=0.8)
    rng = np.random.default_rng(0)
    pi, mu = random_policy(mdp, rng), random_policy(mdp, rng)
    custom = ot.StepTrace(clipped_product, title="clipped", horizon=7)
    C = falsify_objective.carried(custom, mdp.dense_P.reshape(4, 2), pi.ravel(), mu.ravel(), 0.8, most=10**6)
    np.testing.assert_allclose(C, Operator(ot.TruncatedIS(1.0, horizon=7), mdp, target=pi, behavior=mu).C, atol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"trace": ot.PengQ()}, "no coefficients"),
        ({"trace": ot.HistoryTrace(lambda history: 1.0)}, "StepTrace"),
        ({"trace": ot.Retrace(), "gamma": 1.0}, "gamma"),
        ({"trace": ot.Retrace(), "states": 0}, "at least 1"),
        ({"trace": ot.Retrace(), "actions": 0}, "at least 1"),
        ({"trace": ot.Retrace(), "budget": 0.0}, "seconds"),
    ],
)
def test_bad_input(wrong, message):
    with pytest.raises((TypeError, ValueError), match=message):
        falsify(**wrong)
