"""Marginalised importance sampling equals plain solutions, is exact where the logs are, and knows how each episode moves it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from logs import settings
from offtrace import mdps
from offtrace.logs import Logs, evaluate, simulate

NAME = "marginalised IS"
ARGUMENTS: dict[str, Any] = {"trace": ot.OneStep(), "resamples": 20, "estimators": [NAME, "direct method"]}


def by_solving(logs: Logs, pi: np.ndarray, γ: float, counted: np.ndarray | None = None) -> float:
    """The definition, step by step: x = d_0 + γPᵀx over states, V = Σ_s x(s) R(s); each episode counted so many times."""
    S, E = logs.states, logs.episodes
    counted = np.ones(E) if counted is None else counted
    assert logs.log_mu is not None
    visits, reward, P, first = np.zeros(S), np.zeros(S), np.zeros((S, S)), np.zeros(S)
    for e in range(E):
        for i in range(logs.starts[e], logs.starts[e + 1]):
            s, rho = logs.state[i], pi[logs.state[i], logs.action[i]] / np.exp(logs.log_mu[i])
            visits[s] += counted[e]
            reward[s] += counted[e] * rho * logs.reward[i]
            if not logs.terminated[i]:
                P[s, logs.next_state[i]] += counted[e] * rho
        first[logs.state[logs.starts[e]]] += counted[e] / counted.sum()
    n = np.maximum(visits, 1e-300)
    x = np.linalg.solve(np.eye(S) - γ * (P / n[:, None]).T, first)
    return float(x @ (reward / n))


@pytest.mark.parametrize("limit", [None, 3])
def test_it_equals_the_plain_solution(limit: int | None) -> None:
    for seed in range(3):
        logs, pi, mdp = settings.some_logs(seed, limit=limit)
        row = evaluate(logs, pi, gamma=mdp.gamma, **ARGUMENTS)[NAME]
        assert row.estimate == pytest.approx(by_solving(logs, pi, mdp.gamma), rel=1e-7)


def test_contributions_have_the_estimate_as_mean_and_are_derivatives() -> None:
    logs, pi, mdp = settings.some_logs(1, limit=5)
    result = evaluate(logs, pi, gamma=mdp.gamma, **ARGUMENTS)
    found = result.contributions[NAME]
    assert found.mean() == pytest.approx(result[NAME].estimate, rel=1e-7)
    for e in (0, 7, 20):
        ends = []
        for step in (1e-5, -1e-5):
            counted = np.ones(logs.episodes)
            counted[e] += step
            ends.append(by_solving(logs, pi, mdp.gamma, counted))
        moved = logs.episodes * (ends[0] - ends[1]) / 2e-5
        assert found[e] - found.mean() == pytest.approx(moved, rel=1e-4, abs=1e-6)


def exact_logs() -> tuple[Logs, np.ndarray, float, float]:
    """Every pair as often as μ takes it, and every next state as often as it comes: the logs are the MDP, without chance."""
    rng, S, γ = np.random.default_rng(0), 3, 0.9
    P = np.stack([rng.permutation([1, 1, 2]) for _ in range(S * 2)]).reshape(S, 2, S) / 4  # in quarters
    reward, pi = rng.normal(size=(S, 2)), rng.dirichlet(np.ones(2), S)
    rows = []
    for s in range(S):
        for a, times in ((0, 1), (1, 3)):  # μ = (1/4, 3/4)
            for after in range(S):
                rows += [(s, a, after, reward[s, a])] * round(4 * times * P[s, a, after])
    state, action, after, r = (np.array(column) for column in zip(*rows, strict=True))
    n = len(rows)
    logs = Logs(
        starts=np.arange(n + 1), state=state, next_state=after, action=action, reward=r, terminated=np.zeros(n, bool),
        truncated=np.ones(n, bool), log_mu=np.log(np.where(action, 0.75, 0.25)), states=S, actions=2,
    )  # fmt: skip
    v = np.linalg.solve(np.eye(S) - γ * np.einsum("sa,sat->st", pi, P), (pi * reward).sum(axis=1))
    return logs, pi, γ, float(v.mean())


def test_with_exact_occupancies_it_is_exact() -> None:
    """Steps that are cut one by one: no product of ratios says anything, and the densities say all."""
    logs, pi, γ, truth = exact_logs()
    row = evaluate(logs, pi, gamma=γ, **ARGUMENTS)[NAME]
    assert row.estimate == pytest.approx(truth, rel=1e-8)
    assert not [check for check in row.failed if check.kind != "rests on"]
    elsewhere = evaluate(logs, pi, gamma=γ, **ARGUMENTS, initial=np.array([1.0, 0.0, 0.0]))
    assert elsewhere[NAME].estimate == pytest.approx(elsewhere["direct method"].estimate, rel=1e-6)


def test_with_mu_by_counts_it_is_the_direct_method() -> None:
    logs, pi, mdp = settings.some_logs(episodes=300)
    result = evaluate(logs, pi, gamma=mdp.gamma, behavior="estimate", **ARGUMENTS)
    assert result[NAME].estimate == pytest.approx(result["direct method"].estimate, rel=1e-6)


def test_long_episodes_do_not_matter_to_it() -> None:
    """Products of 100 ratios, which are worth a few episodes: the densities still find V(π), and pass their checks."""
    mdp = mdps.garnet(8, 3, 3, seed=1, gamma=0.95)
    mu, pi = mdps.uniform(mdp), mdps.random_policy(mdp, np.random.default_rng(0), 2.0)
    truth, logs = settings.value(mdp, pi), simulate(mdp, mu, seed=0, episodes=100, limit=100)
    result = evaluate(logs, pi, trace=ot.OneStep(), gamma=mdp.gamma, resamples=200, estimators=[NAME, "IS"])
    assert "worth" in [check.kind for check in result["IS"].failed]
    assert not result[NAME].failed
    assert result[NAME].low < truth < result[NAME].high
    assert np.isnan(result["IS"].low)


def test_what_it_lacks_is_said() -> None:
    logs, pi, mdp = settings.some_logs(episodes=60)
    features = replace(logs, state=np.eye(5)[logs.state], next_state=np.eye(5)[logs.next_state], states=0)
    with pytest.raises(ValueError, match="'marginalised IS' cannot be computed: it needs states that are ids"):
        evaluate(features, lambda x: pi[x.argmax(axis=1)], gamma=mdp.gamma, **ARGUMENTS)
    # μ too small, and states that lie beyond every cut.
    far, mu, target, _ = settings.near()
    whole = simulate(far, mu, seed=0, episodes=100)
    assert whole.log_mu is not None
    wrong = evaluate(replace(whole, log_mu=whole.log_mu - 0.3), target, gamma=far.gamma, **ARGUMENTS)[NAME]
    assert "mean weight" in [check.kind for check in wrong.failed]
    beyond = evaluate(simulate(far, mu, seed=0, episodes=100, limit=3), target, gamma=far.gamma, **ARGUMENTS)[NAME]
    share = next(check for check in beyond.failed if check.kind == "support").number
    assert share == pytest.approx(0.95**3 * 0.9**3, rel=0.15)
    assert np.isnan([beyond.low, beyond.high]).all()
    # Without an end and a discount there is no occupancy; with ratios that grow there is none either.
    endless = evaluate(settings.for_ever(), [[0.5, 0.5]], gamma=1.0, **ARGUMENTS)
    assert np.isnan(endless[NAME].estimate)
    assert "the occupancy of the target policy was not found" in str(endless)
    assert "overflow" not in str(endless)
    grown = replace(settings.for_ever(), log_mu=np.log(np.full(30, 0.4)))
    assert np.isnan(evaluate(grown, [[0.5, 0.5]], gamma=0.9, **ARGUMENTS)[NAME].estimate)
