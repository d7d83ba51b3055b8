"""Segments, clusters, other discounts and the overlap of actions: what an analyst asks beside the one number."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from offtrace import cli, reports
from offtrace.logs import Columns, Logs, compare, evaluate, read
from offtrace.logs.container import take

COLUMNS = Columns(mu="mu", keep=("user", "region"))
TARGET = np.array([[0.2, 0.8], [0.7, 0.3]])


def rows(episodes: int = 240) -> list[dict[str, Any]]:
    """Users come four times each; the reward of action 1 depends on the region."""
    rng = np.random.default_rng(1)
    worth = {"north": 1.0, "south": -1.0}
    steps: list[dict[str, Any]] = []
    for e in range(episodes):
        user = e // 4
        region = "north" if user % 2 else "south"
        for t in range(3):
            action = int(rng.integers(2))
            reward = action * worth[region] + 0.1 * float(rng.normal()) + 0.5 * np.sin(user)
            steps.append(
                {
                    "episode": e, "step": t, "state": int(rng.integers(2)), "action": action, "reward": reward, "mu": 0.5,
                    "terminated": t == 2, "user": f"u{user}", "region": region,
                }
            )  # fmt: skip
    return steps


@pytest.fixture(scope="module")
def logs() -> Logs:
    return read(rows(), columns=COLUMNS, truncated="never")


def test_each_segment_is_evaluated_from_its_own_episodes(logs: Logs) -> None:
    result = evaluate(logs, TARGET, gamma=1.0, by="region")
    for name, sign in (("north", 1), ("south", -1)):
        part = result.segments[name]
        assert not isinstance(part, str)
        alone = evaluate(take(logs, np.flatnonzero(logs.kept["region"] == name)), TARGET, gamma=1.0)
        assert (part.value, part.headline.low) == (alone.value, alone.headline.low)
        assert part.value == pytest.approx(3 * 0.55 * sign, abs=0.5)
    by_array = evaluate(logs, TARGET, gamma=1.0, by=logs.kept["region"])
    assert repr(by_array.parts()) == repr(result.parts())
    assert "each segment from its own episodes\n    north " in repr(result)


def test_a_segment_of_which_nothing_can_be_said_says_why(logs: Logs) -> None:
    without = np.array([1 not in logs.action[a : a + 3] for a in logs.starts[:-1]])  # of action 1
    always = np.tile([0.0, 1.0], (2, 1))
    result = evaluate(logs, always, gamma=1.0, by=np.where(without, "never", "others"))
    assert "takes none of the" in str(result.segments["never"])
    assert "never   the target policy takes none of the" in repr(result)
    single = evaluate(logs, TARGET, gamma=1.0, by=np.arange(logs.episodes) == 0)
    assert "only 1 episode" in str(single.segments["True"])


def test_clusters_widen_intervals_and_are_named(logs: Logs) -> None:
    alone, together = (evaluate(logs, TARGET, gamma=1.0, cluster=cluster) for cluster in (None, "user"))
    assert together.value == alone.value
    assert together.headline.high - together.headline.low > 1.3 * (alone.headline.high - alone.headline.low)
    widths = [each.observed.high - each.observed.low for each in (together, alone)]
    assert widths[0] > 1.3 * widths[1]  # that of V(μ) too
    assert "effective clusters of 60 support this" in together.plain()
    assert "effective episodes of 240 support this" in alone.plain()
    with pytest.raises(ValueError, match=r"no such column \(did you mean 'user'\?\).*Columns\(keep='usr'\)"):
        evaluate(logs, TARGET, gamma=1.0, cluster="usr")
    with pytest.raises(ValueError, match="one entry for each of the 240 episodes"):
        evaluate(logs, TARGET, gamma=1.0, by=[1, 2])
    with pytest.raises(ValueError, match="at most 50 are shown"):
        evaluate(logs, TARGET, gamma=1.0, by="user")


def test_other_discounts_are_evaluations_of_their_own(logs: Logs) -> None:
    result = evaluate(logs, TARGET, gamma=0.9, gammas=(1.0, 0.5))
    assert list(result.gammas) == [0.5, 1.0]
    assert result.gammas[0.5].value == evaluate(logs, TARGET, gamma=0.5).value
    assert "γ = 0.5" in repr(result)


def test_overlap_counts_steps_action_by_action(logs: Logs) -> None:
    overlap = evaluate(logs, TARGET, gamma=0.9).diagnosis.overlap
    assert [each.steps for each in overlap] == np.bincount(logs.action).tolist()
    assert sum(each.target for each in overlap) == pytest.approx(1)
    assert overlap[1].target == pytest.approx(TARGET[logs.state, 1].mean())
    ratio = TARGET[logs.state, logs.action] / 0.5
    wanted = [ratio[logs.action == a].sum() ** 2 / (ratio[logs.action == a] ** 2).sum() for a in (0, 1)]
    np.testing.assert_allclose([each.effective for each in overlap], wanted)


def test_the_page_and_the_command_show_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pl.DataFrame(rows()).write_csv("visits.csv")
    np.savez("pi.npz", probabilities=TARGET)
    np.savez("other.npz", probabilities=TARGET[:, ::-1])
    given = ["logs", "evaluate", "visits.csv", "--columns", "mu=mu", "--truncated", "never", "--gamma", "0.9"]
    more = [
        "--cluster",
        "user",
        "--by",
        "region",
        "--gammas",
        "0.5",
        "--page",
        "one.html",
        "--csv",
        "one.csv",
        "--json",
    ]
    assert cli.main([*given, "--policy", "pi.npz", *more]) == 0
    assert [part["part"] for part in json.loads(capsys.readouterr().out)["parts"]] == ["north", "south", "γ = 0.5"]
    page = Path("one.html").read_text(encoding="utf-8")
    for text in ("Segments and other discounts", "γ = 0.5", "Overlap, action by action", "effective clusters of 60"):
        assert text in page
    with Path("one.csv").open(encoding="utf-8") as file:
        assert [row["part"] for row in csv.DictReader(file) if row["part"]] == ["north", "south", "γ = 0.5"]
    assert cli.main([*given, "--policy", "pi.npz", "other.npz", "--page", "two.html"]) == 0
    page = Path("two.html").read_text(encoding="utf-8")
    assert "Which policy is worth most?" in page
    assert "V(π) ≈" in page


def test_a_page_of_several_policies_names_the_first(logs: Logs, tmp_path: Path) -> None:
    comparison = compare(logs, {"new & bold": TARGET, "old": np.full((2, 2), 0.5)}, gamma=1.0)
    page = reports.evaluation_page(comparison, tmp_path / "p.html").read_text(encoding="utf-8")
    first = next(iter(comparison.results))
    assert (
        f"<strong>{first.replace('&', '&amp;')}</strong> comes first" in page
        or f"<b>{first.replace('&', '&amp;')}</b>" in page
    )
    assert "new & bold would" not in page.split("<script")[0]
