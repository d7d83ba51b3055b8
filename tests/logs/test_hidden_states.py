"""States that hide something: the test of the Markov property, and what an evaluation says where it fails."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import offtrace as ot
from logs import by_history, linear_systems, settings
from offtrace import mdps
from offtrace.logs import Logs, compare, evaluate, simulate
from offtrace.logs.choosing import chosen_trace
from offtrace.logs.diagnosis import contradictions
from offtrace.logs.evidence import gather
from offtrace.logs.markov_test import PAST, hidden_states
from offtrace.logs.result import Row

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
CASES = import_module("evidence.cases").cases()
sys.path.pop(0)  # benchmarks/studies.py would hide tests/studies


@pytest.mark.parametrize("name", ["hidden", "shown", "garnet"])
def test_the_test_is_its_definition(name: str) -> None:
    case = CASES[name]
    logs = first_episodes(case.logs(3), 25)
    found = hidden_states(logs, case.gamma)
    assert found is not None
    assert found.chance == pytest.approx(by_history.chance(logs, case.gamma), rel=1e-6)


def first_episodes(logs: Logs, n: int) -> Logs:
    stop = int(logs.starts[n])
    arrays = {
        name: getattr(logs, name)[:stop]
        for name in ("state", "next_state", "action", "reward", "terminated", "truncated", "log_mu")
    }
    return replace(logs, starts=logs.starts[: n + 1], **arrays)


def test_where_states_are_markov_it_fails_as_often_as_it_may() -> None:
    """The chances are uniform, up to the binomial error of 120 logs; whatever policy acts, one with a memory too."""
    mdp, mu, _, _ = settings.near()
    for make in (lambda seed: simulate(mdp, mu, seed=seed, episodes=60), with_a_memory):
        found = [hidden_states(make(seed), 0.9) for seed in range(120)]
        chances = np.array([each.chance for each in found if each is not None])
        for level in (0.02, 0.1, 0.5):
            assert np.count_nonzero(chances < level) <= stats.binom.ppf(0.999, 120, level)


def with_a_memory(seed: int) -> Logs:
    """A walk of five places by a policy that mostly repeats its last action: the places are Markov all the same."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(60):
        place, last, over = 2, 1, False
        while not over:
            action = last if rng.random() < 0.8 else int(rng.integers(2))
            after = place + (1 if (rng.random() < 0.8) == (action == 1) else -1)
            over = not 0 <= after < 5
            rows.append((place, action, float(after == 5), min(max(after, 0), 4), over))
            place, last = after, action
    state, action, reward, following, over = (np.array(column) for column in zip(*rows, strict=True))
    starts = np.append(0, np.flatnonzero(over) + 1)
    return Logs(
        starts=starts, state=state, next_state=following, action=action, reward=reward, terminated=over,
        truncated=np.zeros(len(over), bool), log_mu=np.log(np.full(len(over), 0.5)), states=5, actions=2,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["aliased", "hidden"])
def test_a_table_of_states_that_hide_something_is_not_the_headline(name: str) -> None:
    """Fits say so and have no interval; weights are named, and λ is not chosen by intervals that do not know."""
    case = CASES[name]
    logs = case.logs(5)
    result = evaluate(logs, case.target, trace=ot.RBIS(lam=0.95), gamma=case.gamma, resamples=200)
    for estimator in ("fitted", "direct method"):
        row = result[estimator]
        assert "hidden" in [check.kind for check in row.failed]
        assert np.isnan(row.low)
    assert result.headline.estimator in ("doubly robust", "weighted doubly robust")
    assert not result.headline.failed
    assert result.headline.low < case.truth()[0] < result.headline.high
    told = next(check.words for check in result["fitted"].failed if check.kind == "hidden")
    assert any(part in told for part in PAST)
    assert f"by weights alone, {result.headline.title} finds" in told
    evidence, _ = gather(logs, case.target, None, case.gamma)
    rows = {
        λ: evaluate(logs, case.target, trace=ot.RBIS(lam=λ), gamma=case.gamma, estimators="fitted").headline
        for λ in (1.0, 0.8, 0.0)
    }
    sound = [λ for λ, row in rows.items() if not result.observed.missed_by(row.of_behavior)]
    nearest = min(sound, key=lambda λ: abs(rows[λ].estimate - result["weighted doubly robust"].estimate))
    assert chosen_trace(evidence, list(rows)) == ot.RBIS(lam=nearest)


def test_without_weights_the_largest_lambda_is_taken() -> None:
    case = CASES["hidden"]
    evidence, _ = gather(case.logs(5), case.target, None, case.gamma, initial=np.array([5]))
    assert chosen_trace(evidence, (1.0, 0.0)) == ot.RBIS(lam=1.0)


def test_nothing_to_look_at() -> None:
    """Data without chance fail nothing; features and real actions are not tested."""
    walk = mdps.bifurcation(1)
    sure = hidden_states(simulate(walk, mdps.uniform(walk), seed=0, episodes=20), 0.9)
    assert sure is not None
    assert sure.chance > 0.02
    assert hidden_states(linear_systems.logs(20, 3, 0.5), 0.9) is None
    once = first_episodes(CASES["shown"].logs(0), 2)
    assert hidden_states(replace(once, reward=0 * once.reward), 0.9).chance == 1.0  # pyright: ignore


