"""The cases whose truth is known: that it is the truth, what is counted, and `offtrace logs evidence`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from offtrace import cli, mdps
from offtrace.logs.cases import acrobot, finite, tables
from offtrace.logs.cases.listed import cases
from offtrace.logs.cases.measuring import Measured, Plan, Score, measure
from offtrace.mdps import MDP


def test_acrobot_moves_as_gymnasiums_does():
    gym = pytest.importorskip("gymnasium")
    env = gym.make("Acrobot-v1").unwrapped
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(200):
        before, action = np.array(env.state), int(rng.integers(3))
        env.step(action)
        np.testing.assert_allclose(acrobot.step(before, action - 1.0), env.state, atol=1e-8)


def test_logs_of_acrobot_are_what_its_value_is_the_mean_of():
    logs = acrobot.logged(0.3, episodes=400, limit=2000, seed=1)
    assert not logs.truncated.any()
    lengths = np.diff(logs.starts)
    assert (logs.reward[logs.starts[1:] - 1] == 0).all()
    assert logs.reward.sum() == 400 - lengths.sum()
    assert (np.asarray(logs.next_state)[:-1][~logs.terminated[:-1]] == logs.state[1:][~logs.terminated[:-1]]).all()
    pushes = np.mean(logs.action == np.where(logs.state[:, 5] >= 0, 2, 0))
    assert abs(pushes - 0.8) < 0.01  # 1 − ε + ε/3
    returns = -(1 - 0.98 ** (lengths - 1)) / 0.02
    truth, error = acrobot.value(0.3, 0.98, 4000, seed=2)
    assert abs(returns.mean() - truth) < 4 * np.hypot(error, returns.std() / 20)


def test_a_cut_episode_of_acrobot_is_truncated():
    logs = acrobot.logged(1.0, episodes=3, limit=10, seed=0)
    assert logs.truncated.sum() == 3
    assert len(logs) == 30
    assert (logs.reward == -1).all()


def test_the_windy_walk_is_one_walk_for_each_wind():
    n, values = finite.WALK, []
    for wind in (0, 1):  # the same walk with the wind in its transitions, and no wind in its states
        P, R = np.zeros((n + 1, 2, n + 1)), np.zeros((n + 1, 2))
        for place in range(n):
            for action in (0, 1):
                right = (1 - finite.WIND) * action + finite.WIND * wind
                P[place, action, place + 1 if place + 1 < n else n] += right
                P[place, action, place - 1 if place else n] += 1 - right
                R[place, action] = right * (place == n - 1)
        walk = MDP(P, R, 0.95, np.eye(n + 1)[n // 2], np.arange(n + 1) == n)
        pi = np.tile([0.35, 0.65], (n + 1, 1))
        values.append((walk.start @ (pi * walk.q(pi)).sum(axis=1)).item())
    known = cases()
    assert known["hidden"].truth() == known["shown"].truth()
    assert known["hidden"].truth()[0] == pytest.approx(np.mean(values), rel=1e-12)


def test_what_is_hidden_is_not_in_the_logs():
    known = cases()
    hidden, shown = (known[name].logs(3) for name in ("hidden", "shown"))
    assert shown.states == 2 * finite.WALK + 1
    assert (hidden.state == shown.state % finite.WALK).all()
    coarse, aliased, cells = (known[name].logs(3) for name in ("coarse", "aliased", "cells"))
    first = cells.state[0]
    assert ((coarse.state == coarse.state[0]) == (cells.state == first)).all()  # only the start is a state by itself
    assert np.count_nonzero(aliased.state == aliased.state[0]) > np.count_nonzero(cells.state == first)
    assert (coarse.action == cells.action).all()
    assert len(set(aliased.state)) == 4


def test_blocks_are_squares_of_cells():
    grid = mdps.bifurcation(4)
    assert grid.state_names is not None
    found = finite.blocks(grid, 2, start_apart=False)
    of = dict(zip(grid.state_names, found, strict=True))
    assert of[0, 0] == of[1, 1] != of[0, 2]
    assert np.count_nonzero(found == of["end"]) == 1


def score(errors: tuple[float, ...] = (0.1, -0.3, 0.2), **more: object) -> Score:
    return replace(Score("direct method", "", None, errors, 2, 3, 0.5, 1), **more)  # pyright: ignore[reportArgumentType]


def test_scores_count_what_they_say():
    found = score()
    assert found.bias == pytest.approx(0.0, abs=1e-12)
    assert found.rmse == pytest.approx(np.sqrt(0.14 / 3))
    share, low, high = found.coverage
    exact = stats.binomtest(2, 3)  # pyright: ignore[reportAttributeAccessIssue]
    exact = exact.proportion_ci(method="exact")
    assert (share, low, high) == pytest.approx((2 / 3, exact.low, exact.high))
    assert score(held=0).coverage[1] == 0.0
    assert score(held=3).coverage[2] == 1.0
    assert tables.coverage(score(held=0, given=0)) == "no interval"
    assert tables.coverage(score(held=2, given=2)).endswith("of 2")
    draws = np.random.default_rng(0).normal(size=(2000, 50))  # the error of an RMSE is its spread
    spread = np.sqrt((draws**2).mean(axis=1)).std()
    assert np.mean([score(tuple(row)).rmse_error for row in draws]) == pytest.approx(spread, rel=0.05)


def test_the_best_has_an_estimate_in_every_repetition():
    scores = score(), score((0.01,), title="lucky"), score((0.1, 0.1, 0.1), title="better")
    found = Measured(cases()["shown"], 1.0, 0.0, 0.5, 10.0, 5.0, 3, scores)
    assert found.best().title == "better"
    assert found.verdict(scores[2]) == "makes no clear difference"
    assert found.verdict(score((1.0, 1.1, 0.9))) == "hurts"
    assert found.verdict(score((0.09, 0.29, 0.19))) == "helps"
    text = tables.markdown([found])
    assert "| better | **0.1 ± 0** |" in text
    assert "| lucky | 0.01 ± 0 |" in text  # it has the smallest RMSE, of one repetition
    assert text.count("| direct method |") == 3


def test_a_case_that_is_not_there():
    with pytest.raises(ValueError, match="did you mean 'hidden'"):
        measure(["hiden"])
    with pytest.raises(ValueError, match="2 at least"):
        measure(["hidden"], repetitions=1)


def test_evidence_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "evidence.html"
    given = [
        "logs",
        "evidence",
        "--case",
        "shown",
        "--repetitions",
        "2",
        "--workers",
        "1",
        "--json",
        "--page",
        str(page),
    ]
    assert cli.main(given) == 0
    (found,) = json.loads(capsys.readouterr().out)
    plan = Plan.declared()
    titles = [each["estimator"] for each in found["scores"]]
    assert titles[0] == "direct method"
    assert titles[-1] == "headline"
    assert "fitted, RBIS, λ chosen" in titles
    assert sum(bool(each["rule"]) for each in found["scores"]) == len(plan.traces) * len(plan.lams)
    assert all(abs(each["bias"]) < 0.5 and each["held"] <= each["given"] <= 2 for each in found["scores"])
    text = page.read_text()
    assert "When do traces help" in text
    assert 'data-figure="evidence"' in text
    assert "https://" not in text
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert [len(line["x"]) for line in data["evidence"][0]["rmse"]][:4] == [1 + len(plan.lams)] * 4
    assert cli.main(["logs", "evidence", "--case", "nowhere"]) == 2
