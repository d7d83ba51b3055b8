"""The files for papers, and `write`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from offtrace import reports
from offtrace.reports.study import paper_figures, views
from reports import synthetic
from reports.test_study_page import CASES

matplotlib = pytest.importorskip("matplotlib")


class Study:
    """What `write` needs of a study."""

    def __init__(self, folder: Path, made: tuple[pl.DataFrame, pl.DataFrame, dict[str, Any]]) -> None:
        self.folder = folder
        self._rows, self._curves, self._facts = made

    def records(self) -> pl.DataFrame:
        return self._rows

    def curves(self) -> pl.DataFrame:
        return self._curves

    def facts(self) -> dict[str, Any]:
        return self._facts


def test_a_page_and_its_figures_are_written(tmp_path: Path) -> None:
    study = Study(
        tmp_path / "deep" / "er", synthetic.records(seeds=3, environments=("A", "B"), traces=("Retrace", "RBIS"))
    )
    path = reports.write(study)
    assert path == tmp_path / "deep" / "er" / "report.html"
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    names = {file.name for file in (path.parent / "figures").iterdir()}
    stems = ("difference", "standing", "learning", "lambda", "alpha-lambda-a", "alpha-lambda-b")
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("png", "pdf")}
    for file in (path.parent / "figures").glob("*.png"):
        image = matplotlib.image.imread(file)[..., :3]
        assert len({tuple(pixel) for pixel in image.reshape(-1, 3)[::97].tolist()}) > 10, f"{file.name} is empty"
    assert not list(path.parent.glob("*.part"))


def test_without_figures_and_elsewhere(tmp_path: Path) -> None:
    study = Study(tmp_path, synthetic.map_records(seeds=2))
    path = reports.write(study, tmp_path / "sub" / "map.html", figures=False)
    assert [file.name for file in (tmp_path / "sub").iterdir()] == ["map.html"]
    assert path == tmp_path / "sub" / "map.html"


def test_the_browser_is_opened_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(reports.webbrowser, "open", opened.append)
    study = Study(tmp_path, synthetic.map_records(seeds=2))
    path = reports.write(study, figures=False, open_browser=True)
    assert opened == [path.resolve().as_uri()]


def test_what_is_no_study_is_refused() -> None:
    with pytest.raises(TypeError, match="from a Study or from the folder of one, and int was given"):
        reports.write(3)


@pytest.mark.parametrize("case", CASES)
def test_half_a_study_has_figures_too(case: str, tmp_path: Path) -> None:
    rows, curves, facts = synthetic.records(
        seeds=3, environments=("Bifurcation 1",), traces=("RBIS", "Importance sampling")
    )
    rows, curves = CASES[case](rows, curves)
    for path in paper_figures.write(views.Views(rows, curves, facts), tmp_path):
        assert path.stat().st_size > 1000


def test_maps_and_ages_have_their_figures() -> None:
    assert set(paper_figures.draw(views.Views(*synthetic.map_records(seeds=3)))) == {"lambda", "tradeoff"}
    assert {"age", "standing"} <= set(paper_figures.draw(views.Views(*synthetic.replay_records(seeds=3))))


def test_names_that_look_alike_as_files_do_not_overwrite_each_other() -> None:
    made = synthetic.records(seeds=2, environments=("a b", "a-b"), traces=("Retrace",))
    assert len([name for name in paper_figures.draw(views.Views(*made)) if name.startswith("alpha-lambda")]) == 2
