"""Intervals cover, errors fall, and what `evaluate` says and refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import stats

import offtrace as ot
from logs import settings
from offtrace import mdps
from offtrace.logs import ESTIMATORS, Logs, evaluate, intervals, simulate
from offtrace.reports.logs import evaluation_page

REPETITIONS, EPISODES = 140, 500


class Repeated(NamedTuple):
    """What all estimators that need no features found in each repetition: [repetitions, estimators]."""

    off: np.ndarray
    """The estimate less the truth."""
    covered: np.ndarray
    """Whether the interval held the truth; no interval is no miss."""
    width: np.ndarray
    bounded: bool
    """Whether the conservative interval always held it."""


@cache
def repeated(episodes: int, repetitions: int, resamples: int = 300) -> Repeated:
    """Logs of the layered MDP, on which products of ratios are below 10."""
    mdp, mu, pi, truth = settings.near()
    off, covered, width, bounded = [], [], [], True
    for seed in range(repetitions):
        logs = simulate(mdp, mu, seed=np.random.default_rng(seed), episodes=episodes)
        result = evaluate(logs, pi, trace=ot.RBIS(lam=0.95), gamma=mdp.gamma, resamples=resamples, seed=seed)
        off.append([row.estimate - truth for row in result.estimates])
        covered.append([not (truth < row.low or truth > row.high) for row in result.estimates])
        width.append([row.high - row.low for row in result.estimates])
        assert result.conservative is not None
        bounded &= result.conservative.low <= truth <= result.conservative.high
    return Repeated(np.array(off), np.array(covered), np.array(width), bounded)


def test_bootstrap_intervals_cover_at_their_rate_and_the_conservative_one_always() -> None:
    """All estimators, 500 episodes, 140 repetitions, within the error of so many (99.9 %).

    How far the truth is from an estimate, in standard errors of its interval, tells of an interval that is a fifth too narrow
    or too wide as surely as the share of intervals that cover would after 250 repetitions.
    """
    names = list(ESTIMATORS)
    found = repeated(EPISODES, REPETITIONS)
    off = found.off / (found.width / (2 * 1.96))
    low, high = stats.binom.ppf([0.0005, 0.9995], REPETITIONS, 0.95)
    for name, count, each in zip(names, found.covered.sum(axis=0), off.T, strict=True):
        assert low <= count <= high, f"{name}: {count / REPETITIONS:.3f}"
        z = each[np.isfinite(each)]  # where there is an interval
        least, most = stats.chi2.ppf([0.0005, 0.9995], len(z))
        assert least <= z @ z <= most, f"{name}: {z @ z / len(z):.3f}"
        assert abs(z.mean()) <= 3.3 / np.sqrt(len(z)), f"{name}: {z.mean():.3f}"
    assert found.bounded


def test_error_falls_as_one_over_root_episodes() -> None:
    """16 times the episodes: a quarter of the error, for every consistent estimator."""
    few, many = repeated(EPISODES // 16, 60, resamples=10), repeated(EPISODES, REPETITIONS)
    ratio = np.sqrt(np.mean(few.off**2, axis=0) / np.mean(many.off**2, axis=0))
    assert np.all((ratio > 2.8) & (ratio < 5.7)), ratio


def test_conservative_interval_covers_without_support_and_with_truncation() -> None:
    """Few episodes, huge ratios, actions that μ never takes, episodes that are cut: it may be wide, but it covers."""
    rng = np.random.default_rng(0)
    mdp = mdps.garnet(6, 3, 2, seed=3, gamma=0.9, terminal=1)
    pi = mdps.random_policy(mdp, rng, 0.5)
    mu = mdps.random_policy(mdp, rng, 0.5)
    mu[2] = [0.0, 0.5, 0.5]
    truth, bounds = settings.value(mdp, pi), (float(mdp.R.min()), float(mdp.R.max()))
    for seed in range(100):
        logs = simulate(mdp, mu, seed=np.random.default_rng(seed), episodes=(2, 30, 300)[seed % 3], limit=10)
        found = evaluate(logs, pi, trace=ot.OneStep(), gamma=0.9, rewards=bounds, estimators="per-decision IS")
        assert found.conservative is not None
        assert found.conservative.low <= truth <= found.conservative.high


def test_mean_at_least_is_a_bound_at_its_rate_and_is_not_vacuous() -> None:
    rng = np.random.default_rng(0)
    x = rng.exponential(size=(2000, 200))
    held = np.mean([intervals.without_share(row, np.sqrt(np.log(10) / 400)) <= 1.0 for row in x])
    assert held >= 0.9
    assert intervals.without_share(rng.exponential(size=100_000), np.sqrt(np.log(10) / 200_000)) > 0.95


def test_bootstrap_is_exact_in_the_end() -> None:
    """For many normal contributions it is Student's interval; and equal ones give a point."""
    x = np.random.default_rng(0).normal(3.0, 2.0, (5000, 1))
    low, high = intervals.bootstrap(np.column_stack([x, 0 * x + 7]), 0.9, 4000, 1)
    half = 1.645 * x.std() / np.sqrt(5000)
    assert low[0] == pytest.approx(x.mean() - half, abs=0.1 * half)
    assert high[0] == pytest.approx(x.mean() + half, abs=0.1 * half)
    assert (low[1], high[1]) == (7.0, 7.0)
    skewed = (
        np.random.default_rng(0).exponential(size=(50, 1)) ** 2
    )  # with a few more of the large ones the mean would be larger
    (low,), (high,) = intervals.bootstrap(skewed, 0.95, 4000, 1)
    assert high - skewed.mean() > 1.3 * (skewed.mean() - low)


