"""The table that a terminal shows: the same numbers as the page's, best trace first."""

from __future__ import annotations

from offtrace.reports.study.terminal_table import table
from offtrace.reports.study.views import Views
from reports import synthetic


def test_best_first_with_every_environment() -> None:
    shown = Views(
        *synthetic.records(environments=("Bifurcation 1", "Bifurcation 2"), traces=("Retrace", "RBIS", "Q(λ)"))
    )
    lines = table(shown).splitlines()
    assert lines[0].split("  ")[-1].strip() == "interquartile mean"
    assert "Bifurcation 1" in lines[0]
    assert "Bifurcation 2" in lines[0]
    body = lines[2:5]
    assert [line.split("  ")[0] for line in body] == shown.summary.iqm["method"].to_list()
    best = {row["environment"]: row for row in shown.best.iter_rows(named=True) if row["mark"] == "best"}
    assert sum(line.count("★") for line in body) == len(best) == 2
    for row in best.values():
        line = next(line for line in body if line.startswith(row["method"]))
        assert f"★ {row['mean']:.0f}" in line


def test_lines_are_equally_wide() -> None:
    lines = table(Views(*synthetic.records(traces=("Retrace", "RBIS")))).splitlines()[:4]
    assert len({len(line) for line in lines}) == 1
