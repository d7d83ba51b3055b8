"""What the page of a study of old rollouts shows beside that of others: success, collapse, entropy and effective sample size."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
from scipy import stats

from offtrace._shared.number_text import number
from offtrace.reports.html.document import Cell, Figure, Paragraph, Part, Section, Select, Table
from offtrace.reports.study.views import Row, Views

WORDS = {
    "success": "Share of right answers",
    "reward": "Reward",
    "entropy": "Entropy for a token (nats)",
    "ess": "Effective sample size",
    "kl": "KL(μ, π) for a token",
}
"""What is measured at each update, and how a page calls it."""


def cells(shown: Views) -> pl.DataFrame:
    """One row for each environment, age and weighting of the final phase, at its tuned α: means over the seeds.

    `half` and `half_reward` are half of the 95% intervals of success and of reward, Student's.
    """
    runs = shown.of_stale
    found = runs.group_by("environment", "age", "method").agg(
        *(pl.col(name).mean() for name in WORDS),
        half=pl.col("success").std(),
        half_reward=pl.col("reward").std(),
        collapsed=pl.col("collapsed").sum(),
        diverged=pl.col("diverged").sum(),
        n=pl.len(),
        alpha=pl.col("alpha").first(),
    )
    n = found["n"].to_numpy().astype(float)
    widths = pl.Series(stats.t.ppf(0.975, np.maximum(n - 1, 1)) / np.sqrt(n))
    found = found.with_columns(pl.col("half", "half_reward") * widths)
    return found.sort("environment", "age", "success", "reward", descending=[False, False, True, True])


def wilson(k: int, n: int) -> tuple[float, float]:
    """The 95% interval of a share k/n by Wilson, which is right for few runs, and for none or all of them.

    >>> [round(end, 3) for end in wilson(0, 5)]
    [0.0, 0.434]
    """
    z = 1.959964
    middle, half = (k + z * z / 2) / (n + z * z), z / (n + z * z) * math.sqrt(k * (n - k) / n + z * z / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def sections(shown: Views) -> list[Section]:
    """What happens over the updates, and a table of where it ends."""
    if not shown.measured:
        return []
    ages = {
        line.age
        for panels in shown.measured.values()
        for lines in panels.values()
        for line in lines
        if line.age is not None
    }
    places = Select("Environment", "measured", [(str(i), name) for i, name in enumerate(shown.measured)])
    controls = [
        places,
        Select("Age", "measured-age", [(f"{age:.0f}", f"{age:,.0f} updates") for age in sorted(ages, reverse=True)]),
    ]
    lead = (
        "Share of right answers, reward, entropy and effective sample size over the updates, each weighting at its tuned α. An "
        "effective sample size of 1 means that all tokens count alike. KL(μ, π) says how far the policy has gone from the one "
        "that drew. Bands are 95% intervals of the mean over seeds."
    )
    figure = Figure("What happens over the updates", lead, "measured", controls=controls)
    parts: list[Part] = [Paragraph(TABLE), table(shown)]
    return [Section("updates", "Updates", [figure, *parts])]


TABLE = (
    "At the end (the last tenth of the updates), best first. A run has **collapsed** if it has lost more than half of what its "
    "reward had gained over the first tenth; its interval is Wilson’s. Click a heading to sort."
)


def table(shown: Views) -> Table:
    """Where each weighting ends, by environment and age."""
    lines = [_line(row) for row in cells(shown).iter_rows(named=True)]
    heads = [
        "Environment",
        "Weighting",
        "Age",
        "Right answers",
        "Reward",
        "Collapsed",
        "Entropy",
        "Sample size",
        "KL",
        "α",
    ]
    return Table(heads, lines, texts=2)


def _line(row: Row) -> list[Cell]:
    low, high = wilson(row["collapsed"], row["n"])
    share = Cell(f"{row['collapsed']} of {row['n']} ", row["collapsed"] / row["n"], small=f"[{low:.2f}, {high:.2f}]")
    half = row["half"]
    success = Cell(
        f"{row['success']:.2f}" + (f" ± {half:.2f}" if half is not None and half == half else ""), row["success"]
    )
    return [
        Cell(row["environment"], row["environment"], "t"),
        Cell(row["method"], row["method"], "t"),
        Cell(f"{row['age']:.0f}", row["age"]),
        success,
        Cell(f"{row['reward']:.2f}", row["reward"]),
        share,
        *(Cell(number(row[name]) if row[name] is not None else "–", row[name]) for name in ("entropy", "ess", "kl")),
        Cell(f"{row['alpha']:g}", row["alpha"]),
    ]
