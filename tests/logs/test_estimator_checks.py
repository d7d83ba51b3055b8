"""V(μ) as observed, what can go wrong with each estimator, and the rule by which one is named first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from logs import settings
from offtrace import mdps
from offtrace.logs import Features, Logs, ReadReport, evaluate, simulate
from offtrace.logs.checks import Check
from offtrace.logs.importance import weights
from offtrace.logs.result import Row, chosen


def discounted(logs: Logs, gamma: float) -> list[float]:
    """The oracle: Σ_t γ^t r_t of each episode, one step after the other."""
    found = []
    for e in range(logs.episodes):
        total = 0.0
        for t, i in enumerate(range(logs.starts[e], logs.starts[e + 1])):
            total += gamma**t * logs.reward[i]
        found.append(total)
    return found


def failed(row: Row) -> list[str]:
    return [check.kind for check in row.failed]


def test_the_value_of_mu_is_the_mean_return_and_models_find_it() -> None:
    """Terminated episodes: V(μ) is the mean return. A table finds it with λ = 1 exactly, and every row says V(π) − V(μ)."""
    mdp, mu, pi, _ = settings.near()
    logs = simulate(mdp, mu, seed=0, episodes=300)
    result = evaluate(logs, pi, trace=ot.Retrace(lam=1.0), gamma=mdp.gamma)
    returns = discounted(logs, mdp.gamma)
    np.testing.assert_allclose(result.observed.returns, returns, rtol=1e-12)
    assert result.observed.low < np.mean(returns) < result.observed.high
    assert result.observed.beyond == 0.0
    assert result["fitted"].of_behavior == pytest.approx(np.mean(returns), rel=1e-6)
    for row in result.estimates:
        assert row.gain == pytest.approx(row.estimate - np.mean(returns))
        assert row.gain_low < row.gain < row.gain_high
        assert not row.failed, row
    assert result.headline is result["fitted"]
    assert "V(π) − V(μ) = " in str(result)


def test_beyond_a_cut_the_value_of_mu_is_a_models_and_is_said_to_be() -> None:
    """One state, reward 1, for ever, cut after three steps: V(μ) = 1 / (1 − γ), of which γ³ was not observed."""
    result = evaluate(settings.for_ever(), [[0.5, 0.5]], trace=ot.RBIS(lam=0.9), gamma=0.9)
    assert result.observed.estimate == pytest.approx(10.0, rel=1e-6)
    assert result.observed.beyond == pytest.approx(0.9**3, rel=1e-6)
    assert "beyond the cut" in str(result)


def test_a_model_that_misses_the_value_of_mu_says_so_and_is_not_the_headline() -> None:
    """A reward after ten steps, and one value for all states: a one-step fit is wrong of μ itself, and another one is named."""
    rng, E, T = np.random.default_rng(0), 100, 10
    last = np.tile(np.arange(T) == T - 1, E)
    logs = Logs(
        starts=np.arange(0, E * T + 1, T), state=np.tile(np.arange(T), E), next_state=np.tile(np.r_[1:T, 0], E),
        action=rng.integers(0, 2, E * T), reward=np.where(last, 1 + 0.1 * rng.normal(size=E * T), 0.0), terminated=last,
        truncated=np.zeros(E * T, bool), log_mu=np.log(np.full(E * T, 0.5)), states=T, actions=2,
    )  # fmt: skip
    target = np.tile([0.48, 0.52], (T, 1))
    result = evaluate(logs, target, trace=ot.OneStep(), gamma=0.9, model=Features(np.zeros((T, 1))))
    for name in ("fitted", "direct method"):
        assert "V(μ)" in failed(result[name])
        assert abs(result[name].of_behavior - result.observed.estimate) > 3 * result.observed.standard_error
    assert result.headline.estimator not in ("fitted", "direct method")
    assert not result.headline.failed
    assert "it finds V(μ)" in repr(result)
    assert result.rows()[0]["failed"] != ""
    assert [row["headline"] for row in result.rows()].count(True) == 1


def test_intervals_end_where_rewards_and_horizon_do_and_deterministic_data_have_narrow_ones() -> None:
    """Every pair of a deterministic MDP was seen: the value is exact, and the interval is narrow and holds it."""
    mdp = mdps.bifurcation(1)
    best = mdp.optimal_q()
    mu, pi = mdps.epsilon_greedy(best, 0.5), mdps.epsilon_greedy(best, 0.1)
    truth, covered = settings.value(mdp, pi), 0
    for seed in range(12):
        logs = simulate(mdp, mu, seed=seed, episodes=300)
        result = evaluate(logs, pi, trace=ot.Retrace(lam=0.9), gamma=mdp.gamma, resamples=200)
        for row in result.estimates:
            assert not row.low < 0.0
            assert not row.high > 10.0
        for name in ("fitted", "direct method"):
            covered += result[name].low <= truth <= result[name].high
            assert result[name].high - result[name].low < 0.05
    assert covered >= 23  # of 24


@pytest.mark.parametrize("share", [0.2, 0.008])
def test_what_was_never_logged_widens_the_interval_of_a_table_or_forbids_it(share: float) -> None:
    """From the one state π takes an action never logged: V lies where its worth may lie, and a large share fails."""
    n = 200
    logs = Logs(
        starts=np.arange(n + 1), state=np.zeros(n, int), next_state=np.zeros(n, int), action=np.arange(n) % 2,
        reward=np.where(np.arange(n) % 2, 1.0, 0.0), terminated=np.ones(n, bool), truncated=np.zeros(n, bool),
        log_mu=np.log(np.full(n, 0.5)), states=1, actions=3,
    )  # fmt: skip
    row = evaluate(
        logs,
        [[(1 - share) / 2, (1 - share) / 2, share]],
        trace=ot.RBIS(),
        gamma=0.5,
        rewards=(-1.0, 1.0),
        estimators="fitted",
    ).headline
    assert next(check.number for check in row.checks if check.kind == "support") == pytest.approx(share)
    assert row.estimate == pytest.approx(0.5)
    if share > 0.01:
        assert "support" in failed(row)
        assert np.isnan(row.low)
    else:  # a value in [−2, 2] for the rest
        assert not failed(row)
        assert row.low == pytest.approx((1 - share) / 2 - share * 2, abs=0.01)
        assert row.high == pytest.approx((1 - share) / 2 + share * 2, abs=0.01)


def test_weights_that_mislead_are_found() -> None:
    """Mean weights by the definition, and weights that are worth a handful of episodes."""
    mdp = mdps.random_walk(7, gamma=0.9)
    mu, pi = np.tile([0.7, 0.3], (8, 1)), np.tile([0.3, 0.7], (8, 1))
    logs = simulate(mdp, mu, seed=0, episodes=300)
    assert logs.log_mu is not None
    log_pi = np.log(pi)[logs.state, logs.action]
    longest, total = int(np.diff(logs.starts).max()), 0.0
    for e in range(logs.episodes):
        steps, weight = range(logs.starts[e], logs.starts[e + 1]), 1.0
        for t in range(longest):
            weight *= np.exp(log_pi[steps[t]] - logs.log_mu[steps[t]]) if t < len(steps) else 1.0
            total += 0.9**t * weight
    wanted = total / logs.episodes / sum(0.9**t for t in range(longest))
    found = weights(logs, log_pi, logs.log_mu, 0.9).discounted_mean()
    assert found.mean() == pytest.approx(wanted, rel=1e-10)

    result = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=0.9)
    assert "worth" in failed(result["IS"])
    far = evaluate(logs, np.tile([0.1, 0.9], (8, 1)), trace=ot.RBIS(lam=0.9), gamma=0.9, estimators=["IS"])["IS"]
    assert next(check for check in far.checks if check.kind == "worth").number < 10
    assert np.isnan(far.high)


def test_rewards_that_hardly_ever_come_leave_weights_without_an_interval() -> None:
    """Weights near 1, of 300 episodes, say little of what nine of them earned; with ten it is some, and with none all is said."""
    mdp, mu, pi, _ = settings.near()
    logs = simulate(mdp, mu, seed=0, episodes=300)
    for earning, known in ((9, False), (10, True), (0, True)):
        reward = np.zeros(len(logs))
        reward[logs.starts[:earning]] = 1.0
        row = evaluate(
            replace(logs, reward=reward), pi, trace=ot.RBIS(lam=0.9), gamma=0.9, estimators=["weighted IS"]
        ).headline
        told = [c.words for c in row.failed if "earned the same" in c.words]
        assert told == ([] if known else ["all but 9 of 300 episodes earned the same: it rests on these few"])
        assert known or np.isnan(row.low)


def test_the_headline_is_chosen_by_the_rule() -> None:
    bad = (Check("V(μ)", 0.0, "wrong", True),)
    rows = [
        Row("fitted", "", 0.0, 0.1, 0, 0, 9, 0, checks=bad),
        Row("direct method", "", 1.0, 0.2, 0, 0, 9, 0),
        Row("doubly robust", "", 2.0, 0.1, 0, 0, 9, 0),
        Row("IS", "", 3.0, 0.01, 0, 0, 9, 0),
    ]
    assert chosen(rows).estimator == "direct method"
    assert chosen(rows[2:]).estimator == "doubly robust"
    assert chosen([replace(rows[0], checks=()), *rows[1:]]).estimator == "fitted"
    assert chosen([rows[0], rows[3]]).estimator == "IS"
    assert chosen([replace(row, checks=bad) for row in rows]).estimator == "fitted"
    assert chosen([replace(rows[1], estimate=float("nan")), replace(rows[3], checks=bad)]).estimator == "IS"


def test_who_was_dropped_is_said_with_the_headline_and_on_each_estimator() -> None:
    mdp, mu, pi, _ = settings.near()
    report = ReadReport("a.csv", 10, 310, True, dropped=10, dropped_known=10, dropped_return=-3.0, kept_return=1.0)
    logs = replace(simulate(mdp, mu, seed=0, episodes=300), report=report)
    result = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma)
    assert "10 of 310 episodes (3.2 %) were dropped, with a mean sum of rewards of -3 against 1" in result.warnings[0]
    assert all(any(check.kind == "dropped" for check in row.checks) for row in result.estimates)
    assert not result.headline.failed
    many = evaluate(replace(logs, report=replace(report, dropped=100)), pi, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma)
    assert all("dropped" in failed(row) for row in many.estimates)
    assert "NO estimator passes its checks" in many.said()


def some_features(seed: int = 0) -> tuple[Logs, Any, float]:
    """x moves by ±0.5 in [−3, 3], and an episode ends beyond ±2, with reward x."""
    rng = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {name: [] for name in ("state", "action", "reward", "next_state", "terminated")}
    starts = [0]
    for _ in range(200):
        x = float(rng.uniform(-1, 1))
        while True:
            action = int(rng.random() < 0.5)
            after = x + action - 0.5 + 0.1 * rng.normal()
            over = abs(after) > 2
            for name, value in zip(rows, ([x], action, after if over else 0.0, [after], over), strict=True):
                rows[name].append(value)
            x = after
            if over:
                break
        starts.append(len(rows["reward"]))
    arrays = {name: np.array(values) for name, values in rows.items()}
    log_mu = np.log(np.full(len(arrays["reward"]), 0.5))
    flat: Any = {**arrays, "truncated": np.zeros(len(log_mu), bool), "log_mu": log_mu}
    logs = Logs(starts=np.array(starts), **flat, states=0, actions=2)
    return logs, (lambda x: np.tile([0.45, 0.55], (len(x), 1))), 0.95


def test_features_made_from_the_logs_find_the_value_of_mu() -> None:
    """Where raw features cannot: V is no linear function of x here."""
    logs, pi, gamma = some_features()
    with pytest.importorskip("threadpoolctl").threadpool_limits(1):
        result = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=gamma, estimators="fitted")
    row = result.headline
    assert "V(μ)" not in failed(row)
    assert row.low < row.estimate < row.high
    miss = abs(row.of_behavior - result.observed.estimate)
    assert row.high - row.low > 2 * miss  # what it misses of μ, it may miss of π
