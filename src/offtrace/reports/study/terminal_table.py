"""The report's table as plain text."""

from __future__ import annotations

from textwrap import fill

from offtrace._shared.number_text import interval, number
from offtrace.reports.study.views import Row, Views, mean_and_half
from offtrace.reports.study.words import metric, outside_scale, scaled, settings

SIGNS = {"best": "★", "level": "≈"}
WIDTH = 98  # characters of a line of text below the table


def table(shown: Views) -> str:
    """A row for each method, best first: its mean in each environment at its tuned λ and α, and its interquartile mean."""
    iqm, cells = shown.summary.iqm, shown.cells(_cell, "–")
    lines = [["", *shown.summary.environments, "interquartile mean"]]
    for row in iqm.iter_rows(named=True):
        score = f"{number(row['iqm'], (row['high'] - row['low']) / 2)} {interval(row['low'], row['high'])}"
        lines.append([row["method"], *cells[row["method"]], score])
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


def _cell(row: Row) -> str:
    return f"{SIGNS.get(row['mark'], ' ')} {' ± '.join(mean_and_half(row))}"
