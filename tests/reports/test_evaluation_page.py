"""The page of an evaluation from logs, and its table in notebooks: the numbers are the result's, a browser has no complaint."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from logs import settings
from offtrace import cli, mdps, reports
from offtrace.logs import Problem, ReadReport, Result, evaluate, simulate
from offtrace.logs.checks import Check
from offtrace.logs.description import describe
from offtrace.reports.logs import evaluation_page, figures

EVIL = "</script><img src=x onerror=alert(1)>"


def good() -> Result:
    """Near policies, but one action that the logs lack."""
    mdp, rng = mdps.garnet(6, 3, 2, seed=3, gamma=0.9, terminal=1), np.random.default_rng(0)
    mu, pi = (mdps.random_policy(mdp, rng, 5.0) for _ in range(2))
    mu[2] = [0.0, 0.5, 0.5]
    logs = simulate(mdp, mu, seed=rng, episodes=300, limit=8)
    problem = Problem("reward is missing", 2, 1, (EVIL,))
    logs = replace(
        logs, state_names=(*"ab", EVIL, *"def"), report=ReadReport("march.parquet", 9, 301, True, (problem,), 1, 3)
    )
    return evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=0.9)


def far() -> Result:
    """Weights of 10⁻⁴ and of 0, an interval that is open, an estimate that overflows."""
    mdp = mdps.random_walk(7, gamma=0.99)
    mu, pi = np.tile([0.9, 0.1], (8, 1)), np.tile([0.1, 0.9], (8, 1))
    pi[4] = [0.0, 1.0]
    logs = simulate(mdp, mu, seed=np.random.default_rng(0), episodes=100)
    result = evaluate(logs, pi, trace=ot.ImportanceSampling(), gamma=mdp.gamma)
    fitted, direct, third, *others = result.estimates
    nan = float("nan")
    third = replace(third, estimate=float("inf"), standard_error=nan, low=nan, high=nan, effective=nan, largest=nan)
    return replace(result, estimates=(fitted, replace(direct, low=-float("inf")), third, *others))


def without_mu() -> Result:
    logs, pi, mdp = settings.some_logs(episodes=300)
    return evaluate(replace(logs, log_mu=None), pi, trace=ot.TreeBackup(), gamma=mdp.gamma, behavior=False)


def of_features() -> Result:
    """μ estimated, an action that never occurs, one step an episode."""
    rng, n = np.random.default_rng(0), 60
    logs, _, _ = settings.some_logs(episodes=n, limit=1)
    x = rng.normal(size=(n, 2))
    logs = replace(logs, state=x, next_state=x, states=0, actions=4)
    given = {"behavior": lambda x: np.full((len(x), 4), 0.25), "model": "linear"}
    return evaluate(logs, lambda x: np.full((len(x), 4), 0.25), trace=ot.Retrace(), gamma=0.9, **given)


MAKERS = {"good": good, "far": far, "without_mu": without_mu, "of_features": of_features}


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {name: maker() for name, maker in MAKERS.items()}


@pytest.fixture(scope="module")
def files(results: dict[str, Result], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {name: reports.evaluation_page(result, folder / f"{name}.html") for name, result in results.items()}


def data(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_numbers_are_those_of_the_result(results: dict[str, Result], files: dict[str, Path]) -> None:
    for name, result in results.items():
        text = files[name].read_text(encoding="utf-8")
        rows = data(text)["estimates"]["rows"]
        for row, shown in zip(result.estimates, rows, strict=True):
            given = [row.estimate if np.isfinite(row.estimate) else None, *np.clip([row.low, row.high], -1e300, 1e300)]
            for key, value in zip(("value", "low", "high"), given, strict=True):
                assert shown[key] == (None if value is None or np.isnan(value) else pytest.approx(value, rel=1e-4))
            cells = re.search(rf'<tr><th scope="row" class="t" data-v="{re.escape(row.title)}".*?</tr>', text)
            assert cells
            wanted = [str(x) if x == x else "" for x in (min(row.estimate, 1e300), row.standard_error)]
            assert re.findall(r'data-v="([^"]*)"', cells[0])[1:3] == wanted
        if result.conservative:
            assert result.conservative.assumes in text
        assert rows[0]["method"] == result.estimates[0].title
        for warning in result.warnings:
            assert warning[1:] in html.unescape(text)
        assert "trace=" in text
        assert ot.__version__ in text


def test_what_was_read_where_the_target_leaves_it_and_no_name_breaks_the_page(
    results: dict[str, Result], files: dict[str, Path]
) -> None:
    text = files["good"].read_text(encoding="utf-8")
    assert "1 episode, 3 rows" in text
    assert "reward is missing" in text
    assert EVIL not in text
    assert not re.findall(r'(?:src|href)\s*=\s*"(?!#)|@import|url\((?!#)|fetch\(', text)
    result = results["good"]
    target = describe(result.logs, result.policy).target
    assert target is not None
    assert target.first_unseen[0] == f"({EVIL!r}, 0)"
    assert target.first_unseen[0] in html.unescape(text)
    assert "0% of what the target policy does" in html.unescape(files["without_mu"].read_text(encoding="utf-8"))
    assert "Not known, since μ is not" in files["without_mu"].read_text(encoding="utf-8")
    assert results["of_features"].diagnosis.outside == 0.25


def test_only_intervals_contradict(results: dict[str, Result]) -> None:
    """An estimate of 0 whose interval is a point, for want of any weight, contradicts nothing."""
    value = results["good"].value
    ends = {"checks": (), "estimate": value, "low": value - 0.1, "high": value + 0.1}
    first, second, third = (replace(row, **ends) for row in results["good"].estimates[:3])
    nowhere = replace(third, estimate=9.0, low=9.0, high=9.0, standard_error=0.0)
    text = evaluation_page.html(replace(results["good"], estimates=(first, second, nowhere)))
    assert "The intervals of the other estimators that pass their checks (1 of 2) overlap that of the first." in text
    far = replace(nowhere, low=8.0, high=10.0, standard_error=0.5)
    assert "not what all estimators say" in evaluation_page.html(
        replace(results["good"], estimates=(first, second, far))
    )


def test_another_headline_than_promised_is_the_first_sentence(results: dict[str, Result]) -> None:
    first, second, *others = (replace(row, checks=()) for row in results["good"].estimates)
    failed = replace(first, checks=(Check("contradicted", 1.0, "weights differ", True),))
    result = replace(results["good"], estimates=(failed, second, *others))
    answer = evaluation_page.answer(result)
    assert (
        answer[0]
        == f"**The estimate is by {result.headline.title}, not by {first.title}**, which fails its checks: weights differ."
    )
    assert answer[1].startswith("The new policy would earn about")
    assert f"<b>The estimate is by {result.headline.title}, not by {first.title}</b>" in evaluation_page.html(result)
    assert not evaluation_page.answer(results["good"])[0].startswith("**The estimate is by")


def test_bins_hold_every_episode_and_all_weight() -> None:
    weight = np.array([0.0, 1e-3, 2e-3, 1.0, 5.0, 5.0])
    with np.errstate(divide="ignore"):
        found = figures.bins(np.log(weight), weight / weight.sum())
    assert found["zero"] == pytest.approx(1 / 6)
    assert sum(found["episodes"]) + found["zero"] == pytest.approx(1)
    assert sum(found["weight"]) == pytest.approx(1)
    i = int((np.log10(5) - found["first"]) / found["width"])
    assert (found["episodes"][i], found["weight"][i]) == pytest.approx((2 / 6, 10 / weight.sum()))
    far = figures.bins(np.array([-3000.0, 900.0]), np.array([0.0, 1.0]))  # no floats, but weights
    assert (sum(far["episodes"]), len(far["episodes"]) < 60) == (1.0, True)


def test_weights_that_are_no_floats_are_still_weighed(results: dict[str, Result]) -> None:
    d = results["good"].diagnosis
    tiny = replace(d, log_weights=np.array([-3000.0, -3000 - np.log(2)]))
    assert (tiny.effective, tiny.largest) == pytest.approx((1.8, 2 / 3))
    none = replace(d, log_weights=np.full(3, -np.inf))
    assert none.effective == 0
    text = evaluation_page.html(replace(results["good"], diagnosis=none))
    assert "nan" not in re.sub("<script>.*?</script>", "", text, flags=re.DOTALL)


def test_notebooks_show_the_text(results: dict[str, Result]) -> None:
    for result in results.values():
        assert result._repr_html_() == f"<pre>{html.escape(repr(result))}</pre>"


def test_the_axis_shows_most_estimates_where_only_one_has_an_interval(results: dict[str, Result]) -> None:
    low, high = evaluation_span(results["far"])
    values = [row.estimate for row in results["far"].estimates if np.isfinite(row.estimate)]
    assert all(low < value < high for value in values)


def test_a_warning_that_the_answer_says_is_said_once(results: dict[str, Result]) -> None:
    head = evaluation_page.html(results["good"]).partition('<dl class="facts">')[0]
    assert head.count("the rest is a biased sample") == 1


def evaluation_span(result: Result) -> tuple[float, float]:
    low, high = data(evaluation_page.html(result))["estimates"]["domain"]
    return low, high


def test_the_command_line_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pl = pytest.importorskip("polars")
    logs, pi, _ = settings.some_logs(episodes=50)
    episode = np.repeat(np.arange(50), np.diff(logs.starts))
    step = np.arange(len(logs)) - logs.starts[episode]
    names = ("state", "next_state", "action", "reward", "terminated", "truncated", "log_mu")
    pl.DataFrame({"episode": episode, "step": step} | {n: getattr(logs, n) for n in names}).write_parquet(
        tmp_path / "l.parquet"
    )
    np.savez(tmp_path / "pi.npz", probabilities=pi)
    page = tmp_path / "out" / "page.html"
    given = ["--policy", str(tmp_path / "pi.npz"), "--gamma", "0.9", "--lam", "0.7", "--page", str(page)]
    status = cli.main(
        ["logs", "evaluate", str(tmp_path / "l.parquet"), *given, "--columns", "log_mu=log_mu", "next_state=next_state"]
    )
    said = capsys.readouterr()
    assert status == 0, said.err
    assert f"The page: {page}" in said.out
    text = page.read_text(encoding="utf-8")
    assert "--lam 0.7 --page" in text
    assert "RBIS(horizon=None, lam=0.7)" in text


def test_only_results_have_such_a_page(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"evaluate or compare returned, and dict was given"):
        reports.evaluation_page({}, tmp_path / "page.html")


FIGURES = {"good": 4, "far": 4, "without_mu": 1, "of_features": 3}


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
@pytest.mark.parametrize("name", MAKERS)
def test_a_browser_draws_it_without_a_complaint(
    open_file: Any, files: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    page = open_file(files[name], width=width, scheme=scheme)
    plots = page.locator("[data-figure] .plot").all()
    assert len(plots) == FIGURES[name]
    for plot in plots:
        assert plot.locator("svg .mark, svg .cell").count() > 0
        svg = plot.locator("svg")
        svg.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert page.locator("#tip").is_visible()
        assert re.search(r"\d", page.locator("#tip").inner_text())
        page.keyboard.press("Escape")
    head = page.locator("table.data thead button").nth(1)
    head.click()
    values = (
        page.locator("table.data").first.locator("tbody td:nth-child(2)").evaluate_all("c => c.map(x => +x.dataset.v)")
    )
    assert values == sorted(values)
    for details in page.locator("details").all():
        details.evaluate("d => { d.open = true }")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not re.search("NaN|undefined|Infinity", page.locator("main").inner_html())
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 26)"
    assert dark == (scheme == "dark")
    assert page.said == []
    assert [url for url in page.asked if not url.startswith("file:")] == []
