"""MAGIC: its partial returns and its blend equal plain formulas, and it leans on the model where that is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import offtrace as ot
from logs import by_formula
from logs import settings as made
from offtrace import mdps
from offtrace.logs import Estimator, Evidence, Features, Logs, Result, evaluate, register_estimator, simulate
from offtrace.logs.estimators import registry
from offtrace.logs.estimators.blending import least_error, partial_steps

NAME, PLAIN = "MAGIC", "weighted doubly robust"
Evaluated = Callable[..., tuple[Result, Evidence]]


@pytest.fixture
def evaluated() -> Iterator[Evaluated]:
    """`evaluate`, which also gives the evidence that estimators had."""
    seen: list[Evidence] = []

    def spy(evidence: Evidence) -> tuple[float, np.ndarray]:
        seen.append(evidence)
        return 0.0, np.zeros(evidence.logs.episodes)

    register_estimator(Estimator("spy", "0", spy))

    def run(logs: Logs, pi: Any, **given: Any) -> tuple[Result, Evidence]:
        options = {"trace": ot.OneStep(), "resamples": 50, "estimators": ["spy", NAME, PLAIN, "direct method"]}
        return evaluate(logs, pi, **(options | given)), seen[-1]

    yield run
    del registry._registered["spy"]


@pytest.mark.parametrize("limit", [None, 5])
def test_partial_returns_and_the_blend_equal_their_formulas(evaluated: Evaluated, limit: int | None) -> None:
    logs, pi, mdp = made.some_logs(1, limit=limit)
    result, evidence = evaluated(logs, pi, gamma=mdp.gamma)
    q, v, first = evidence.direct.crossed
    with np.errstate(divide="ignore"):
        log_pi = np.log(pi)[logs.state, logs.action]
    episodes, found = by_formula.episodes_of(logs, log_pi, q, v, first), evidence.blend
    for j, g in zip(found.steps, found.returns, strict=True):
        assert g == pytest.approx(by_formula.partial_return(episodes, mdp.gamma, int(j)), rel=1e-9, abs=1e-12)
    assert found.returns[0] == pytest.approx(first.mean())
    assert found.returns[-1] == pytest.approx(result[PLAIN].estimate, rel=1e-12)
    d = found.contributions - found.returns
    covariance = d.T @ d / logs.episodes / (logs.episodes - 1)
    half = 1.6448536 * np.sqrt(covariance[-1, -1])
    last = found.returns[-1]
    bias = [g - last - half if g > last + half else min(0.0, g - last + half) for g in found.returns]
    np.testing.assert_allclose(found.bias, bias, atol=1e-7)
    wanted = by_formula.least_error(covariance + np.outer(bias, bias))
    np.testing.assert_allclose(found.share, wanted, atol=1e-5)
    assert result[NAME].estimate == pytest.approx(float(wanted @ found.returns), rel=1e-5)


def test_the_pull_on_the_model_is_that_of_the_direct_method(evaluated: Evaluated) -> None:
    """What an episode contributes to g_{−1} beyond its own V̂(s_0) is what it contributes to the direct method beyond that."""
    logs, pi, mdp = made.some_logs(2)
    result, evidence = evaluated(logs, pi, gamma=mdp.gamma)
    direct = result.contributions["direct method"] - evidence.direct.fit.values(logs.state[logs.starts[:-1]])
    found = evidence.blend.contributions[:, 0] - evidence.direct.crossed[2]
    np.testing.assert_allclose(found, direct, rtol=1e-6, atol=1e-9)
    assert direct.std() > 0


@settings(max_examples=30, deadline=None)
@given(
    root=arrays(np.float64, (5, 4), elements=st.floats(-2, 2, width=32)),
    bias=arrays(np.float64, 4, elements=st.floats(-2, 2, width=32)),
)
def test_the_blend_has_the_least_error(root: np.ndarray, bias: np.ndarray) -> None:
    covariance = root.T @ root
    x, M = least_error(covariance, bias), covariance + np.outer(bias, bias)
    wanted = by_formula.least_error(M)
    assert x.min() >= 0.0
    assert x.sum() == pytest.approx(1.0)
    assert x @ M @ x <= wanted @ M @ wanted + 1e-6 * (1 + np.trace(M))


def test_lengths_of_returns() -> None:
    assert partial_steps(1).tolist() == [-1, 0]
    assert partial_steps(2).tolist() == [-1, 0, 1]
    assert partial_steps(200).tolist() == [-1, 0, 1, 3, 7, 15, 31, 63, 127, 199]


def one_value_for_all(T: int = 10, E: int = 300) -> Logs:
    """A reward after ten steps, which a model with one value for all states gets wrong."""
    rng, last = np.random.default_rng(0), np.tile(np.arange(T) == T - 1, E)
    return Logs(
        starts=np.arange(0, E * T + 1, T), state=np.tile(np.arange(T), E), next_state=np.tile(np.r_[1:T, 0], E),
        action=rng.integers(0, 2, E * T), reward=np.where(last, 1 + 0.1 * rng.normal(size=E * T), 0.0), terminated=last,
        truncated=np.zeros(E * T, bool), log_mu=np.log(np.full(E * T, 0.5)), states=T, actions=2,
    )  # fmt: skip


def test_it_leaves_a_model_that_is_wrong(evaluated: Evaluated) -> None:
    """A biased model: the blend does not follow it. A table is right, and then the model has much of it."""
    logs, pi = one_value_for_all(), np.tile([0.4, 0.6], (10, 1))
    wrong, _ = evaluated(logs, pi, gamma=0.9, model=Features(np.zeros((10, 1))))
    assert abs(wrong["direct method"].estimate - 0.9**9) > 0.1
    assert abs(wrong[NAME].estimate - 0.9**9) < 0.01
    assert wrong[NAME].low < 0.9**9 < wrong[NAME].high
    assert "V(μ)" in [check.kind for check in wrong[NAME].failed]  # a third of it is the model's, and that is wrong
    right, evidence = evaluated(logs, pi, gamma=0.9)
    assert evidence.blend.model > 0.3
    assert right[NAME].standard_error <= right[PLAIN].standard_error
    assert right[NAME].low < 0.9**9 < right[NAME].high


def test_it_says_where_it_cannot_see_a_bias(evaluated: Evaluated) -> None:
    """Products of 60 ratios are worth a few episodes: no bias of the model would show."""
    mdp = mdps.garnet(8, 3, 3, seed=1, gamma=0.99)
    mu, pi = mdps.uniform(mdp), mdps.random_policy(mdp, np.random.default_rng(0), 1.0)
    result, evidence = evaluated(simulate(mdp, mu, seed=0, episodes=60, limit=60), pi, gamma=mdp.gamma)
    assert "unseen" in [check.kind for check in result[NAME].failed]
    assert evidence.blend.effective < 18
    assert any("MAGIC: what the model's bias is judged by" in warning for warning in result.warnings)
