"""A shipped study, run and reported: the page shows the rows that were made, by object and by folder."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import numpy as np
import pytest

from offtrace import reports, studies
from offtrace.reports.study import statistics, views


@pytest.fixture(scope="session")
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
    shown = views.Views(study.records(), study.curves(), study.facts()).best
    assert set(shown["method"]) == set(wanted)
    for row in shown.iter_rows(named=True):
        mean, interval = wanted[row["method"]]
        assert abs(row["mean"] - mean) <= np.hypot(interval, (row["high"] - row["low"]) / 2)
