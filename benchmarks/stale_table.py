"""The tables and the figure of docs/stale.md, from the records of the study `stale`: no number there is written by hand.

.venv/bin/python benchmarks/stale_table.py FOLDER            writes docs/stale_table.inc and docs/stale.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import polars as pl

from offtrace import figures
from offtrace.reports.study import method_names, stale, words
from offtrace.reports.study.views import Views
from offtrace.studies import Study

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the two files go")
    args = parser.parse_args()
    study = Study.load(args.folder)
    shown = Views(study.records(), study.curves(), study.facts())
    args.docs.joinpath("stale_table.inc").write_text(text(shown), encoding="utf-8")
    drawn(shown).savefig(args.docs / "stale.png", dpi=110)
    print(text(shown))


def text(shown: Views) -> str:
    """What was run, the answer in the words of the page, and the tables."""
    cells, facts = stale.cells(shown), shown.facts
    ages = sorted(cells["age"].unique().to_list())
    seeds = cells["n"].unique().sort().to_list()
    runs = f"{shown.rows:,} runs, of which {int(cells['n'].sum()):,} at a tuned α, {' or '.join(map(str, seeds))} seeds each"
    parts = [
        f"`{facts['name']}`: {runs}; {facts['machine']}; {facts['counts']['units']:,} units in {facts['seconds']:,.0f} s of work."
    ]
    parts += ["In the words of its page:", *(f"> {paragraph}" for paragraph in words.answer(shown))]
    for age in ages:
        parts += [f"**Data {age:.0f} update{'s' * (age > 1)} old.** {LEGEND}", by_environment(cells.filter(age=age))]
    parts += [
        f"**Over all environments, data {ages[-1]:.0f} updates old**, at the end:",
        over_all(cells.filter(age=ages[-1])),
    ]
    return "\n\n".join(parts) + "\n"


LEGEND = (
    "The share of right answers at the end ± 95 %, the mean reward in brackets, and how many runs collapsed of all; "
    "**bold** is the best of a column."
)


def by_environment(cells: pl.DataFrame) -> str:
    """Weightings down, best first by the mean reward; environments across."""
    places = sorted(cells["environment"].unique().to_list())
    best = {row["environment"]: row["method"] for row in cells.sort("success", "reward").iter_rows(named=True)}
    found = {(row["method"], row["environment"]): row for row in cells.iter_rows(named=True)}
    lines = [f"| weighting | {' | '.join(places)} |", "|---" * (len(places) + 1) + "|"]
    for method in ordered(cells):
        row = [_cell(found.get((method, place)), best[place] == method) for place in places]
        lines.append(f"| {method} | {' | '.join(row)} |")
    return "\n".join(lines)


def ordered(cells: pl.DataFrame) -> list[str]:
    """The weightings, by their mean reward over the environments."""
    means = (
        cells.group_by("method").agg(pl.col("reward").mean(), pl.len()).sort("len", "reward", "method", descending=True)
    )
    return means["method"].to_list()


def _cell(row: dict[str, float] | None, bold: bool) -> str:
    if row is None:
        return "–"
    half = row["half"]
    said = f"{row['success']:.2f}" + (f" ± {half:.2f}" if half is not None and half == half else "")
    lost = f", {row['collapsed']} of {row['n']}" if row["collapsed"] else ""
    return f"{'**' * bold}{said}{'**' * bold} ({row['reward']:.2f}{lost})"


def over_all(cells: pl.DataFrame) -> str:
    """One line for each weighting: collapse rate with its interval, entropy, effective sample size, KL, and its step sizes."""
    lines = ["| weighting | reward | collapsed | entropy | effective sample size | KL(μ, π) | α |", "|---" * 7 + "|"]
    for method in ordered(cells):
        own = cells.filter(method=method)
        k, n = int(own["collapsed"].sum()), int(own["n"].sum())
        low, high = stale.wilson(k, n)
        numbers = [
            f"{own[name].mean():.3g}" if own[name].mean() is not None else "–" for name in ("entropy", "ess", "kl")
        ]
        steps = ", ".join(f"{alpha:g}" for alpha in own["alpha"].unique().sort().to_list())
        share = f"{k} of {n} [{low:.2f}, {high:.2f}]"
        lines.append(f"| {method} | {own['reward'].mean():.2f} | {share} | {' | '.join(numbers)} | {steps} |")
    return "\n".join(lines)


def drawn(shown: Views) -> Any:
    """Reward over the updates at the oldest age, for each environment."""
    oldest = max(line.age or 0 for lines in shown.learning.values() for line in lines)
    panels = [
        (name, [(line.method, line.x, line.y, line.low, line.high) for line in lines if line.age == oldest])
        for name, lines in shown.learning.items()
    ]
    looks = dict(zip(shown.summary.methods, method_names.styles(shown.summary.methods), strict=True))
    return figures.band_panels(panels, xlabel="update", ylabel=f"reward, data {oldest:.0f} updates old", looks=looks)


if __name__ == "__main__":
    main()
