"""A shipped study, run and reported: the page shows the rows that were made, by object and by folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from offtrace import reports, studies
from offtrace.reports import statistics, views


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> studies.Study:
    small = studies.load("bifurcation").small().at(tmp_path_factory.mktemp("out"))
    small.run(workers=1, progress=False)
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
