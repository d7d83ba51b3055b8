"""A shipped study, run and reported: the page shows the rows that were made, by object and by folder."""

from __future__ import annotations

import csv
import tomllib
from dataclasses import fields
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from offtrace import reports, studies
from offtrace.reports.study import statistics, views
from offtrace.studies.plan import Plan


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> studies.Study:
    small = studies.load("bifurcation").small().at(tmp_path_factory.mktemp("out"))
    small.run(workers=0, progress=False)
    return small


def test_a_study_is_reported(study: studies.Study, tmp_path: Path) -> None:
    path = reports.write(study, figures=False)
    assert path == study.folder / "report.html"
    again = reports.write(study.folder, tmp_path / "again.html", figures=False)
    assert again.read_text(encoding="utf-8") == path.read_text(encoding="utf-8")
    assert studies.load(study.folder).status().problems == ()  # a page in the folder disturbs nothing


def test_the_step_sizes_are_those_that_the_study_tested(study: studies.Study) -> None:
    rows = study.records()
    table = statistics.summarise(rows, "higher").table
    tested = rows.filter(phase="test").select("environment", "trace", "lam", "alpha").unique()
    keys = ["environment", "trace", "lam"]
    assert table.rename({"method": "trace"}).select(*keys, "alpha").sort(keys).rows() == tested.sort(keys).rows()
    assert set(table["chosen_on"]) == {"tuning"}
    assert list(views.Views(rows, study.curves(), study.facts()).learning) == ["Bifurcation 1", "Bifurcation 2"]


LEARNING = {
    "name": "small",
    "question": "Which one is best?",
    "task": "evaluation",
    "metric": "rms error",
    "environments": ["random-walk:states=5", "random-walk:states=7"],
    "traces": ["Retrace", {"name": "Truncated IS", "bound": [1.0, 2.0]}, "One-step"],
    "lams": [0.0, 0.5, 1.0],
    "alphas": [0.1, 0.5],
    "seeds": {"tuning": {"first": 0, "count": 1}, "test": {"first": 1, "count": 2}},
    "protocol": {"steps": 10, "behavior": "uniform", "target": "uniform"},
}
REPLAY = LEARNING | {"task": "replay", "ages": [0, 5, 9], "protocol": {"steps": 10}}
STUDIES = {
    "tuned": LEARNING,
    "higher": {**LEARNING, "task": "control", "metric": "return", "protocol": {"steps": 10}},
    "one step size": {**LEARNING, "alphas": [0.1], "seeds": {"test": {"first": 1, "count": 2}}},
    "ages": REPLAY,
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", STUDIES)
def test_the_status_and_the_table_name_the_same_best(name: str, seed: int) -> None:
    """Scores are drawn at random, so that the best of the test seeds is seldom what tuning chose, and ages differ."""
    study, rng = studies.Study.declared(STUDIES[name]), np.random.default_rng(seed)
    plan, rows = Plan(study), []
    waiting = list(plan.left())
    while waiting:
        unit = waiting.pop()
        score = float("inf") if rng.random() < 0.05 and name != "higher" else float(rng.random())
        waiting += [test] if (test := plan.mark(unit, score)) else []
        seeds = study.seeds[unit.phase]
        row = {f.name: getattr(unit, f.name) for f in fields(unit) if f.name != "id"}
        rows += [row | {"seed": seeds.first + i, "value": score} for i in range(seeds.count)]
    schema = {"lam": pl.Float64, "alpha": pl.Float64, "age": pl.Float64}
    frame = pl.DataFrame(rows, schema_overrides=schema, infer_schema_length=None)
    shown = views.Views(
        frame, pl.DataFrame(schema={"environment": pl.String}), study.facts() | {"metric": study.metric}
    )
    table, names = shown.at_best().filter(mark="best"), views.titles([place.name for place in study.environments])
    assert len(table) == 2
    for environment, best in plan.best().items():
        row = table.row(by_predicate=pl.col("environment") == names[environment], named=True)
        words = f" ({best.unit.parameters[1:-1]})".replace('"', "").replace(": ", " = ").replace(".0", "")
        assert best.unit.trace + words * bool(best.unit.parameters) == row["method"]
        assert (best.unit.lam, best.score) == (row["lam"], pytest.approx(row["mean"]))
        assert best.unit.phase == "test"


def test_the_areas_are_those_of_independent_code(tmp_path: Path) -> None:
    """tests/reference/bifurcation1_auc.csv, at λ = 0.5 and α = 0.9 for all its traces, as the report shows them."""
    names = {"Recursive Retrace": "Non-Markov Retrace"}
    file = Path(__file__).parent.parent / "reference" / "bifurcation1_auc.csv"
    wanted = {
        names.get(row["algorithm"], row["algorithm"]): (float(row["mean_auc"]), float(row["ci95"]))
        for row in csv.DictReader(file.read_text().splitlines())
        if row["lambda"] == "0.5"
    }
    shipped = tomllib.loads(studies.load("bifurcation").as_toml())
    seeds = {"tuning": {"first": 0, "count": 1}, "test": {"first": 1000, "count": 500}}
    grid = {"environments": ["bifurcation-1"], "lams": [0.5], "alphas": [0.9], "traces": list(wanted), "subsets": {}}
    study = studies.Study.declared({**shipped, **grid, "name": "reference", "seeds": seeds}).at(tmp_path)
    study.run(workers=0, progress=False)
    shown = views.Views(study.records(), study.curves(), study.facts()).at_best()
    assert set(shown["method"]) == set(wanted)
    for row in shown.iter_rows(named=True):
        mean, interval = wanted[row["method"]]
        assert abs(row["mean"] - mean) <= np.hypot(interval, (row["high"] - row["low"]) / 2)
