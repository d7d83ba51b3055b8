"""λ chosen from the data, and several policies ranked."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import offtrace as ot
from logs import settings
from offtrace import mdps
from offtrace.logs import Features, compare, simulate
from offtrace.logs.choosing import chosen_trace, last_in_common
from offtrace.logs.evaluation import evaluate
from offtrace.logs.evidence import gather

ENDS = st.tuples(st.integers(-5, 5), st.integers(0, 5)).map(lambda pair: (float(pair[0]), float(pair[0] + pair[1])))


@given(st.lists(ENDS, min_size=1, max_size=8))
def test_slope_takes_the_last_interval_that_all_before_have_a_point_in_common_with(
    intervals: list[tuple[float, float]],
) -> None:
    """By definition: the largest i for which some point lies in all of the intervals 0 … i (an end of one of them, then)."""
    wanted = 0
    for i in range(len(intervals)):
        points = [end for interval in intervals[: i + 1] for end in interval]
        if any(all(a <= x <= b for a, b in intervals[: i + 1]) for x in points):
            wanted = i
        else:
            break
    assert last_in_common(intervals) == wanted


def test_lambda_is_small_where_the_model_is_right_and_large_where_it_is_wrong() -> None:
    mdp, mu, pi, _ = settings.near()
    logs = simulate(mdp, mu, seed=0, episodes=300)
    right, _ = gather(logs, pi, None, mdp.gamma)
    assert chosen_trace(right, (1.0, 0.5, 0.0)) == ot.RBIS(lam=0.0)
    walk = mdps.bifurcation(1)
    best = walk.optimal_q()
    logs = simulate(walk, mdps.epsilon_greedy(best, 0.3), seed=0, episodes=300)
    target, two = mdps.epsilon_greedy(best, 0.25), Features((walk.start > 0).astype(float)[:, None])
    wrong, _ = gather(logs, target, None, walk.gamma, model=two)
    assert chosen_trace(wrong, (1.0, 0.5, 0.0)) == ot.RBIS(lam=1.0)


def test_policies_are_ranked_with_intervals_of_their_differences() -> None:
    """The differences are paired: far narrower than two intervals side by side."""
    mdp, mu, _, _ = settings.near()
    rng = np.random.default_rng(5)
    targets = {f"p{i}": mdps.random_policy(mdp, rng, 20.0) for i in range(4)}
    logs = simulate(mdp, mu, seed=0, episodes=500)
    found = compare(logs, targets, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma, resamples=200)
    values = [row.estimate for row in found.rows.values()]
    assert values == sorted(values, reverse=True)
    for d, (a, b) in zip(found.differences, pairwise(found.rows.values()), strict=True):
        assert d.estimate == pytest.approx(a.estimate - b.estimate)
        assert d.low < d.estimate < d.high
        assert d.high - d.low < (a.high - a.low) + (b.high - b.low)
    alone = evaluate(logs, targets["p0"], trace=ot.RBIS(lam=0.9), gamma=mdp.gamma, resamples=200)
    assert found.results["p0"][found.estimator].low == pytest.approx(alone[found.estimator].low)
    with pytest.raises(ValueError, match="targets is empty"):
        compare(logs, {}, trace=ot.RBIS(), gamma=0.9)


def test_a_difference_is_not_clear_where_a_policy_takes_what_was_never_logged() -> None:
    """One state, one step: action 2 was never logged, so that its worth may be anywhere in the range of rewards."""
    mdp = mdps.MDP(P=np.tile([0.0, 1.0], (2, 3, 1)), R=[[0.0, 1.0, -5.0], [0.0] * 3], gamma=0.9, start=[1.0, 0.0])
    logs = simulate(mdp, np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), seed=0, episodes=200)
    new, old = np.array([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]), np.array([[0.7, 0.3, 0.0], [1.0, 0.0, 0.0]])
    found = compare(logs, {"new": new, "old": old}, trace=ot.RBIS(), gamma=0.9, rewards=(-5.0, 1.0), resamples=200)
    (d,) = found.differences
    assert list(found.results) == ["old", "new"]  # what fails a check comes last
    assert not d.clear
    assert np.isnan([d.low, d.high]).all()
    assert "support" in [check.kind for check in found.rows["new"].failed]
