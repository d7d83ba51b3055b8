"""The CDF of returns, its band, quantiles and CVaR: the definition on small logs, and the truth within the band."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from logs import settings
from offtrace.logs import Logs, Result, distribution, evaluate, simulate

ARGUMENTS: dict[str, Any] = {"trace": ot.OneStep(), "estimators": "IS", "resamples": 2}


def some_result(seed: int = 0, episodes: int = 300, policy: np.ndarray | None = None) -> Result:
    mdp, mu, pi, _ = settings.near()
    logs = simulate(mdp, mu, seed=seed, episodes=episodes)
    return evaluate(logs, pi if policy is None else policy, gamma=mdp.gamma, **ARGUMENTS)


def weighted_returns(logs: Logs, pi: np.ndarray, γ: float) -> list[tuple[float, float]]:
    """(G, W) of each episode, step by step."""
    found = []
    assert logs.log_mu is not None
    for e in range(logs.episodes):
        G, W = 0.0, 1.0
        for t, i in enumerate(range(logs.starts[e], logs.starts[e + 1])):
            G += γ**t * logs.reward[i]
            W *= pi[logs.state[i], logs.action[i]] / np.exp(logs.log_mu[i])
        found.append((G, W))
    return found


def at_least(values: list[float], ε: float) -> float:
    """∫ (P_E(Y > w) − ε)⁺ dw, interval by interval."""
    ends, total = sorted({0.0, *values}), 0.0
    for w, after in itertools.pairwise(ends):
        total += (after - w) * max(0.0, sum(value > w for value in values) / len(values) - ε)
    return total


def test_cdf_and_band_are_those_of_the_definition() -> None:
    _, _, pi, _ = settings.near()
    result = some_result(episodes=40)
    pairs = weighted_returns(result.logs, pi, result.gamma)
    for points in (1000, 7):
        found = distribution(result, points=points)
        ε = math.sqrt(math.log(4 * 41 / 0.05) / 80)
        assert len(found.returns) == (41 if points == 1000 else 8)
        for j, x in enumerate(found.returns):
            below = [W if x >= G - 1e-12 else 0.0 for G, W in pairs]
            assert found.cdf[j] == pytest.approx(sum(below) / sum(W for _, W in pairs), abs=1e-12)
            assert found.low[j] == pytest.approx(at_least(below, ε), abs=1e-12)
            following = found.returns[j + 1] if j + 1 < len(found.returns) else np.inf
            above = [W if following - 1e-12 <= G else 0.0 for G, W in pairs]
            assert found.high[j] == pytest.approx(1 - at_least(above, ε), abs=1e-12)


def test_cvar_and_quantiles_are_means_and_order_statistics() -> None:
    """π = μ: those of the returns themselves, and at level 1 the mean."""
    _, mu, _, _ = settings.near()
    result = some_result(episodes=200, policy=mu)
    found, returns = distribution(result, points=1000), np.sort(result.observed.returns)
    for level in (0.05, 0.25, 1.0):
        n = round(level * 200)
        estimate, low, high = found.cvar(level)
        assert estimate == pytest.approx(returns[:n].mean())
        assert low < estimate < high
        estimate, low, high = found.quantile(level)
        assert estimate == pytest.approx(returns[n - 1])
        assert low <= estimate <= high
    assert distribution(result, points=20).cvar(0.25)[1] <= found.cvar(0.25)[1]  # fewer points: wider, never narrower
    assert distribution(result, points=20).cvar(0.25)[2] >= found.cvar(0.25)[2]


def test_the_truth_lies_within_the_band() -> None:
    """Returns of π itself, very many, against the band from logs of μ."""
    mdp, _, pi, _ = settings.near()
    logs = simulate(mdp, pi, seed=99, episodes=20_000)
    drawn = np.sort([G for G, _ in weighted_returns(logs, pi, mdp.gamma)])
    worst = drawn[: len(drawn) // 4].mean()
    for seed in range(3):
        found = distribution(some_result(seed, 2000), between=(-20.0, 20.0))
        assert found.assumes == "returns in [-20, 20] (as stated), independent episodes"
        truth = np.searchsorted(drawn, found.returns, side="right") / len(drawn)
        assert np.all((found.low <= truth + 0.01) & (truth - 0.01 <= found.high))
        assert np.abs(found.cdf - truth).max() < 0.1
        assert (found.high - found.low)[len(truth) // 2] < 0.6
        estimate, low, high = found.cvar(0.25)
        assert low < worst < high
        assert estimate == pytest.approx(worst, abs=0.2)


def test_what_it_cannot_say_is_refused() -> None:
    logs, pi, mdp = settings.some_logs(limit=2)
    with pytest.raises(ValueError, match="episodes were truncated, so that their returns are not known"):
        distribution(evaluate(logs, pi, gamma=mdp.gamma, **ARGUMENTS))
    result = some_result()
    with pytest.raises(ValueError, match=r"level must lie in \(0, 1\]"):
        distribution(result).cvar(0.0)
    with pytest.raises(ValueError, match=r"between says that returns lie in \[0, 0.1\], but the logs have them from"):
        distribution(result, between=(0.0, 0.1))
    elsewhere = evaluate(result.logs, result.policy, gamma=0.9, trace=ot.OneStep(), initial=np.array([0]))
    with pytest.raises(ValueError, match="averages over the logs' own first states"):
        distribution(elsewhere)
    assert result.logs.log_mu is not None
    wrong = replace(result.logs, log_mu=result.logs.log_mu - 1.0)
    with pytest.raises(ValueError, match="most often μ is not the policy that acted"):
        distribution(evaluate(wrong, result.policy, gamma=0.9, **ARGUMENTS))
