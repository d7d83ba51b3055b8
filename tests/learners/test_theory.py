"""What a learner does on average is what the exact operator says; where theory promises convergence, it comes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import offtrace as ot
from helpers import name_of, two_of_each
from learners.settings import LEARNERS
from offtrace.learners import EpsilonGreedy, Linear, control, evaluate
from offtrace.mdps import MDP, bifurcation, garnet, greedy, random_policy
from offtrace.operators import Operator

SOME: list[ot.Trace] = [
    ot.Retrace(),
    ot.ImportanceSampling(lam=0.8),
    ot.OneStep(),
    ot.QLambda(lam=0.6),
    ot.TreeBackup(),
    ot.NonMarkovRetrace(lam=0.9),
    ot.RBIS(lam=0.9),
    ot.TruncatedIS(bound=1.5, lam=0.9),
    ot.HistoryBounded(bound=2.0),
    ot.AlphaRetrace(mix=0.5),
    ot.NonMarkovRetrace(lam=0.9, horizon=3),
]


def never_again(seed: int) -> MDP:
    """A start that is left for good; then a small Garnet that ends."""
    inner = garnet(4, 2, 3, seed, gamma=0.9, terminal=1)
    P = np.zeros((5, 2, 5))
    P[1:, :, 1:] = inner.dense_P
    P[0, 0, 1], P[0, 1, 2] = 1.0, 1.0
    return MDP(P, np.vstack([[[1.0, -1.0]], inner.R]), 0.9, np.eye(5)[0], np.arange(5) == 4)


@pytest.mark.parametrize("trace", two_of_each(SOME), ids=name_of)
def test_the_mean_update_of_an_episode_is_the_operator(trace: ot.Trace) -> None:
    mdp, rng = never_again(seed=1), np.random.default_rng(0)
    pi = 0.3 / 2 + 0.7 * random_policy(mdp, rng)
    mu = 0.3 / 2 + 0.7 * random_policy(mdp, rng)
    q0 = rng.normal(size=(mdp.S, mdp.A))
    q0[-1] = 0.0
    found = evaluate(
        trace, mdp, target=pi, behavior=mu, alpha=1.0, episodes=1, update="offline", q0=q0, seeds=4000, certify=False
    )
    wanted = Operator(trace, mdp, target=pi, behavior=mu, tolerance=1e-4).apply(q0) - q0
    for a in range(mdp.A):
        Δ = found.Q[:, 0, a] - q0[0, a]
        Δ = Δ[Δ != 0.0]  # the others began with another action
        assert len(Δ) > 500
        assert abs(Δ.mean() - wanted[0, a]) < 4 * Δ.std() / np.sqrt(len(Δ)) + 1e-3


@pytest.mark.parametrize("trace", two_of_each(t for t in SOME if t.horizon is None), ids=name_of)
def test_small_steps_follow_the_iterates_of_the_operator(trace: ot.Trace) -> None:
    """In the stationary chain of μ, Q changes by α D(MQ − Q) a step on average, D = diag(d(s) μ(a|s)), if α is small."""
    rng, α, steps = np.random.default_rng(1), 0.002, 3000
    base = garnet(3, 2, 3, seed=5, gamma=0.7)
    pi = 0.5 / 2 + 0.5 * random_policy(base, rng)
    mu = 0.5 / 2 + 0.5 * random_policy(base, rng)
    chain = np.einsum("sa,sat->st", mu, base.dense_P)
    d = np.linalg.matrix_power(chain, 1000)[0]
    mdp = MDP(base.P, base.R, 0.7, d, np.zeros(3, bool))
    q0 = np.full((3, 2), 2.0)
    found = evaluate(
        trace, mdp, target=pi, behavior=mu, alpha=α, steps=steps, q0=q0, seeds=300, certify=False, points=1
    )
    op, D, Q = Operator(trace, mdp, target=pi, behavior=mu, tolerance=1e-4), d[:, None] * mu, q0
    gap = op.bellman(np.zeros((3, 2))).ravel()  # at Q = 0: the Bellman operator is affine
    slope = np.stack([op.bellman(e.reshape(3, 2)).ravel() - gap for e in np.eye(6)], axis=1) - np.eye(6)
    change, shift = D.ravel()[:, None] * op.C @ slope, D.ravel() * (op.C @ gap)
    for _ in range(steps):
        Q = Q + α * (change @ Q.ravel() + shift).reshape(3, 2)
    error = found.Q.std(axis=0) / np.sqrt(len(found.Q))
    moved = np.abs(Q - q0).max()
    assert moved > 0.5
    assert (np.abs(found.Q.mean(axis=0) - Q) < 4 * error + 0.01 * moved).all()


@pytest.mark.parametrize("trace", two_of_each(t for t in LEARNERS if t.recursive_condition), ids=name_of)
def test_evaluation_converges_as_one_over_the_root_of_episodes(trace: Any) -> None:
    """γ < ½: with steps of 1/N the rate is that only where no eigenvalue of Z is above ½."""
    mdp, rng = garnet(5, 3, 3, seed=7, gamma=0.4, terminal=1), np.random.default_rng(3)
    mu = 0.6 / 3 + 0.4 * random_policy(mdp, rng)
    pi = 0.6 / 3 + 0.4 * random_policy(mdp, rng)
    error = [
        np.median(evaluate(trace, mdp, target=pi, behavior=mu, alpha="1/N", episodes=n, seeds=15, points=1).curve.error)
        for n in (50, 5000)
    ]
    assert 4 < error[0] / error[1] < 25
    assert error[1] < 0.05


@pytest.mark.parametrize("gridworld", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "trace",
    [ot.OneStep(), ot.TreeBackup(0.9), ot.Retrace(0.9), ot.NonMarkovRetrace(0.9), ot.RBIS(0.9), ot.WatkinsQ(0.9)],
    ids=name_of,
)
def test_control_finds_the_optimal_policy(trace: ot.Trace, gridworld: int) -> None:
    mdp = bifurcation(gridworld)
    exploring = EpsilonGreedy(Linear(1.0, 0.3, over=60_000, by="step"))
    found = control(trace, mdp, behavior=exploring, alpha=0.3, steps=100_000, seeds=2, points=1)
    best = mdp.optimal_q().max(axis=1)[mdp.start > 0]
    for Q in found.Q:
        policy = greedy(Q)
        value = (policy * mdp.q(policy)).sum(axis=1)[mdp.start > 0]
        np.testing.assert_allclose(value, best, rtol=1e-9)