def test_truncated_episodes_bootstrap_and_terminated_ones_do_not() -> None:
    """One state, reward 1, for ever: cut after 3 steps V is 1 / (1 − γ) for every estimator; ended there, 1 + γ + γ²."""
    logs = settings.for_ever()
    pi = np.array([[0.5, 0.5]])
    result = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=0.9)
    for row in result.estimates:
        assert row.estimate == pytest.approx(10.0, rel=1e-6), row.estimator
    assert result.conservative is not None
    assert result.conservative.high >= 10.0 - 1e-9  # the largest value there is, and nothing after a cut says otherwise
    ended = replace(logs, terminated=logs.truncated, truncated=logs.terminated)
    wanted = 1 + 0.9 + 0.81
    for row in evaluate(ended, pi, trace=ot.RBIS(lam=1.0), gamma=0.9).estimates:
        if row.estimator in ("fitted", "direct method"):
            continue  # one state, whose value is taken for the same at all steps: they are not, but by the step
        assert row.estimate == pytest.approx(wanted), row.estimator


def test_unknown_mu_is_estimated_by_counts_and_said() -> None:
    logs, pi, mdp = settings.some_logs(episodes=300)
    result = evaluate(replace(logs, log_mu=None), pi, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma)
    assert result.mu_estimated
    assert "estimated by counts" in str(result)
    assert result.conservative is not None
    assert "nothing is guaranteed" in result.conservative.assumes
    n = np.zeros((logs.states, logs.actions))
    np.add.at(n, (logs.state, logs.action), 1)
    mu = n / np.maximum(n.sum(axis=1, keepdims=True), 1)
    mu[n.sum(axis=1) == 0] = 1 / logs.actions
    given = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma, behavior=mu)
    assert given.behavior == "as given"
    assert [r["estimate"] for r in given.rows()] == pytest.approx([r["estimate"] for r in result.rows()])
    one_hot = {"state": np.eye(5)[logs.state], "next_state": np.eye(5)[logs.next_state]}
    features = replace(logs, log_mu=None, states=0, **one_hot)
    pytest.importorskip("sklearn.ensemble")
    with pytest.importorskip("threadpoolctl").threadpool_limits(1):  # OpenMP spins where cores are busy
        by_trees = evaluate(features, lambda x: pi[x.argmax(axis=1)], trace=ot.RBIS(lam=0.9), gamma=0.9, folds=2)
        rare = replace(features, action=np.where(np.arange(len(logs)) == 5, 2, features.action % 2))
        with pytest.raises(ValueError, match=r"could not be estimated by Hist.*occurs 1 times. Give another"):
            evaluate(rare, lambda x: pi[x.argmax(axis=1)], trace=ot.RBIS(lam=0.9), gamma=0.9, folds=2)
    assert by_trees.behavior == "estimated by HistGradientBoostingClassifier, 2 folds of episodes"


