"""The tables and the figure of docs/stale.md, from the files of `run.py`: no number there is written by hand.

cd experiments
python -m stale.tables stale/records/h200-ages-*.jsonl.gz         writes docs/stale_table.inc and docs/stale.png
python -m stale.tables --file stale_minutes.inc minutes.jsonl     the same of `minutes`, the tables only
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from offtrace import figures
from stale.run import complete_lines

DOCS = Path(__file__).resolve().parents[2] / "docs"
MEASURED = ("success", "reward", "entropy", "ess", "kl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the files go")
    parser.add_argument("--name", default="stale-h200-ages", help="what was run, where the files do not say it")
    parser.add_argument(
        "--file", default="stale_table.inc", help="what the tables are called; of another name, no figure is drawn"
    )
    args = parser.parse_args()
    lines = [line for file in args.files for line in complete_lines(file)]
    rows, curves = frame(lines, "rows"), frame(lines, "curve")
    made = text({"study": args.name} | next(line for line in lines if "unit" not in line), rows)
    args.docs.joinpath(args.file).write_text(made, encoding="utf-8")
    if args.file == parser.get_default("file"):
        drawn(curves).savefig(args.docs / "stale.png", dpi=110)
    print(made)


def frame(lines: list[dict[str, Any]], kind: str) -> pl.DataFrame:
    """The rows or the curves of all units; `method` is the label of the weighting."""
    parts: list[pl.DataFrame] = []
    for line in lines:
        if "unit" not in line or not line[kind]:
            continue
        unit = {name: line["unit"][name] for name in ("phase", "environment", "alpha", "age")}
        unit |= {"method": json.loads(line["unit"]["parameters"])["label"], "age": float(line["unit"]["age"])}
        columns = {k: [math.nan if x is None else x for x in v] for k, v in line[kind].items()}
        parts.append(pl.DataFrame(columns).with_columns(pl.lit(v).alias(k) for k, v in unit.items()))
    whole = pl.concat(parts)
    return whole.with_columns(pl.col("environment").replace(titles(whole["environment"].unique().to_list())))


def titles(environments: list[str]) -> dict[str, str]:
    """Names for people: those of the parameters that differ between environments of one task."""
    given = {name: dict(part.split("=") for part in name.partition(":")[2].split(",")) for name in environments}
    found: dict[str, str] = {}
    for name in environments:
        kind = name.partition(":")[0]
        like = [given[other] for other in environments if other.partition(":")[0] == kind]
        told = ", ".join(f"{k} {v}" for k, v in given[name].items() if any(other.get(k) != v for other in like))
        found[name] = kind.capitalize() + (f" ({told})" if told else "")
    return found


def cells_of(rows: pl.DataFrame) -> pl.DataFrame:
    """One row for each environment, age and weighting of the test seeds: means, and half of their 95% intervals (Student's)."""
    found = (
        rows.filter(phase="test")
        .group_by("environment", "age", "method")
        .agg(
            *(pl.col(name).mean() for name in MEASURED),
            half_reward=pl.col("reward").std(),
            collapsed=pl.col("collapsed").sum(),
            n=pl.len(),
            alpha=pl.col("alpha").first(),
        )
    )
    n = found["n"].to_numpy().astype(float)
    widths = pl.Series(stats.t.ppf(0.975, np.maximum(n - 1, 1)) / np.sqrt(n))
    return found.with_columns(pl.col("half_reward") * widths).sort("environment", "age", "reward")


def wilson(k: int, n: int) -> tuple[float, float]:
    """The 95% interval of a share k/n by Wilson, which is right for few runs, and for none or all of them.

    >>> [round(end, 3) for end in wilson(0, 5)]
    [0.0, 0.434]
    """
    z = 1.959964
    middle, half = (k + z * z / 2) / (n + z * z), z / (n + z * z) * math.sqrt(k * (n - k) / n + z * z / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def text(head: dict[str, Any], rows: pl.DataFrame) -> str:
    """What was run, and the tables."""
    cells = cells_of(rows)
    ages = sorted(cells["age"].unique().to_list())
    seeds = cells["n"].unique().sort().to_list()
    units = rows.select("phase", "environment", "method", "alpha", "age").n_unique()
    runs = f"{len(rows):,} runs, of which {int(cells['n'].sum()):,} at a tuned α, {' or '.join(map(str, seeds))} seeds each"
    parts = [f"`{head['study']}`: {runs}; {head['machine']}; {units:,} units."]
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
        low, high = wilson(k, n)
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


def drawn(curves: pl.DataFrame) -> Any:
    """Reward over the updates at the oldest age, for each environment: the mean over the seeds and its 95% interval."""
    curves = curves.filter(pl.col("method").is_in(DRAWN), phase="test", age=curves["age"].max())
    means = curves.group_by("environment", "method", "step").agg(
        pl.col("reward").mean(), half=pl.col("reward").std() / pl.len().sqrt(), n=pl.len()
    )
    means = means.with_columns(pl.col("half") * pl.Series(stats.t.ppf(0.975, means["n"].to_numpy() - 1)))
    panels: list[Any] = []
    for (place,), part in sorted(means.group_by("environment"), key=lambda found: found[0]):
        lines: list[Any] = []
        for method in DRAWN:
            one = part.filter(method=method).sort("step")
            low, high = one["reward"] - one["half"], one["reward"] + one["half"]
            lines.append((method, *(series.to_list() for series in (one["step"], one["reward"], low, high))))
        panels.append((place, lines))
    looks = {method: i for i, method in enumerate(DRAWN)}
    ylabel = f"reward, data {curves['age'].max():.0f} updates old"
    return figures.band_panels(panels, xlabel="update", ylabel=ylabel, looks=looks)


if __name__ == "__main__":
    main()
