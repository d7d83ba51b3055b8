"""The conservative interval is Anderson's bound, by its formula, and holds as often as it says; clusters are added up."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logs import settings
from offtrace.logs import evaluate, simulate
from offtrace.logs.intervals import bootstrap, by_cluster, without_share

DRAWS = st.lists(st.floats(0, 50) | st.sampled_from([0.0, 1.0, 1e6]), min_size=2, max_size=30)


def by_formula(x: list[float], δ: float) -> float:
    """The bound as it is printed, one draw after the other."""
    n = len(x)
    band, total = math.sqrt(math.log(1 / δ) / (2 * n)), 0.0
    for i, value in enumerate(sorted(x), start=1):
        total += value * (max(0.0, 1 - (i - 1) / n - band) - max(0.0, 1 - i / n - band))
    return total


def bound(x: np.ndarray, δ: float) -> float:
    return without_share(x, math.sqrt(math.log(1 / δ) / (2 * len(x))))


@given(DRAWS, st.sampled_from([0.01, 0.025, 0.3]))
def test_the_bound_equals_its_formula(x: list[float], δ: float) -> None:
    assert bound(np.array(x), δ) == pytest.approx(by_formula(x, δ), rel=1e-9, abs=1e-7)


def test_the_bound_holds_at_its_rate_and_comes_near_the_mean() -> None:
    """Skewed draws: products of five ratios. With many draws it comes near the mean, 1."""
    rng, δ = np.random.default_rng(0), 0.1
    x = rng.choice([0.5, 1.5], size=(600, 100, 5)).prod(axis=2)
    assert np.mean([bound(row, δ) <= 1.0 for row in x]) >= 1 - δ
    assert 0.8 < bound(x.ravel()[:40_000], δ) < 1.0
    assert 0.0 <= bound(np.array([0.0, 1.0] * 30 + [np.inf]), 0.05) < np.inf


def test_the_conservative_interval_covers_and_stays_in_what_can_be() -> None:
    mdp, mu, pi, truth = settings.near()
    for seed in range(5):
        logs = simulate(mdp, mu, seed=seed, episodes=500)
        found = evaluate(
            logs, pi, gamma=mdp.gamma, estimators="per-decision IS", resamples=2, rewards=(-4.0, 4.0), longest=6
        ).conservative
        assert found is not None
        assert -4 * 6 <= found.low <= truth <= found.high <= 4 * 6


def test_the_conservative_interval_of_the_returns_themselves() -> None:
    """π = μ, rewards not negative, all episodes over: X is the return, and the bound that of the returns, by its formula."""
    mdp, mu, _, _ = settings.near()
    logs = simulate(mdp, mu, seed=0, episodes=60)
    logs = replace(logs, reward=np.abs(logs.reward))
    result = evaluate(logs, mu, gamma=0.9, rewards=(0.0, 5.0), longest=6, confidence=0.9, estimators="IS", resamples=2)
    returns = []
    for e in range(logs.episodes):
        steps = range(logs.starts[e], logs.starts[e + 1])
        returns.append(sum(0.9**t * float(logs.reward[i]) for t, i in enumerate(steps)))
    assert result.conservative is not None
    assert result.conservative.low == pytest.approx(by_formula(returns, 0.05), rel=1e-9)


def test_clusters_are_added_up() -> None:
    """Ten episodes of each user that are all the same are worth one."""
    rng = np.random.default_rng(0)
    users = rng.normal(size=(60, 1))
    repeated, cluster = np.repeat(users, 10, axis=0), np.repeat(np.arange(60), 10)
    np.testing.assert_allclose(by_cluster(repeated, cluster), users)
    one, other = bootstrap(users, 0.95, 500, 0), bootstrap(by_cluster(repeated, cluster), 0.95, 500, 0)
    np.testing.assert_allclose(one, other)
    mdp, mu, pi, _ = settings.near()
    logs = simulate(mdp, mu, seed=0, episodes=200)
    alone = evaluate(logs, pi, gamma=mdp.gamma, estimators="per-decision IS")
    each = evaluate(logs, pi, gamma=mdp.gamma, estimators="per-decision IS", cluster=np.arange(200))
    assert (each.headline.low, each.headline.high) == (alone.headline.low, alone.headline.high)
    with pytest.raises(ValueError, match="one entry for each of the 200 episodes"):
        evaluate(logs, pi, gamma=mdp.gamma, cluster=["a", "b"])
    with pytest.raises(ValueError, match="two clusters at least"):
        evaluate(logs, pi, gamma=mdp.gamma, cluster=["a"] * 200)
