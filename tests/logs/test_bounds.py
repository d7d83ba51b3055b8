"""Lower bounds equal their formulas, hold as often as they say, and stand in the result side by side."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import offtrace as ot
from logs import settings
from offtrace.logs import evaluate, simulate
from offtrace.logs.estimators.lower_bounds import LOWER_BOUNDS
from offtrace.reports.logs import evaluation_page

DRAWS = st.lists(st.floats(0, 50) | st.sampled_from([0.0, 1.0, 1e6]), min_size=2, max_size=30)


def by_formula(name: str, x: list[float], δ: float, scale: float) -> float:
    """The bound as it is printed, one draw after the other; the best over the cuts."""
    n, found = len(x), [0.0]
    if name == "Anderson":
        band, total = math.sqrt(math.log(1 / δ) / (2 * n)), 0.0
        for i, value in enumerate(sorted(x), start=1):
            total += value * (max(0.0, 1 - (i - 1) / n - band) - max(0.0, 1 - i / n - band))
        return total
    if name == "Student's t":
        mean = sum(x) / n
        variance = sum((value - mean) ** 2 for value in x) / (n - 1)
        return max(0.0, mean - stats.t.ppf(1 - δ, n - 1) * math.sqrt(variance / n))
    for j in range(-5, 3):
        c = scale * 4.0**j
        y = [min(c, value) for value in x]
        mean = sum(y) / n
        variance = sum((value - mean) ** 2 for value in y) / (n - 1)
        if name == "Hoeffding":
            found.append(mean - c * math.sqrt(math.log(8 / δ) / (2 * n)))
        else:
            log = math.log(2 * 8 / δ)
            found.append(mean - math.sqrt(2 * variance * log / n) - 7 * c * log / (3 * (n - 1)))
    return max(found)


@given(DRAWS, st.sampled_from([0.01, 0.025, 0.3]), st.sampled_from([0.5, 1.0, 40.0]))
def test_each_bound_equals_its_formula(x: list[float], δ: float, scale: float) -> None:
    for name, bound in LOWER_BOUNDS.items():
        assert bound(np.array(x), δ, scale) == pytest.approx(by_formula(name, x, δ, scale), rel=1e-9, abs=1e-7), name


def test_bounds_hold_at_their_rate_and_come_near_the_mean() -> None:
    """Skewed draws of which the scale says little: products of five ratios. With many draws all come near the mean, 1."""
    rng, δ = np.random.default_rng(0), 0.1
    x = rng.choice([0.5, 1.5], size=(600, 100, 5)).prod(axis=2)
    for name, bound in LOWER_BOUNDS.items():
        held = np.mean([bound(row, δ, 1.0) <= 1.0 for row in x])
        assert held >= 1 - δ - (0.03 if name == "Student's t" else 0.0), name
        assert 0.8 < bound(x.ravel()[:40_000], δ, 1.0) < 1.0, name


def test_what_overflows_or_has_no_scale_leaves_what_is_certain() -> None:
    x = np.array([0.0, 1.0] * 30 + [np.inf])
    for name, bound in LOWER_BOUNDS.items():
        assert 0.0 <= bound(x, 0.05, 1.0) < np.inf, name
    assert LOWER_BOUNDS["Hoeffding"](x, 0.05, np.inf) == 0.0
    assert LOWER_BOUNDS["empirical Bernstein"](x, 0.05, 0.0) == 0.0


def test_the_result_has_all_of_them_with_what_they_assume() -> None:
    """They cover, Anderson's is the conservative interval, and Student's, which takes most for given, is the narrowest."""
    mdp, mu, pi, truth = settings.near()
    arguments: dict[str, Any] = {
        "trace": ot.OneStep(),
        "gamma": mdp.gamma,
        "estimators": "per-decision IS",
        "resamples": 2,
    }
    for seed in range(5):
        result = evaluate(simulate(mdp, mu, seed=seed, episodes=500), pi, **arguments, rewards=(-4.0, 4.0), longest=6)
        assert list(result.bounds) == list(LOWER_BOUNDS)
        assert result.bounds["Anderson"] is result.conservative
        width = {name: each.high - each.low for name, each in result.bounds.items()}
        assert min(width, key=lambda name: width[name]) == "Student's t"
        for name, each in result.bounds.items():
            assert each.low <= truth <= each.high or name == "Student's t"
            assert -4 * 6 <= each.low < each.high <= 4 * 6
            assert ("normal" in each.assumes) == (name == "Student's t")
    logs = simulate(mdp, mu, seed=0, episodes=100)
    result = evaluate(logs, pi, **arguments)
    assert "by other inequalities: Hoeffding [" in str(result)
    assert "By other inequalities V(π) lies in: Hoeffding [" in evaluation_page.html(result)
    assert json.loads(json.dumps(result.as_json()))["bounds"]["Hoeffding"]["low"] == result.bounds["Hoeffding"].low
    assert evaluate(logs, pi, **{**arguments, "estimators": "fitted"}, initial=np.array([0])).bounds == {}


def test_bounds_of_the_returns_themselves() -> None:
    """π = μ, rewards not negative, all episodes over: X is the return, and the bound that of the returns, by its formula."""
    mdp, mu, _, _ = settings.near()
    logs = simulate(mdp, mu, seed=0, episodes=60)
    logs = replace(logs, reward=np.abs(logs.reward))
    result = evaluate(
        logs,
        mu,
        trace=ot.OneStep(),
        gamma=0.9,
        rewards=(0.0, 5.0),
        longest=6,
        confidence=0.9,
        estimators="IS",
        resamples=2,
    )
    returns = []
    for e in range(logs.episodes):
        steps = range(logs.starts[e], logs.starts[e + 1])
        returns.append(sum(0.9**t * float(logs.reward[i]) for t, i in enumerate(steps)))
    scale = 5 * sum(0.9**t for t in range(6))
    for name, each in result.bounds.items():
        assert each.low == pytest.approx(by_formula(name, returns, 0.05, scale), rel=1e-9), name