def test_a_handful_of_episodes_is_warned_about() -> None:
    mdp = mdps.random_walk(7, gamma=0.99)
    mu, pi = np.tile([0.75, 0.25], (8, 1)), np.tile([0.25, 0.75], (8, 1))
    logs = simulate(mdp, mu, seed=np.random.default_rng(0), episodes=300)
    result = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma)
    assert result.diagnosis.effective < 30
    assert result["per-decision IS"].effective < 30
    assert "rests on" in [check.kind for check in result["per-decision IS"].failed]
    assert "effective episodes, which is a handful" in str(result)
    assert "its weights are worth" in str(result)

    # All episodes alike, none as π's would be: the weights are equal, and only their mean tells.
    logs = simulate(mdp, np.tile([0.99, 0.01], (8, 1)), seed=np.random.default_rng(0), episodes=300)
    result = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma)
    assert result.diagnosis.mean_weight < 0.1
    assert "and should have 1" in str(result)


def test_support_is_measured() -> None:
    logs, pi, mdp = settings.some_logs(episodes=200)
    keep = logs.action != 2
    assert not keep.all()
    pair = np.unique(logs.state[logs.action == 2])
    mu = np.full((logs.states, 3), 1 / 3)
    mu[pair[0]] = [0.5, 0.5, 0.0]
    logs = simulate(mdp, mu, seed=np.random.default_rng(0), episodes=200, limit=7)
    outside = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma).diagnosis.outside
    assert outside == pytest.approx(pi[pair[0], 2] * np.mean(logs.state == pair[0]))


def test_other_first_states() -> None:
    logs, pi, mdp = settings.some_logs(episodes=300)
    everywhere = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma, initial=np.array([0, 0, 3]))
    weights = np.array([2 / 3, 0, 0, 1 / 3, 0])
    by_weights = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma, initial=weights)
    assert everywhere.state_values is not None
    assert everywhere.value == pytest.approx(np.nansum(everywhere.state_values * weights))
    assert "initial=<list of 300>" in evaluate(logs, pi, trace=ot.RBIS(), gamma=0.9, initial=[0] * 300).call
    assert by_weights.rows()[0]["low"] == pytest.approx(everywhere.rows()[0]["low"])
    assert [row.estimator for row in everywhere.estimates] == ["fitted", "direct method"]
    assert everywhere.conservative is None


