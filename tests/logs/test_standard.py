"""Each standard estimator equals its printed formula, and SCOPE-RL where that means the same."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from logs import by_formula, settings
from offtrace.logs import ESTIMATORS, Logs, evaluate
from offtrace.logs import importance as importance_sampling
from offtrace.logs.behavior import deal
from offtrace.logs.container import take

STANDARD = {
    name: entry.function
    for name, entry in ESTIMATORS.items()
    if isinstance(entry.function, importance_sampling.Weighting)
}

FORMULAS = {
    "per-decision IS": by_formula.per_decision,
    "weighted per-decision IS": by_formula.weighted_per_decision,
    "IS": by_formula.ordinary,
    "weighted IS": by_formula.weighted,
    "doubly robust": by_formula.doubly_robust,
    "weighted doubly robust": by_formula.weighted_doubly_robust,
}


@pytest.mark.parametrize("limit", [None, 3])
def test_each_estimator_equals_its_formula(limit: int | None) -> None:
    assert set(FORMULAS) == set(STANDARD)
    for seed in range(3):
        logs, pi, mdp = settings.some_logs(seed, limit=limit)
        result = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma, step=False)
        with np.errstate(divide="ignore"):
            log_pi = np.log(pi)[logs.state, logs.action]

        def with_values(train: Logs, logs: Logs = logs, pi: Any = pi, mdp: Any = mdp, log_pi: Any = log_pi) -> Any:
            q = by_formula.fixed_point(ot.OneStep(), train, pi, mdp.gamma)
            v = (pi * q).sum(axis=1)
            first = v[logs.state[logs.starts[:-1]]]
            return by_formula.episodes_of(logs, log_pi, q[logs.state, logs.action], v[logs.next_state], first)

        episodes, fold = with_values(logs), deal(logs, 5, seed=0)
        by_fold = [with_values(take(logs, np.flatnonzero(fold != f))) for f in range(5)]
        crossed = [by_fold[f][e] for e, f in enumerate(fold)]
        for name, formula in FORMULAS.items():
            wanted = formula(crossed if "robust" in name else episodes, mdp.gamma)
            assert result[name].estimate == pytest.approx(wanted, rel=1e-6, abs=1e-7), name
        assert result["direct method"].estimate == pytest.approx(np.mean([e["v0"] for e in episodes]), rel=1e-6)


@pytest.mark.parametrize(("name", "within"), [("weighted IS", 1e-9), ("weighted per-decision IS", 0.05)])
def test_contributions_of_a_ratio_are_what_it_loses_without_an_episode(name: str, within: float) -> None:
    """θ − θ without the episode, times E, up to a constant; per decision only near it, for episodes that are over."""
    logs, pi, mdp = settings.some_logs(limit=None)
    with np.errstate(divide="ignore"):
        log_pi = np.log(pi)[logs.state, logs.action]
    assert logs.log_mu is not None
    w = importance_sampling.weights(logs, log_pi, logs.log_mu, mdp.gamma)
    found = STANDARD[name].weigh(w, logs.reward).contributions
    E, lost = logs.episodes, []
    for e in range(E):
        log = w.log.copy()
        log[logs.starts[e] : logs.starts[e + 1]] = -np.inf
        lost.append(E * (found.mean() - STANDARD[name].weigh(replace(w, log=log), logs.reward).contributions.mean()))
    error = found - found.mean() - (np.array(lost) - np.mean(lost))
    assert np.abs(error).max() <= within * np.ptp(found)


@pytest.mark.parametrize("ratio", [0.5, 2.0])
@pytest.mark.parametrize("name", ["weighted IS", "weighted per-decision IS"])
def test_weighted_estimates_do_without_floats_for_their_weights(name: str, ratio: float) -> None:
    """2,000 more steps in front of all episodes, with one ratio and no reward: W is 0 or ∞ in floats, and nothing changes."""
    logs, pi, _ = settings.some_logs(limit=None)
    with np.errstate(divide="ignore"):
        log_pi = np.log(pi)[logs.state, logs.action]
    assert logs.log_mu is not None
    more, E = 2000, logs.episodes
    before = importance_sampling.weights(logs, log_pi, logs.log_mu, 1.0)
    front = np.repeat(logs.starts[:-1], more)
    longer = replace(logs, starts=logs.starts + more * np.arange(E + 1), reward=np.insert(logs.reward, front, 0.0))
    log_ratio = np.insert(log_pi - logs.log_mu, front, math.log(ratio))
    after = importance_sampling.weights(longer, log_ratio, np.zeros(len(log_ratio)), 1.0)
    assert np.all((after.whole == 0) | (after.whole == np.inf))
    weigh = STANDARD[name].weigh
    with np.errstate(invalid="ignore"):
        wanted, found = weigh(before, logs.reward).contributions, weigh(after, longer.reward).contributions
    assert np.isfinite(wanted).all()
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(after.effective()[more:], before.effective(), rtol=1e-9)


def test_an_overflowing_product_does_not_hide() -> None:
    n = 2000
    log_mu, log_pi = np.full(n, -1.0), np.zeros(n)
    ends = np.arange(n) % 1000 == 999
    zeros = np.zeros(n, int)
    logs = Logs(
        starts=np.array([0, n // 2, n]), state=zeros, next_state=zeros, action=zeros, reward=np.ones(n), terminated=ends,
        truncated=np.zeros(n, bool), log_mu=log_mu, states=1, actions=1,
    )  # fmt: skip
    assert np.isinf(importance_sampling.weights(logs, log_pi, log_mu, 1.0).whole).all()
    result = evaluate(logs, np.ones((1, 1)), trace=ot.RBIS(lam=0.9), gamma=1.0)
    assert np.isinf(result["per-decision IS"].estimate)
    assert "the products of ratios overflow" in [check.words for check in result["per-decision IS"].failed]


def test_estimates_are_those_of_scope_rl() -> None:
    """On episodes of equal length, which is what SCOPE-RL knows; made by reference/run_scope_rl.py."""
    given = json.loads((Path(__file__).parent / "reference" / "scope_rl.json").read_text())
    pi, q = np.array(given["pi"]), np.array(given["q"])
    state, following, action = (np.array(given[name]) for name in ("state", "next_state", "action"))
    last = np.arange(len(state)) % given["steps"] == given["steps"] - 1
    logs = Logs(
        starts=np.arange(0, len(state) + 1, given["steps"]), state=state, next_state=following, action=action,
        reward=np.array(given["reward"]), terminated=last, truncated=np.zeros(len(state), bool),
        log_mu=np.log(given["mu"]), states=len(pi), actions=pi.shape[1],
    )  # fmt: skip
    v = (pi * q).sum(axis=1)
    w = importance_sampling.weights(logs, np.log(pi)[state, action], np.log(given["mu"]), given["gamma"])
    assert len(given["estimates"]) == 6
    for name, wanted in given["estimates"].items():
        how = STANDARD[name]
        found = how.weigh(w, how.signal(logs, given["gamma"], q[state, action], v[following])).contributions.mean()
        found += v[state[logs.starts[:-1]]].mean() if how.doubly_robust else 0.0
        assert found == pytest.approx(wanted, rel=1e-8), name  # it adds 1e-10 to what it divides by
