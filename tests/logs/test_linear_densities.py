"""Linear marginalised IS: it equals a plain solution and, one-hot, the table; it finds density ratios, and says its failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from logs import settings
from offtrace import mdps
from offtrace.logs import Features, Logs, Regressor, evaluate, simulate

NAME, TABLE = "linear marginalised IS", "marginalised IS"
ARGUMENTS: dict[str, Any] = {"trace": ot.OneStep(), "resamples": 20}


def by_solving(
    logs: Logs, pi: np.ndarray, φ: np.ndarray, γ: float, counted: np.ndarray | None = None
) -> tuple[float, np.ndarray]:
    """V̂ and w(s) [S], step by step: Σ_i w(s_i) (φ_i − γ ρ_i φ'_i) / E = mean of φ(s_0); each episode counted so many times."""
    counted = np.ones(logs.episodes) if counted is None else counted
    d, E = φ.shape[1], counted.sum()
    matrix, first, reward = np.zeros((d, d)), np.zeros(d), np.zeros(d)
    assert logs.log_mu is not None
    for e in range(logs.episodes):
        for i in range(logs.starts[e], logs.starts[e + 1]):
            s, rho = logs.state[i], pi[logs.state[i], logs.action[i]] / np.exp(logs.log_mu[i])
            after = np.zeros(d) if logs.terminated[i] else φ[logs.next_state[i]]
            matrix += counted[e] / E * np.outer(φ[s] - γ * rho * after, φ[s])
            reward += counted[e] / E * rho * logs.reward[i] * φ[s]
        first += counted[e] / E * φ[logs.state[logs.starts[e]]]
    θ = np.linalg.solve(matrix, first)
    return float(reward @ θ), φ @ θ


def some_features(logs: Logs, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(logs.states, 2))


@pytest.mark.parametrize("limit", [None, 4])
def test_it_equals_the_plain_solution_and_contributions_are_derivatives(limit: int | None) -> None:
    logs, pi, mdp = settings.some_logs(1, limit=limit)
    given = some_features(logs)
    φ = np.column_stack([np.ones(logs.states), given])
    result = evaluate(logs, pi, gamma=mdp.gamma, estimators=[NAME], model=Features(given), **ARGUMENTS)
    assert result[NAME].estimate == pytest.approx(by_solving(logs, pi, φ, mdp.gamma)[0], rel=1e-9)
    found = result.contributions[NAME]
    assert found.mean() == pytest.approx(result[NAME].estimate, rel=1e-9)
    for e in (0, 7):
        ends = []
        for step in (1e-5, -1e-5):
            counted = np.ones(logs.episodes)
            counted[e] += step
            ends.append(by_solving(logs, pi, φ, mdp.gamma, counted)[0])
        moved = logs.episodes * (ends[0] - ends[1]) / 2e-5
        assert found[e] - found.mean() == pytest.approx(moved, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("initial", [None, [0, 2, 2]])
def test_one_hot_features_give_the_table(initial: list[int] | None) -> None:
    logs, pi, mdp = settings.some_logs(0)
    both = evaluate(
        logs, pi, gamma=mdp.gamma, estimators=[NAME, TABLE], model=Features(np.eye(5)), initial=initial, **ARGUMENTS
    )
    assert both[NAME].estimate == pytest.approx(both[TABLE].estimate, rel=1e-9)
    np.testing.assert_allclose(both.contributions[NAME], both.contributions[TABLE], rtol=1e-7, atol=1e-9)
    features = replace(logs, state=np.eye(5)[logs.state], next_state=np.eye(5)[logs.next_state], states=0)
    given = None if initial is None else np.eye(5)[initial]
    seen = evaluate(
        features, lambda x: pi[x.argmax(axis=1)], gamma=mdp.gamma, estimators=[NAME], model="linear", initial=given, **ARGUMENTS
    )  # fmt: skip
    assert seen[NAME].estimate == pytest.approx(both[TABLE].estimate, rel=1e-9)


@pytest.mark.parametrize("mdp", [mdps.random_walk(5, gamma=0.9), mdps.garnet(6, 2, 3, seed=2, gamma=0.9, terminal=1)])
def test_it_finds_the_density_ratios(mdp: mdps.MDP) -> None:
    """w = d_π / d_μ, both from the MDP: d_π = Σ_t γ^t P(s_t), d_μ = Σ_t P(s_t), an episode's visits."""
    mu, pi = mdps.uniform(mdp), mdps.random_policy(mdp, np.random.default_rng(1), 3.0)
    logs = simulate(mdp, mu, seed=0, episodes=4000)
    live = ~mdp.terminal
    P = mdp.P.toarray().reshape(mdp.S, mdp.A, mdp.S)
    moves = {name: np.einsum("sa,sat->st", p, P)[np.ix_(live, live)] for name, p in (("pi", pi), ("mu", mu))}
    start = mdp.start[live]
    exact = np.linalg.solve(np.eye(live.sum()) - mdp.gamma * moves["pi"].T, start)
    exact /= np.linalg.solve(np.eye(live.sum()) - moves["mu"].T, start)
    w = by_solving(logs, pi, np.eye(mdp.S)[:, live], mdp.gamma)[1][live]
    np.testing.assert_allclose(w, exact, rtol=0.1, atol=0.02)
    row = evaluate(logs, pi, gamma=mdp.gamma, estimators=[NAME], model=Features(np.eye(mdp.S)), **ARGUMENTS)[NAME]
    assert row.low < settings.value(mdp, pi) < row.high
    assert not row.failed


def test_its_own_failures_are_said() -> None:
    logs, pi, mdp = settings.some_logs(episodes=300)
    with pytest.raises(ValueError, match=r"needs features of states, and these logs have ids: give model=Features"):
        evaluate(logs, pi, gamma=mdp.gamma, estimators=[NAME], **ARGUMENTS)
    # μ too small; a system without a solution.
    assert logs.log_mu is not None
    wrong = replace(logs, log_mu=logs.log_mu - 0.3)
    options = {"estimators": [NAME], "model": Features(np.eye(5)), **ARGUMENTS}
    assert "mean weight" in [check.kind for check in evaluate(wrong, pi, gamma=0.9, **options)[NAME].failed]
    endless = evaluate(settings.for_ever(), [[0.5, 0.5]], gamma=1.0, **{**options, "model": Features(np.ones((1, 1)))})
    assert np.isnan(endless[NAME].estimate)
    assert "settled" in [check.kind for check in endless[NAME].failed]
    # Features that hold neither w nor V: a policy that goes to one end of a walk, from logs of one that does not.
    walk = mdps.random_walk(9, gamma=0.95)
    right = np.tile([0.05, 0.95], (walk.S, 1))
    far = simulate(walk, mdps.uniform(walk), seed=0, episodes=500)
    curve, line = np.cos(np.arange(walk.S))[:, None], np.arange(float(walk.S))[:, None]
    row = evaluate(far, right, gamma=walk.gamma, **{**options, "model": Features(curve)})[NAME]
    assert [check.kind for check in row.failed] == ["features"]
    assert np.isnan([row.low, row.high]).all()
    assert next(check.number for check in row.failed) == pytest.approx(settings.value(walk, right), abs=0.1)
    row = evaluate(far, right, gamma=walk.gamma, **{**options, "model": Features(line)})[NAME]
    assert [check.kind for check in row.failed] == ["negative"]
    assert row.low < settings.value(walk, right) < row.high


def test_models_of_pairs_have_fourier_features_of_states() -> None:
    sklearn = pytest.importorskip("sklearn.tree")
    logs, pi, mdp = settings.some_logs(0)
    features = replace(logs, state=np.eye(5)[logs.state], next_state=np.eye(5)[logs.next_state], states=0)
    options = {"gamma": mdp.gamma, "estimators": [NAME], "refits": 0, **ARGUMENTS}
    tree = Regressor(lambda: sklearn.DecisionTreeRegressor(max_depth=2, random_state=0), sweeps=3)
    values = [
        evaluate(features, lambda x: pi[x.argmax(axis=1)], model=m, **options)[NAME].estimate for m in (None, tree)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-9)