BAD: list[tuple[dict[str, Any], str]] = [
    ({"target_policy": np.ones((5, 3))}, "sums to 3"),
    ({"target_policy": np.ones((4, 3)) / 3}, r"must be \[S, A\] = \(5, 3\)"),
    ({"target_policy": lambda s: np.ones((len(s), 2)) / 2}, r"gave an array of shape \(5, 2\)"),
    ({"target_policy": "greedy"}, "must be a table"),
    ({"gamma": 1.5}, "gamma must lie in"),
    ({"confidence": 95}, "confidence must lie in"),
    ({"estimators": ["doubly robst"]}, "did you mean 'doubly robust'"),
    ({"estimators": []}, "is empty"),
    ({"estimators": "IS", "initial": np.array([0])}, "cannot be computed"),
    ({"initial": np.array([9])}, "ids below 5"),
    ({"initial": np.ones(5)}, "sum to one"),
    ({"model": "forest"}, "model must be one of"),
    ({"model": "linear"}, "states of these logs are ids"),
    ({"behavior": "guess"}, "behavior must be"),
    ({"behavior": np.eye(5, 3)}, "sums to 0"),
    ({"behavior": np.tile([1.0, 0, 0], (5, 1))}, "probability 0"),
    ({"trace": ot.AlphaRetrace(mix=0.5)}, "evaluates the mixture"),
    ({"trace": ot.NStep(3)}, "not of the operator's form"),
    ({"rewards": (0.0, 0.1)}, "but the logs have them from"),
    ({"rewards": (-np.inf, np.inf)}, "two finite numbers"),
    ({"rewards": (1.0,)}, r"their range \(lo, hi\)"),
    ({"longest": 2}, "but one in the logs has"),
    ({"longest": 2.5}, "longest must be an integer"),
    ({"confidence": 1.0}, r"confidence must lie in \(0, 1\)"),
    ({"resamples": 0}, "resamples must be an integer of at least 1"),
    ({"refits": -1}, "refits must be an integer"),
    ({"folds": 2.5}, "folds must be an integer"),
    ({"trace": ot.VariableLambda(lam=[0.5, 0.5])}, "one λ for each of the"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD, ids=[f"{message}" for _, message in BAD])
def test_bad_input_is_named(wrong: dict[str, Any], message: str) -> None:
    logs, pi, mdp = settings.some_logs()
    given: dict[str, Any] = {"target_policy": pi, "trace": ot.RBIS(lam=0.9), "gamma": mdp.gamma, **wrong}
    with pytest.raises((ValueError, TypeError), match=message):
        evaluate(logs, given.pop("target_policy"), **given)


def test_a_target_without_support_is_refused_and_what_is_no_logs_too() -> None:
    logs, _, mdp = settings.some_logs()
    named = replace(logs, actions=4, action_names=("up", "down", "left", "right"))
    taken = named.action_names[logs.action[0]]
    with pytest.raises(
        ValueError, match=rf"none of the {len(logs)} logged actions, such as '{taken}' in state \d at step 0"
    ):
        evaluate(named, np.tile([0.0, 0, 0, 1], (5, 1)), trace=ot.RBIS(), gamma=mdp.gamma)
    with pytest.raises(TypeError, match=r"offtrace.logs.read or simulate make, got str"):
        evaluate("logs.parquet", np.ones((5, 3)) / 3, trace=ot.RBIS(), gamma=mdp.gamma)  # pyright: ignore[reportArgumentType]


def test_what_was_never_reached_is_said() -> None:
    """All episodes cut before the later layers: what those are worth is in no log, and no estimate that needs it is right."""
    mdp, mu, pi, truth = settings.near()
    logs = simulate(mdp, mu, seed=np.random.default_rng(0), episodes=300, limit=3)
    result = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma, rewards=(-4.0, 4.0))
    into = np.count_nonzero(logs.next_state[logs.truncated] >= 9)
    assert result.value != pytest.approx(truth, rel=0.1)
    assert any(f"{into} of 300 episodes were cut in states in which nothing was logged" in w for w in result.warnings)
    assert result.conservative is not None
    assert result.conservative.low <= truth <= result.conservative.high
    assert result.state_values is not None
    assert np.isnan(result.state_values).nonzero()[0].tolist() == list(range(9, 19))
    initial = np.where(np.arange(mdp.S) == 12, 0.25, 0.75 * mdp.start)
    given = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma, initial=initial)
    assert any("25 % of the first states given" in w for w in given.warnings)
    whole = simulate(mdp, mu, seed=np.random.default_rng(0), episodes=300)
    assert not any("was logged" in w for w in evaluate(whole, pi, trace=ot.RBIS(), gamma=mdp.gamma).warnings)


def test_an_empty_conservative_interval_is_said_to_be_empty() -> None:
    """μ in the logs is far too small: every episode weighs thousands, and both bounds run away, past each other."""
    logs, pi, _ = settings.some_logs(episodes=300)
    assert logs.log_mu is not None
    arguments: dict[str, Any] = {"trace": ot.RBIS(), "gamma": 0.9, "resamples": 20, "rewards": (-2.0, 2.0)}
    sound = evaluate(logs, pi, **arguments)
    assert sound.conservative is not None
    assert not sound.conservative.empty
    assert "empty" not in repr(sound)
    wrong = evaluate(replace(logs, log_mu=logs.log_mu - 3.0), pi, **arguments)
    c = wrong.conservative
    assert c is not None
    assert np.isnan([c.low, c.high]).all()
    found = re.match(
        r"by the data V\(π\) is at least (\S+) and at most (\S+), which cannot be: .* μ is not the policy", c.empty
    )
    assert found
    assert float(found[1]) > float(found[2])
    assert "conservative interval for V(π): empty, given" in repr(wrong)
    assert wrong.warnings[0] == f"the conservative interval is empty: {c.empty}"
    assert all(np.isnan(row["conservative_low"]) and np.isnan(row["conservative_high"]) for row in wrong.rows())
    shown = evaluation_page.html(wrong)
    assert "interval, which needs no large sample, is empty: by the data V(π) is at least" in shown
    assert "NaN" not in shown.split('type="application/json"')[1].split("</script>")[0]


