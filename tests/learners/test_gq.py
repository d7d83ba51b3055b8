"""GQ(λ): against a literal NumPy twin, against its fixed point, and where semi-gradient methods diverge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import offtrace as ot
from helpers import whole
from offtrace.learners import GQ, EpsilonGreedy, Learned, control, evaluate
from offtrace.mdps import MDP, garnet


def features_of_pairs(x: np.ndarray, A: int) -> np.ndarray:
    """[S, A, d·A]: x(s) in the place of a."""
    S, d = x.shape
    φ = np.zeros((S, A, d, A))
    for a in range(A):
        φ[:, a, :, a] = x
    return φ.reshape(S, A, d * A)


def by_definition(mdp, x, pi, mu, lam, alpha, alpha_w, steps, seed, limit):
    """The equations of Maei and Sutton, with dense vectors; the random numbers are those of the loop, SplitMix64."""
    mask = (1 << 64) - 1

    def mixed(z):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    golden = 0x9E3779B97F4A7C15
    state = [mixed(mixed(seed + golden & mask))]

    def draw(p):
        where = np.flatnonzero(p)
        if len(where) == 1:
            return where[0]
        return where[min(np.searchsorted(np.cumsum(p[where]), uniform_number(), side="right"), len(where) - 1)]

    def uniform_number():
        state[0] = state[0] + golden & mask
        return (mixed(state[0]) >> 11) * 2.0**-53

    A, P, φ = mdp.A, mdp.P.toarray(), features_of_pairs(x, mdp.A)
    θ, w, e = (np.zeros(φ.shape[-1]) for _ in range(3))
    s, age, discount = None, 0, 0.0
    for _ in range(steps):
        if s is None:
            s, age, discount = draw(mdp.start), 0, 0.0
        a = min(np.searchsorted(np.cumsum(mu[s]), uniform_number(), side="right"), A - 1)
        after = draw(P[s * A + a])
        reward, ends = mdp.R[s, a], mdp.terminal[after]
        age += 1
        ahead = np.zeros_like(θ) if ends else pi[after] @ φ[after]
        δ = reward + mdp.gamma * θ @ ahead - θ @ φ[s, a]
        e = φ[s, a] + discount * lam * pi[s, a] / mu[s, a] * e
        old = w.copy()
        θ = θ + alpha * (δ * e - mdp.gamma * (1 - lam) * (old @ e) * ahead)
        w = w + alpha_w * (δ * e - (old @ φ[s, a]) * φ[s, a])
        discount = mdp.gamma
        s = None if ends or age == limit else after
    return θ.reshape(-1, A)


def small(seed: int, terminal: bool = False) -> tuple[MDP, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    mdp = garnet(6, 2, 3, gamma=0.9, seed=seed, terminal=int(terminal))
    x = rng.normal(size=(6, 3)) * (rng.random((6, 3)) < 0.8)
    return mdp, x, rng.dirichlet([2.0, 2.0], 6), rng.dirichlet([8.0, 8.0], 6)


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("limit", [None, 7])
def test_equals_its_equations(lam, terminal, limit):
    mdp, x, pi, mu = small(3, terminal)
    learned = evaluate(
        GQ(lam, alpha_w=0.05), mdp, target=pi, behavior=mu, features=x, alpha=0.02, steps=400, seed=5, limit=limit
    )
    expected = by_definition(mdp, x, pi, mu, lam, 0.02, 0.05, 400, 5, limit)
    np.testing.assert_allclose(learned.weights, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("lam", [0.5, *whole([0.0])])
def test_finds_the_projected_fixed_point(lam):
    """A θ = b with A = Φᵀ D (I − γλP_π)⁻¹ (I − γP_π) Φ, b = Φᵀ D (I − γλP_π)⁻¹ r, D the distribution of μ."""
    mdp, x, pi, mu = small(1)
    φ = features_of_pairs(x, mdp.A).reshape(mdp.S * mdp.A, -1)
    P = mdp.P.toarray()  # [pairs, S]
    chain = np.einsum("sa,sat->st", mu, P.reshape(mdp.S, mdp.A, mdp.S))
    d = np.linalg.matrix_power(chain, 2000)[0]
    D = np.diag((d[:, None] * mu).ravel())
    P_pi = np.einsum("zt,ta->zta", P, pi).reshape(len(P), -1)
    weight = φ.T @ D @ np.linalg.inv(np.eye(len(P)) - mdp.gamma * lam * P_pi)
    solution = np.linalg.solve(weight @ (np.eye(len(P)) - mdp.gamma * P_pi) @ φ, weight @ mdp.R.ravel())
    learned = evaluate(
        GQ(lam, alpha_w=0.1), mdp, target=pi, behavior=mu, features=x, alpha=0.02, steps=300_000, seeds=8, threads=1
    )
    mean = (φ @ learned.weights.reshape(8, -1).mean(axis=0)).reshape(mdp.S, mdp.A)
    exact = (φ @ solution).reshape(mdp.S, mdp.A)
    assert np.abs(mean - exact).max() < 0.05 * np.abs(exact).max()
    assert np.abs(mdp.q(pi) - exact).max() > 0.1 * np.abs(exact).max()  # the features cannot say Q^π itself


def test_stable_where_semi_gradients_diverge():
    """Tsitsiklis and Van Roy (1997), θ → 2θ: s1 has twice the feature of s0, π stays there for ever, μ half of the time."""
    P = np.zeros((3, 2, 3))
    P[0, :, 1], P[1, 0, 1], P[1, 1, 2], P[2, :, 2] = 1.0, 1.0, 1.0, 1.0
    mdp = MDP(P, np.zeros((3, 2)), 0.99, np.array([1.0, 0, 0]), np.arange(3) == 2)
    pi, mu = np.tile([1.0, 0.0], (3, 1)), np.full((3, 2), 0.5)
    x = np.array([[1.0], [2.0], [0.0]])

    def run(trace: Any) -> Learned:
        return evaluate(trace, mdp, target=pi, behavior=mu, features=x, alpha=0.01, steps=1_000_000, spread=1.0, seed=1)

    with pytest.warns(UserWarning, match="diverged"):
        assert run(ot.OneStep()).diverged
    assert np.abs(run(GQ(0.0, alpha_w=0.02)).weights[:, 0]).max() < 1e-6


def test_greedy_gq_learns():
    mdp, _, _, _ = small(2)
    learned = control(GQ(0.5, alpha_w=0.05), mdp, behavior=EpsilonGreedy(0.5), alpha=0.05, steps=300_000)
    np.testing.assert_array_equal(learned.Q.argmax(1), mdp.optimal_q().argmax(1))


def test_bad_input():
    mdp, x, pi, mu = small(0)
    with pytest.raises(ValueError, match="lam"):
        GQ(1.5)
    with pytest.raises(ValueError, match="alpha_w"):
        GQ(0.5, alpha_w=0.0)
    wrong: list[dict[str, Any]] = [{"update": "offline"}, {"update": "replay"}, {"alpha": "1/N"}]
    for given in wrong:
        with pytest.raises(ValueError, match="GQ learns online"):
            evaluate(GQ(), mdp, target=pi, behavior=mu, features=x, steps=10, **given)
