"""The tables and the figure of docs/stale.md, from the records of the study `stale`: no number there is written by hand.

.venv/bin/python benchmarks/stale_gpu.py bring --subset h200-ages benchmarks/stale/h200-ages-*.jsonl.gz       names FOLDER
.venv/bin/python benchmarks/stale_table.py FOLDER            writes docs/stale_table.inc and docs/stale.png
    .venv/bin/python benchmarks/stale_table.py --file stale_minutes.inc FOLDER       the same of `minutes`, the tables only
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import polars as pl

from offtrace import figures
from offtrace.reports.study import method_names, stale, views, words
from offtrace.reports.study.views import Views
from offtrace.studies import Study

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the files go")
    parser.add_argument(
        "--file", default="stale_table.inc", help="what the tables are called; of another name, no figure is drawn"
    )
    args = parser.parse_args()
    study = Study.load(args.folder)
    rows = study.records()
    shown = Views(rows, study.curves(), study.facts())
    made = text(shown, rows)
    args.docs.joinpath(args.file).write_text(made, encoding="utf-8")
    if args.file == parser.get_default("file"):
        drawn(shown).savefig(args.docs / "stale.png", dpi=110)
    print(made)


def text(shown: Views, rows: pl.DataFrame) -> str:
    """What was run, the answer in the words of the page, and the tables."""
    cells, facts = stale.cells(shown), shown.facts
    ages = sorted(cells["age"].unique().to_list())
    seeds = cells["n"].unique().sort().to_list()
    runs = f"{shown.rows:,} runs, of which {int(cells['n'].sum()):,} at a tuned α, {' or '.join(map(str, seeds))} seeds each"
    parts = [f"`{facts['name']}`: {runs}; {facts['machine']}; {facts['counts']['units']:,} units."]
    parts += ["In the words of its page:", *(f"> {paragraph}" for paragraph in words.answer(shown))]
    for age in ages:
        parts += [f"**Data {age:.0f} update{'s' * (age > 1)} old.** {LEGEND}", by_environment(cells.filter(age=age))]
    parts += [
        f"**Over these environments, data {ages[-1]:.0f} updates old**, at the end:",
        over_all(cells.filter(age=ages[-1])),
    ]
    tuning = rows.filter(~pl.col("environment").str.contains("precision|top_p"), phase="tuning", age=ages[-1])
    if len(tuning):
        parts += [f"**All step sizes, data {ages[-1]:.0f} updates old.** {TUNING}", by_step(tuning)]
    return "\n\n".join(parts) + "\n"


LEGEND = (
    "The mean reward at the end ± 95 % (Student’s, 0.001 at least), in brackets the share of answers that are wholly right, and "
    "how many runs collapsed of all where any did; **bold** is the best of a column."
)
TUNING = (
    "The reward at the end of the runs of the tuning seeds, the lowest and the highest, where rollouts are drawn in float32. "
    "These have chosen α, and for an environment that is not in the tables above they are all there is."
)
LEARNED = 0.3
"""A step size with which no run comes so far is left out of its table."""


def by_environment(cells: pl.DataFrame) -> str:
    """Weightings down, best first by the mean reward; environments across."""
    places = sorted(cells["environment"].unique().to_list())
    best = {row["environment"]: row["method"] for row in cells.sort("reward").iter_rows(named=True)}
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
    half = row["half_reward"]
    said = f"{row['reward']:.3f}" + (f" ± {max(half, 0.001):.3f}" if half is not None and half == half else "")
    lost = f", {row['collapsed']} of {row['n']}" if row["collapsed"] else ""
    return f"{'**' * bold}{said}{'**' * bold} ({row['success']:.2f}{lost})"


def by_step(rows: pl.DataFrame) -> str:
    """Weightings down, best first by their mean over all; environments and step sizes across, and which are left out."""
    places = views.titles(sorted(rows["environment"].unique().to_list()))
    rows = method_names.with_methods(rows).with_columns(pl.col("environment").replace(places))
    order = rows.group_by("method").agg(pl.col("reward").mean()).sort("reward", "method", descending=True)["method"]
    parts = dict(sorted(rows.group_by("environment", "alpha"), key=lambda found: found[0]))
    best = {key: max(part["reward"].to_list()) for key, part in parts.items()}
    columns = {
        f"{place}, α {alpha:g}": {m: _range(part.filter(method=m)["reward"]) for m in order}
        for (place, alpha), part in parts.items()
        if best[place, alpha] >= LEARNED
    }
    lines = [f"| weighting | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {method} | {' | '.join(column[method] for column in columns.values())} |" for method in order]
    left = [
        f"{place}, α {alpha:g} ({best[place, alpha]:.2f})" for place, alpha in parts if best[place, alpha] < LEARNED
    ]
    if left:
        lines += [
            "",
            f"Left out, since no run of any weighting reaches {LEARNED}, with the best run: {'; '.join(left)}.",
        ]
    return "\n".join(lines)


def _range(rewards: pl.Series) -> str:
    return f"{rewards.min():.2f}–{rewards.max():.2f}" if len(rewards) else "–"


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


DRAWN = (
    "no correction",
    "token, cap 2",
    "sequence, cap 2",
    "geometric",
    "prefix",
    "prefix, cap 2",
    "prefix, Non-Markov Retrace",
    "prefix ρ^0.25, cap 1",
)
"""One of each kind: more lines cannot be told apart."""


def drawn(shown: Views) -> Any:
    """Reward over the updates at the oldest age, for each environment."""
    oldest = max(line.age or 0 for lines in shown.learning.values() for line in lines)
    panels = [
        (
            name,
            [
                (line.method, line.x, line.y, line.low, line.high)
                for line in lines
                if line.age == oldest and line.method in DRAWN
            ],
        )
        for name, lines in shown.learning.items()
    ]
    looks = {method: i for i, method in enumerate(DRAWN)}
    return figures.band_panels(panels, xlabel="update", ylabel=f"reward, data {oldest:.0f} updates old", looks=looks)


if __name__ == "__main__":
    main()
