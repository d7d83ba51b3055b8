"""The report's table as plain text."""

from __future__ import annotations

from textwrap import fill

from offtrace._shared.number_text import interval, number
from offtrace.reports.study.views import Views
from offtrace.reports.study.words import metric, outside_scale, scaled, settings

WIDTH = 98  # characters of a line of text below the table


def table(shown: Views) -> str:
    """A row for each method, best first: its mean in each environment at its tuned λ and α, and its interquartile mean."""
    best, iqm = shown.at_best(), shown.summary.iqm
    environments = shown.summary.environments
    cells = {
        (row["method"], row["environment"]): _cell(row["mean"], row["low"], row["high"], row["mark"])
        for row in best.iter_rows(named=True)
    }
    lines = [["", *environments, "interquartile mean"]]
    for row in iqm.iter_rows(named=True):
        score = f"{number(row['iqm'], (row['high'] - row['low']) / 2)} {interval(row['low'], row['high'])}"
        lines.append([row["method"], *(cells.get((row["method"], e), "–") for e in environments), score])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    ]
    text.insert(1, "─" * len(text[0]))
    note = (
        f"{metric(shown.facts)}, mean ± 95% interval, each at its {settings(shown)}; ★ best, ≈ not told apart from it."
    )
    scale = f"The last column is scaled: in each environment, {scaled(shown)}.{outside_scale(list(iqm['iqm']))}"
    return "\n".join([*text, note, fill(scale, WIDTH)])


def _cell(mean: float, low: float, high: float, mark: str | None) -> str:
    half = (high - low) / 2
    sign = {"best": "★", "level": "≈"}.get(mark or "", " ")
    return f"{sign} {number(mean, half)} ± {number(half, half)}"