def test_a_fit_that_weights_contradict_says_by_how_much() -> None:
    """By pairs: the same noise in both, which their intervals do not know to be the same; what widens a fit is allowed for."""
    rng = np.random.default_rng(0)
    noise, other = rng.normal(size=100), 0.1 * rng.normal(size=100)
    contributions = {"fitted": noise + 1.1, "weighted doubly robust": noise + other - other.mean() + 1.0}

    def row(name: str, estimate: float, half: float) -> Row:
        return Row(name, name, estimate, 0.1, estimate - half, estimate + half, 60.0, 0.1)

    weights = row("weighted doubly robust", 1.0, 0.2)
    fitted, _ = contradictions([row("fitted", 1.1, 0.2), weights], contributions)
    (check,) = fitted.failed
    assert check.kind == "contradicted"
    assert "weighted doubly robust finds 1.00 [0.80, 1.20], which differs by 0.1000 (± 0.01" in check.words
    assert not contradictions([row("fitted", 1.1, 0.3), weights], contributions)[0].failed
    assert not contradictions([row("fitted", 1.02, 0.2), weights], contributions)[0].failed
    assert not contradictions([row("fitted", 1.1, 0.2), replace(weights, low=float("nan"))], contributions)[0].failed


def test_a_long_tail_of_weights_excuses_a_difference() -> None:
    """Where a few more episodes as heavy as the heaviest would bring fit and weights together, they differ by chance."""
    E = 400
    flat = np.tile([-0.1, 0.1], E // 2)
    tail = flat - 2.0 / (E - 1)
    tail[0] = -tail[1:].sum()  # one episode far above
    for its, sign, failed in (
        (flat, 1, True),
        (flat, -1, True),
        (tail, 1, False),
        (-tail, -1, False),
        (tail, -1, True),
    ):
        its = its - its.mean()
        error = its.std() / np.sqrt(E)
        fit = 1.0 + sign * 3.5 * error
        contributions = {"fitted": np.full(E, fit), "per-decision IS": its + 1.0}
        rows = [
            Row(name, name, value, error, value - 2 * error, value + 2 * error, 60.0, 0.1)
            for name, value in (("fitted", fit), ("per-decision IS", 1.0))
        ]
        assert bool(contradictions(rows, contributions)[0].failed) == failed


def test_the_headline_of_the_tutorial_does_not_leave_a_fit_that_is_right() -> None:
    """Weights are worth 121 of 5,000 episodes there, and find 0.644 [0.577, 0.732], where 0.768 is right."""
    P = np.zeros((4, 3, 4))
    P[0] = [[0.80, 0.10, 0.00, 0.10], [0.55, 0.35, 0.00, 0.10], [0.30, 0.20, 0.00, 0.50]]
    P[1] = [[0.30, 0.50, 0.10, 0.10], [0.15, 0.50, 0.25, 0.10], [0.05, 0.35, 0.50, 0.10]]
    P[2] = [[0.00, 0.30, 0.30, 0.40], [0.00, 0.25, 0.25, 0.50], [0.00, 0.10, 0.10, 0.80]]
    P[3, :, 3] = 1.0
    reward = np.tile([0.0, -0.05, -0.30], (4, 1))
    reward[2] += 3.0 * P[2, :, 3]
    reward[3] = 0.0
    shop = mdps.MDP(P, reward, gamma=0.95, start=[0.7, 0.3, 0.0, 0.0])
    mu = np.array([[0.5, 0.5, 0.0], [0.3, 0.5, 0.2], [0.3, 0.4, 0.3], [1.0, 0.0, 0.0]])
    mail = np.array([[0.1, 0.9, 0.0], [0.1, 0.8, 0.1], [0.2, 0.6, 0.2], [1.0, 0.0, 0.0]])
    truth = shop.start @ (mail * shop.q(mail)).sum(axis=1)
    for episodes, seed in ((5000, 1), (5000, 4), (800, 3)):
        logs = simulate(shop, mu, episodes=episodes, seed=seed)
        names = ["fitted", "direct method", "per-decision IS"]
        result = evaluate(logs, mail, trace=ot.RBIS(lam=0.9), gamma=0.95, estimators=names)
        assert result.headline.estimator == "fitted"
        assert not result.instead
        assert result.headline.low < truth < result.headline.high


def test_another_estimator_than_promised_is_said_first_and_in_bold() -> None:
    case = CASES["aliased"]
    logs = case.logs(3)
    result = evaluate(logs, case.target, trace=ot.RBIS(lam=0.9), gamma=case.gamma, resamples=100)
    assert result.headline.estimator != "fitted"
    first = f"**The estimate is by {result.headline.title}, not by fitted, RBIS, λ = 0.9**, which fails its checks: "
    assert repr(result).split("\n")[1].startswith(first + result["fitted"].failed[0].words)
    assert result.as_json()["instead"] == result.instead
    found = compare(logs, {"a": case.target, "b": case.target}, trace=ot.RBIS(lam=0.9), gamma=case.gamma, resamples=100)
    assert repr(found).startswith(
        f"**The estimate is by {found.rows['a'].title}, not by fitted, RBIS, λ = 0.9**, which fails its checks: of a, "
    )
    alone = evaluate(logs, case.target, trace=ot.RBIS(lam=0.9), gamma=case.gamma, resamples=100, estimators=["IS"])
    assert not alone.instead  # nothing else was promised
