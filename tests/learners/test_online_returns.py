"""Methods that are stated by returns: true online methods equal the online λ-return, Peng's Q(λ) and n-step their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import offtrace as ot
from learners import by_definition
from learners import methods_by_definition as plain
from learners.settings import policies, world
from offtrace.learners import EpsilonGreedy, Replay, control, evaluate, follow, method
from offtrace.mdps import bifurcation

X = np.random.default_rng(4).normal(size=(5, 3))


def online_returns(φ: np.ndarray, φ_next: np.ndarray, reward: np.ndarray, γ: float, λ: float, α: float) -> np.ndarray:
    """[T, d]: the online λ-return algorithm (Sutton and Barto 2018, section 12.3) on one episode, from weights 0.

    For each horizon h all updates k < h are done anew, with the λ-return that ends at h; a value of s_{k+n} is that of the
    weights that the algorithm had when s_{k+n} was reached.
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
    given: Any = steps._asdict() | {"target": None}
    found = follow(method(name, alpha=0.1, lam=lam), features=X, marks=range(1, 16), **given)
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
    """With fixed values what an episode adds up to is α Σ_k (G_k − q_k): offline, and from replay of the whole episode."""
    mdp, n = world(ends=0.0), 30
    pi, mu = policies(mdp)
    Q = np.random.default_rng(0).normal(size=(mdp.S, mdp.A))
    run: dict[str, Any] = {"target": pi, "behavior": mu, "alpha": 0.1, "steps": n, "limit": n, "q0": Q, "seed": 3}
    lived = by_definition.learn(ot.OneStep(), mdp, update="offline", **run)  # which lives through the same steps
    reward, q, after = (np.array([getattr(v, name) for v in lived.visits]) for name in ("reward", "q", "next_value"))
    none = np.zeros(n, bool)
    G = ot.targets(rule, reward=reward, q=q, next_value=after, terminated=none, truncated=none, gamma=mdp.gamma)
    wanted = Q.copy()
    for v, g in zip(lived.visits, G, strict=True):
        wanted[v.s, v.a] += 0.1 * (g - Q[v.s, v.a])
    np.testing.assert_allclose(evaluate(rule, mdp, update="offline", **run).Q, wanted, rtol=1e-9, atol=1e-11)
    memory = Replay(capacity=n, every=n, length=n)  # one sequence, which begins where chance says
    drawn, same = (evaluate(r, mdp, update=memory, **run).Q != Q for r in (rule, ot.OneStep()))
    np.testing.assert_array_equal(drawn, same)


@pytest.mark.parametrize("rule", RETURNS, ids=repr)
def test_uncorrected_returns_in_streams(rule: Any) -> None:
    """Over episodes with ends of both kinds the updates of a stream add up to Σ_k (G_k − q_k) ∇q_k."""
    rng, T = np.random.default_rng(5), 25
    reward, q, after, γ = rng.normal(size=T), rng.normal(size=T), rng.normal(size=T), rng.uniform(0, 1, T)
    terminated, truncated = np.arange(T) == 7, np.isin(np.arange(T), (12, T - 1))
    where = rng.integers(0, 4, T)
    stream, total = ot.Stream(rule, 4), np.zeros(4)
    for t in range(T):
        ends = {"terminated": terminated[t], "truncated": truncated[t]}
        total += stream.step(int(where[t]), reward=reward[t], q=q[t], next_value=after[t], gamma=γ[t], **ends)
    G = ot.targets(rule, reward=reward, q=q, next_value=after, terminated=terminated, truncated=truncated, gamma=γ)
    np.testing.assert_allclose(total, np.bincount(where, G - q, minlength=4), rtol=1e-10, atol=1e-12)
    with pytest.raises(TypeError, match="has no ratios"):
        ot.Stream(rule, 4, values="state")


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
