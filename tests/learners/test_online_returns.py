"""Methods that are stated by returns: true online methods equal the online λ-return, and Peng's Q(λ) and n-step their own returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import offtrace as ot
from learners import methods_by_definition as plain
from learners.settings import policies, world
from offtrace.learners import EpsilonGreedy, Replay, control, evaluate, follow, method
from offtrace.mdps import bifurcation

X = np.random.default_rng(4).normal(size=(5, 3))


def online_returns(φ: np.ndarray, φ_next: np.ndarray, reward: np.ndarray, γ: float, λ: float, α: float) -> np.ndarray:
    """[T, d]: the online λ-return algorithm (Sutton and Barto 2018, section 12.3) on one episode, from weights 0.

    For each horizon h all updates k < h are done anew, with the λ-return that ends at h; a value of s_{k+n} is that of the weights
    that the algorithm had when s_{k+n} was reached.
    """
    w_at, found = [np.zeros(φ.shape[1])], []
    for h in range(1, len(φ) + 1):
        w = np.zeros(φ.shape[1])
        for k in range(h):

            def n_step(n: int, k: int = k) -> float:
                i = k + n
                value = w_at[i - 1] @ φ_next[i - 1]
                return float(sum(γ**j * reward[k + j] for j in range(n)) + γ**n * value)

            G = (1 - λ) * sum(λ ** (n - 1) * n_step(n) for n in range(1, h - k)) + λ ** (h - k - 1) * n_step(h - k)
            w = w + α * (G - w @ φ[k]) * φ[k]
        w_at.append(w)
        found.append(w)
    return np.array(found)


@pytest.mark.parametrize("name", ["true online td", "true online sarsa"])
@pytest.mark.parametrize("lam", [0.0, 0.8, 1.0])
def test_true_online_methods_equal_the_online_return(name: str, lam: float) -> None:
    steps = plain.made(T=15, seed=7, on_policy=True)
    state = np.append(steps.state[:1], steps.next_state[:-1])
    rng = np.random.default_rng(1)
    action = np.array([rng.choice(3, p=steps.behavior[s]) for s in state])
    last = np.arange(15) == 14
    steps = steps._replace(state=state, action=action, terminated=last, truncated=0 * last > 0)
    found = follow(
        method(name, alpha=0.1, lam=lam), features=X, marks=range(1, 16), **(steps._asdict() | {"target": None})
    )
    if name == "true online td":
        φ, φ_next = X[state], np.where(last[:, None], 0.0, X[steps.next_state])
    else:
        pairs = plain.of_pairs(X, 3)
        φ = pairs[state, action]
        φ_next = np.append(φ[1:], np.zeros((1, 9)), axis=0)
    wanted = online_returns(φ, φ_next, steps.reward, steps.gamma, lam, 0.1)
    np.testing.assert_allclose(found.reshape(15, -1), wanted, rtol=1e-9, atol=1e-12)


RETURNS: list[Any] = [ot.PengQ(lam=0.8), ot.PengQ(lam=1.0), ot.NStep(n=1), ot.NStep(n=3)]


@pytest.mark.parametrize("rule", RETURNS, ids=repr)
def test_uncorrected_returns_in_learners(rule: Any) -> None:
    """With fixed values, offline and from replay, what an episode adds up to is α Σ_k (G_k − q_k) at each pair."""
    mdp = world()
    pi, mu = policies(mdp)
    Q = np.random.default_rng(0).normal(size=(mdp.S, mdp.A))
    Q[mdp.terminal] = 0.0
    found = evaluate(rule, mdp, target=pi, behavior=mu, alpha=0.1, steps=40, limit=40, update="offline", q0=Q, seed=3)
    from offtrace.learners.by_definition import learn  # which lives through the same steps

    lived = learn(
        ot.OneStep(), mdp, target=pi, behavior=mu, alpha=0.1, steps=40, limit=40, update="offline", q0=Q, seed=3
    )
    G = np.array([v.reward for v in lived.visits])
    ends = np.array([v.terminated for v in lived.visits]), np.array([v.truncated for v in lived.visits])
    if ends[0].any():  # one episode only
        G, ends = G[: ends[0].argmax() + 1], tuple(e[: ends[0].argmax() + 1] for e in ends)
    n, wanted = len(G), Q.copy()
    targets = ot.targets(
        rule, reward=G, q=np.array([v.q for v in lived.visits[:n]]), next_value=np.array([v.next_value for v in lived.visits[:n]]),
        terminated=ends[0], truncated=ends[1], gamma=mdp.gamma,
    )  # fmt: skip
    for v, g in zip(lived.visits[:n], targets, strict=True):
        wanted[v.s, v.a] += 0.1 * (g - Q[v.s, v.a])
    if n == 40:
        np.testing.assert_allclose(found.Q, wanted, rtol=1e-9, atol=1e-11)
    drawn = evaluate(
        rule,
        mdp,
        target=pi,
        behavior=mu,
        alpha=0.1,
        steps=n,
        limit=40,
        q0=Q,
        seed=3,
        update=Replay(capacity=50, every=n, length=50),
    )
    assert not np.array_equal(drawn.Q, Q)


def test_the_oldest_comparison_can_be_run() -> None:
    mdp, run = bifurcation(1), {"behavior": EpsilonGreedy(0.2), "alpha": 0.3, "steps": 5000, "limit": 100}
    best = mdp.optimal_q().argmax(axis=1)[mdp.start > 0]
    for rule in (
        ot.PengQ(lam=0.7),
        ot.NStep(n=3),
        ot.WatkinsQ(lam=0.7),
        "sarsa",
        "true online sarsa",
        method("pq", lam=0.5),
    ):
        given: Any = run | ({"alpha": 0.1} if not isinstance(rule, ot.Rule) else {})
        found = control(rule, mdp, **given)
        np.testing.assert_array_equal(found.Q.argmax(axis=1)[mdp.start > 0], best)
