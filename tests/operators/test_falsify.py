"""falsify finds what is there, comes back empty where nothing is, and its objective agrees with the certified operator."""

import numpy as np
import pytest

import offtrace as ot
from offtrace.mdps import MDP, garnet, random_policy
from offtrace.operators import Operator, lattice
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
    found = falsify(trace, budget=60.0, seed=1, workers=1)
    assert found.found
    assert found.radius.lower > 1
    assert found.radius.width < 1e-3
    found.mdp.save(tmp_path / "found.npz")
    again = MDP.load(tmp_path / "found.npz")
    op = Operator(again, trace, pi=found.pi, mu=found.mu)
    assert op.spectral_radius.lower > 1
    Q = np.zeros((again.S, again.A))  # by then the error has grown, though Q^π is a fixed point
    first = np.abs(Q - again.q(found.pi)).max()
    assert np.abs(op.iterate(Q, 400) - again.q(found.pi)).max() > 2 * first
    assert "diverges" in str(found)


@pytest.mark.parametrize(
    "trace",
    [ot.Retrace(), ot.TreeBackup(), ot.NonMarkovRetrace(), ot.NonMarkovRetrace(0.9), ot.RBIS(), ot.RBIS(0.9)],
    ids=repr,
)
def test_comes_back_empty(trace):
    found = falsify(trace, budget=1.5, seed=0, workers=2)
    assert not found.found
    assert found.tried > 1000
    assert 0.9 < found.radius.lower <= found.radius.upper <= 0.98 + 1e-9
    assert "no divergence found" in str(found)


def test_one_worker_is_repeatable():
    runs = [falsify(ot.QLambda(0.6), budget=60.0, seed=1, workers=1) for _ in range(2)]
    assert runs[0].tried == runs[1].tried
    np.testing.assert_array_equal(runs[0].pi, runs[1].pi)
    assert runs[0].mdp == runs[1].mdp


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
    h = 0.5
    P, pi, mu = lattice.decode(rng.normal(size=30) * 2, 3, 2, h, 3.0)
    np.testing.assert_allclose(P.sum(axis=1), 1.0)
    np.testing.assert_allclose(pi.reshape(3, 2).sum(axis=1), 1.0)
    np.testing.assert_allclose(mu.reshape(3, 2).sum(axis=1), 1.0)
    exponents = np.log(pi / mu) / h
    np.testing.assert_allclose(exponents, np.round(exponents), atol=1e-9)
    decay, ratio, cap = (
        np.broadcast_to(np.asarray(f, float), mu.shape) for f in trace.normal_form(np, pi, mu, pi / mu)
    )
    bounds = np.array(trace.lag_bound or (np.inf,))
    linear = not (np.isfinite(cap).any() or np.isfinite(bounds).any())
    half = 0 if linear else 60
    C = lattice.discounted(P, mu, decay, ratio, cap, trace.recursive, linear, bounds, trace.horizon or 0, 0.9, h, half)
    mdp = MDP(P.reshape(3, 2, 3), np.zeros((3, 2)), 0.9, terminal=np.zeros(3, bool))
    op = Operator(mdp, trace, pi=pi.reshape(3, 2), mu=mu.reshape(3, 2), tolerance=1e-7)
    np.testing.assert_allclose(C, op.C, atol=1e-5)


@pytest.mark.parametrize("actions", [1, 2, 4])
def test_policies_on_the_lattice_are_policies(actions):
    rng = np.random.default_rng(6)
    for _ in range(50):
        theta = rng.normal(size=3 * actions * 5) * 4
        _, pi, mu = lattice.decode(theta, 3, actions, 0.7, 2.1)
        for policy in (pi, mu):
            assert (policy >= 0).all()
            np.testing.assert_allclose(policy.reshape(3, actions).sum(axis=1), 1.0)
        assert (mu > 0).all()


def test_custom_objective_agrees_with_the_normal_form():
    mdp = garnet(2, 2, 2, seed=0, gamma=0.8)
    rng = np.random.default_rng(0)
    pi, mu = random_policy(mdp, rng), random_policy(mdp, rng)
    custom = ot.StepTrace(clipped_product, title="clipped", horizon=7)
    C = lattice.carried(custom, mdp.dense_P.reshape(4, 2), pi.ravel(), mu.ravel(), 0.8, most=10**6)
    np.testing.assert_allclose(C, Operator(mdp, ot.TruncatedIS(1.0, horizon=7), pi=pi, mu=mu).C, atol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"trace": ot.PengQ()}, "needs a trace"),
        ({"trace": ot.HistoryTrace(lambda history: 1.0)}, "StepTrace"),
        ({"trace": ot.Retrace(), "gamma": 1.0}, "gamma"),
        ({"trace": ot.Retrace(), "states": 0}, "at least 1"),
        ({"trace": ot.Retrace(), "budget": 0.0}, "seconds"),
    ],
)
def test_bad_input(wrong, message):
    with pytest.raises((TypeError, ValueError), match=message):
        falsify(**wrong)
