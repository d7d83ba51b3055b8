"""The page as text: it is whole, it loads nothing, it claims no more than the numbers, and no name can break it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

import offtrace
from offtrace._shared import number_text
from offtrace.reports.explorer import explorer_page
from offtrace.reports.study import study_page, terminal_table, views, words
from reports import synthetic

MAKERS = {
    "control": lambda: synthetic.records(seeds=6),
    "evaluation": lambda: synthetic.records(seeds=6, better="lower", environments=("Random walk",)),
    "map": synthetic.map_records,
    "replay": lambda: synthetic.replay_records(seeds=6),
    "deep": synthetic.deep_records,
}
SHOWN = {
    "control": {"difference", "standing", "learning", "sweeps", "heat"},
    "evaluation": {"difference", "standing", "learning", "sweeps", "heat"},
    "map": {"tradeoff", "sweeps"},
    "replay": {"difference", "standing", "ages", "aged", "sweeps", "heat"},
    "deep": {"difference", "standing", "ages", "aged", "learning"},
}


def data(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


@pytest.mark.parametrize("task", MAKERS)
def test_each_task_has_its_figures(task: str) -> None:
    rows, curves, facts = MAKERS[task]()
    text = study_page.render(rows, curves, facts)
    assert set(re.findall(r'data-figure="(\w+)"', text)) == SHOWN[task]
    assert f"<h1>{facts['question']}</h1>" in text
    assert "offtrace 0.2.0" in text
    assert "1 min 13 s" in text
    assert "$" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)  # nothing was left to fill in
    assert study_page.render(rows, curves, facts) == text


def test_the_page_asks_for_nothing() -> None:
    text = study_page.render(*synthetic.records(seeds=3))
    assert not re.findall(r'(?:src|href)\s*=\s*"(?!#)|@import|url\((?!#)|fetch\(|XMLHttpRequest', text)
    assert set(re.findall(r"https?://[\w./-]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not a place
    assert "default-src 'none'" in text


def test_every_page_states_what_it_may_load_and_where_it_may_lead() -> None:
    """`base-uri` and `form-action` do not follow from `default-src`. All pages are made from these templates."""
    templates = [
        path.read_text(encoding="utf-8")
        for path in Path(offtrace.__file__).parent.rglob("*.html")
        if "<html" in path.read_text(encoding="utf-8")
    ]
    assert len(templates) == 2
    for text in (*templates, study_page.render(*synthetic.records(seeds=3)), explorer_page.html()):
        (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
        assert {"default-src 'none'", "base-uri 'none'", "form-action 'none'"} <= set(policy.split("; "))


def test_no_name_can_break_the_page() -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    rows, curves, facts = synthetic.records(seeds=3, environments=(evil,), traces=(evil + "&", "**b**"))
    facts |= {
        "question": evil,
        "name": evil,
        "metric": evil,
        "machine": evil,
        "versions": {evil: evil},
        "declaration": evil,
    }
    text = study_page.render(rows, curves, facts)
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert data(text)["methods"][1]["name"] == evil + "&"


def test_the_pages_numbers_are_those_of_the_statistics() -> None:
    rows, curves, facts = synthetic.records(seeds=6)
    shown = views.Views(rows, curves, facts)
    drawn = data(study_page.html(shown))
    panels = {name: chart["panels"] for name, chart in drawn["charts"].items()}
    assert [r["method"] for r in panels["standing"][0]["bars"]] == shown.summary.iqm["method"].to_list()
    sweep = next(line for line in panels["sweeps"][1]["lines"] if line["method"] == "RBIS")
    table = shown.summary.table.filter(environment="Bifurcation 2", method="RBIS")
    assert sweep["x"] == table["lam"].to_list()
    assert sweep["y"] == pytest.approx(table["mean"].to_list(), rel=1e-4)
    assert sweep["alpha"] == table["alpha"].to_list()
    curve = next(line for line in panels["learning"][1]["lines"] if line["method"] == "RBIS" and line["best"])
    assert [curve["lam"]] == table.filter("best_lam")["lam"].to_list()
    grid = next(grid for grid in panels["heat"][1]["lines"] if grid["method"] == "RBIS")
    tuning = shown.summary.configurations.filter(
        phase="tuning", environment="Bifurcation 2", method="RBIS", lam=0.5, alpha=0.3
    )
    assert grid["values"][1][1] == pytest.approx(tuning["mean"][0], rel=1e-4)
    assert [grid["alpha"][i] for i in grid["chosen"]] == table["alpha"].to_list()


def one(rows: pl.DataFrame, **only: Any) -> pl.DataFrame:
    return rows.filter(**only)


CASES = {
    "only tuning": lambda r, c: (one(r, phase="tuning"), c.clear()),
    "one seed": lambda r, c: (r.filter(pl.col("seed").is_in([0, 10_000])), c.clear()),
    "one trace": lambda r, c: (one(r, trace="RBIS"), one(c, trace="RBIS")),
    "one environment, one λ": lambda r, c: (one(r, environment="Bifurcation 1", lam=0.5), one(c, lam=0.5)),
    "one row": lambda r, c: (r.head(1), c.clear()),
    "failures": lambda r, c: (synthetic.with_failures(r), c),
    "all failed": lambda r, c: (r.with_columns(value=pl.lit(float("nan"))), c.with_columns(mean=pl.lit(float("nan")))),
    "no tuning": lambda r, c: (one(r, phase="test"), c),
    "no further columns": lambda r, c: (r.drop("age", "variance", "bias", "episodes"), c),
}


@pytest.mark.parametrize("case", CASES)
def test_half_a_study_has_a_page_too(case: str) -> None:
    rows, curves, facts = synthetic.records(seeds=4)
    rows, curves = CASES[case](rows, curves)
    text = study_page.render(rows, curves, facts)
    said = re.search(r'<div class="answer".*?</div>', text, re.DOTALL)
    assert said
    expected = {
        "only tuning": "test phase has not been run",
        "one seed": "nothing can be told apart",
        "failures": "failed",
        "no tuning": "no tuning phase",
    }
    assert expected.get(case, "seed") in said[0]
    data(text)


def test_the_answer_claims_only_what_the_intervals_allow() -> None:
    rows, curves, facts = synthetic.records(seeds=30)
    far = rows.with_columns(value=pl.col("value") + 1000 * (pl.col("trace") == "RBIS"))
    same = rows.with_columns(value=pl.col("seed") % 100 + 0.0)
    said = {name: words.answer(views.Views(r, curves, facts))[0] for name, r in {"far": far, "same": same}.items()}
    assert said["far"].startswith("**RBIS** has the highest")
    assert "in pairs of the same seed, it is ahead of each of the other 7" in said["far"]
    assert "do not tell the traces apart" in said["same"]


def test_the_page_opens_with_the_difference_from_a_baseline_in_words() -> None:
    """RBIS is 40 above Retrace in every pair up to λ = 0.5, and far behind it from 0.8 on."""
    rows, curves, facts = synthetic.records(seeds=8, traces=("Retrace", "RBIS", "Tree Backup"))
    rows = rows.with_columns(alpha=pl.lit(0.5)).unique(["phase", "environment", "trace", "lam", "seed"], keep="first")
    lead = 40.0 - 500.0 * (pl.col("lam") >= 0.8)
    noise = pl.col("seed") % 100 + 2.0 * (pl.col("seed") % 3) * (pl.col("trace") == "RBIS")
    values = 100.0 + noise + 10.0 * (pl.col("lam") == 0.5) + lead * (pl.col("trace") == "RBIS")
    shown = views.Views(rows.with_columns(value=values), curves.clear(), facts | {"metric": "auc"})
    said = words.finding(shown)
    assert "**RBIS** has the best mean AUC (the area under the learning curve" in said[0]
    assert "above Retrace, in pairs of the same seed." in said[0]
    of_mean = views.Views(rows.with_columns(value=values), curves.clear(), facts | {"metric": "mean return"})
    assert "**RBIS** has the best mean return over" in words.finding(of_mean)[0]
    assert "Not told apart from it: Tree Backup." in said[0]
    assert "RBIS is best at λ = 0.5, and collapses from **λ = 0.8** on" in said[1]
    page = study_page.html(shown)
    assert page.index('class="answer"') < page.index('data-figure="difference"') < page.index('class="facts"')
    bars = data(page)["charts"]["difference"]["panels"]
    assert [panel["name"] for panel in bars] == ["mean over all", *shown.summary.environments]
    paired = [40.0 + 2.0 * ((10_000 + j) % 3) for j in range(8)]
    ends = stats.ttest_1samp(paired, 0.0).confidence_interval(0.95)
    first = bars[1]["bars"][0]
    assert (first["value"], first["low"], first["high"]) == pytest.approx((np.mean(paired), *ends), rel=1e-4)


def test_step_sizes_on_the_edge_of_the_grid_are_a_warning() -> None:
    inside = views.Views(*synthetic.records(seeds=4, alphas=(0.1, 0.3, 0.5, 0.7, 0.9, 1.1)))
    assert words.concerns(inside) == []
    edges = views.Views(*synthetic.records(seeds=4, alphas=(0.1, 0.2, 0.3)))
    (said,) = words.concerns(edges)
    n, of = re.findall(r"In (\d+) of (\d+) settings", said)[0]
    assert int(n) == edges.edges().filter("edge").height > int(of) / 4
    assert said in study_page.html(edges).partition('class="facts"')[0]


def test_numbers_in_names_sort_as_numbers() -> None:
    names = ("random-walk:states=11", "random-walk:states=5")
    rows, curves, facts = synthetic.records(seeds=3, environments=names)
    shown = views.Views(rows, curves, facts)
    assert shown.summary.environments == ["Random walk (states 5)", "Random walk (states 11)"]
    assert list(shown.sweeps) == shown.summary.environments
    assert shown.summary.table["environment"].unique(maintain_order=True).to_list() == shown.summary.environments


def test_a_score_above_that_of_the_best_is_explained() -> None:
    """RBIS is best in both environments: 1 in each. Over their runs together, which are spread unequally, it is more."""
    rows, curves, facts = synthetic.records(
        seeds=8, environments=("Bifurcation 1", "Bifurcation 2"), traces=("Retrace", "RBIS")
    )
    skewed = (0.0, 0.0, 0.0, 4.0, 4.0, 4.0, 27.0, 27.0)  # their interquartile mean is 3
    wide = pl.col("seed").mod(100).replace_strict(dict(enumerate(skewed)), return_dtype=pl.Float64)
    level = pl.when(pl.col("environment") == "Bifurcation 1").then(wide).otherwise(3.0)
    shown = views.Views(rows.with_columns(value=level * (pl.col("trace") == "RBIS")), curves, facts)
    first = shown.summary.iqm.row(0, named=True)
    assert (first["method"], first["iqm"] > 1 + 1e-9) == ("RBIS", True)
    said = words.answer(shown)[0]
    assert (
        "where, in each environment, 0 is the interquartile mean of the worst trace there, 1 that of the best" in said
    )
    assert "It can be above 1, since the middle half is that of the runs of all environments together." in said
    assert "It can be above 1" in terminal_table.table(shown)
    flat = views.Views(rows.with_columns(value=2.0 * (pl.col("trace") == "RBIS")), curves, facts)
    assert flat.summary.iqm["iqm"][0] == 1.0
    assert "above 1" not in words.answer(flat)[0] + terminal_table.table(flat)


def test_the_front_of_a_map_is_what_nothing_beats() -> None:
    shown = views.Views(*synthetic.map_records())
    for environment, clouds in shown.tradeoff.items():
        every = [(c, *values) for c in clouds for values in zip(c.lam, c.x, c.y, c.bias, strict=True)]
        points = {(c.method, lam): (x, y) for c, lam, x, y, bias in every if not bias}
        assert len(points) == len(every) - 4  # Q(λ) is biased in four
        unbeaten = {
            key
            for key, (x, y) in points.items()
            if not any(u <= x and v <= y and (u, v) != (x, y) for u, v in points.values())  # pyright: ignore[reportOperatorIssue]
        }
        assert set(shown.front(environment)) == unbeaten


def test_environments_have_names_for_people() -> None:
    made = views.titles(
        ["garnet:states=5,gamma=0.9", "garnet:states=50,gamma=0.9", "random-walk:states=19", "bifurcation-1", "My MDP"]
    )
    assert list(made.values()) == ["Garnet (states 5)", "Garnet (states 50)", "Random walk", "Bifurcation 1", "My MDP"]
    assert views.titles(["a-b", "a b"]) == {"a-b": "a-b", "a b": "a b"}  # which would be the same


def test_a_tie_is_called_one() -> None:
    rows, curves, facts = synthetic.records(seeds=5, traces=("Retrace", "RBIS", "Tree Backup"))
    values = pl.col("seed") % 100 - 10.0 * (pl.col("trace") == "Tree Backup")
    shown = views.Views(rows.with_columns(value=values), curves, facts)
    said = words.answer(shown)[0]
    assert said.startswith("**Retrace and RBIS** share")
    assert shown.best.filter(mark="best")["method"].to_list() == ["Retrace", "RBIS"] * 4


NUMBERS = (
    (1272.5511, 19.3, "1273"),
    (0.93216, 0.0123, "0.932"),
    (-0.0001, 0.05, "0.000"),
    (0.5, None, "0.5"),
    (1e-9, None, "1.00e−09"),
    (float("nan"), None, "–"),
    (None, None, "–"),
    (0.0, None, "0"),
    (-2.5, None, "−2.5"),
    (123456.0, None, "1.23e+05"),
)


@pytest.mark.parametrize(("x", "half", "text"), NUMBERS)
def test_numbers_have_the_digits_that_mean_something(x: float | None, half: float | None, text: str) -> None:
    assert number_text.number(x, half) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.42, "0.42 s"), (12.3, "12 s"), (73.4, "1 min 13 s"), (3725, "1 h 2 min"), (None, "–")]
)
def test_durations(seconds: float | None, text: str) -> None:
    assert number_text.duration(seconds) == text