def test_without_a_discount_a_cut_leaves_the_conservative_interval_open() -> None:
    """γ = 1: what comes after a cut has no bound, unless it is said how long episodes can be."""
    logs, pi, _ = settings.some_logs(limit=3)
    assert logs.reward.min() < 0 < logs.reward.max()

    def bounds(logs: Logs, **given: Any) -> tuple[float, float, str]:
        c = evaluate(logs, pi, trace=ot.OneStep(), gamma=1.0, estimators="IS", resamples=2, **given).conservative
        assert c is not None
        return c.low, c.high, c.assumes

    low, high, assumes = bounds(logs)
    assert (low, high) == (-np.inf, np.inf)
    assert "any length" in assumes
    low, high, _ = bounds(replace(logs, reward=np.abs(logs.reward)))
    assert 0 <= low < high == np.inf
    low, high, assumes = bounds(logs, longest=20)
    assert -np.inf < low < high < np.inf
    assert "at most 20 steps, " in assumes


def test_what_does_not_settle_has_no_interval() -> None:
    """One state, reward 1, for ever, γ = 1: there is no fixed point, and no estimate is moved by the attempt to find one."""
    result = evaluate(settings.for_ever(), [[0.5, 0.5]], trace=ot.RBIS(lam=0.9), gamma=1.0)
    for name in ("fitted", "direct method"):
        assert result[name].failed[0].words.startswith("the iteration did not settle")
    for row in result.estimates[2:9]:
        if "robust" not in row.estimator:
            assert row.estimate == pytest.approx(3.0), row.estimator
    for row in result.estimates[:7]:
        assert np.isnan([row.low, row.high]).all(), row.estimator
    assert str(result) == repr(result)


def test_a_reason_is_printed_once_for_all_rows() -> None:
    """Weights that are all 0 from some step on: some estimates are 0, some are not defined, and each reason is one line."""
    mdp = mdps.random_walk(7, gamma=0.9)
    pi = np.tile([0.0, 1.0], (8, 1))
    logs = simulate(mdp, np.tile([0.8, 0.2], (8, 1)), seed=np.random.default_rng(0), episodes=50)
    result = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma)
    for name in ("weighted per-decision IS", "weighted IS", "weighted doubly robust"):
        assert "finite" in [check.kind for check in result[name].failed]
    assert str(result).count("not defined, since at some step no episode has any weight") == 1
    assert str(result).count("all episodes contribute the same") == 1
    assert "nan" not in str(result)


def test_ends_must_be_flagged_and_mu_may_be_missing_only_where_it_is_not_needed() -> None:
    logs, pi, mdp = settings.some_logs(limit=3)
    unflagged = replace(logs, truncated=np.zeros(len(logs), bool))
    with pytest.raises(ValueError, match="neither a terminated nor a truncated step"):
        evaluate(unflagged, pi, trace=ot.RBIS(), gamma=mdp.gamma)
    inside = logs.truncated.copy()
    inside[logs.starts[1] - 2 if logs.starts[1] > 1 else logs.starts[2] - 2] = True
    with pytest.raises(ValueError, match="is not the last one"):
        evaluate(replace(logs, truncated=inside), pi, trace=ot.RBIS(), gamma=mdp.gamma)
    without = replace(logs, log_mu=None)
    with pytest.raises(ValueError, match="TreeBackup, QLambda, OneStep"):
        evaluate(without, pi, trace=ot.RBIS(), gamma=mdp.gamma, behavior=False)
    assert len(evaluate(without, pi, trace=ot.TreeBackup(), gamma=mdp.gamma, behavior=False).estimates) == 2
