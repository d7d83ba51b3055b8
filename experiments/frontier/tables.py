"""From the records of `frontier.run` to the table and the figure of docs/frontier.md.

cd experiments
python -m frontier.tables frontier/records/garnets.jsonl.gz --table ../docs/frontier_table.inc --figure ../docs/frontier.png
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from frontier.run import BUDGETS

Cell = tuple[float, float, int]
"""γ, noise, and which budget."""
PREDICTORS = {
    "contraction": lambda r: np.log(r["contraction"] + 1e-6),
    "variance": lambda r: np.log(r["variance"]),
    "variance / (1 − contraction)²": lambda r: np.log(r["variance"]) - 2 * np.log(1 - r["contraction"]),
}
"""What might tell a fast rule from a slow one before anything is learned: smaller is better."""
BASE = "Retrace"


def read(file: Path) -> dict[tuple[int, float, float], list[dict[str, Any]]]:
    """The rows of each problem: those of finite variance."""
    problems: dict[tuple[int, float, float], list[dict[str, Any]]] = defaultdict(list)
    for row in map(
        json.loads,
        (gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()).decode().splitlines(),
    ):
        if row["variance"] is not None:
            problems[row["problem"], row["gamma"], row["noise"]].append(row)
    return problems


def mean_and_interval(values: list[float]) -> tuple[float, float]:
    """The mean over problems, and half the width of its 95 % interval (Student's t)."""
    n = len(values)
    return float(np.mean(values)), float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n))


def correlations(rows: list[dict[str, Any]], budget: int) -> dict[str, float]:
    """Spearman's correlation of each predictor with the error, over all rules of one problem."""
    errors = [row["errors"][budget] for row in rows]
    return {name: _rank_correlation([f(r) for r in rows], errors) for name, f in PREDICTORS.items()}


def _rank_correlation(x: list[float], y: list[float]) -> float:
    """Spearman's: Pearson's of the ranks."""
    return float(np.corrcoef([stats.rankdata(each) for each in (x, y)])[0, 1])  # pyright: ignore[reportAttributeAccessIssue]


def best(rows: list[dict[str, Any]], budget: int) -> dict[str, float]:
    """The least error of each family over its number, as a share of that of Retrace."""
    least: dict[str, float] = {}
    for row in rows:
        least[row["family"]] = min(least.get(row["family"], np.inf), row["errors"][budget])
    return {family: error / least[BASE] for family, error in least.items()}


def main() -> None:
    """Write the table and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    problems = read(arguments.file)
    cells: dict[Cell, dict[str, list[dict[str, float]]]] = defaultdict(lambda: {"r": [], "best": []})
    for (_, gamma, noise), rows in problems.items():
        for i in range(len(BUDGETS)):
            cells[gamma, noise, i]["r"].append(correlations(rows, i))
            cells[gamma, noise, i]["best"].append(best(rows, i))
    families = list(next(iter(cells.values()))["best"][0])
    lines = [
        "| γ | noise | segments | " + " | ".join(f for f in families if f != BASE) + " |",
        "|---" * (2 + len(families)) + "|",
    ]
    for (gamma, noise, i), of in sorted(cells.items()):
        shares = [mean_and_interval([each[f] for each in of["best"]]) for f in families if f != BASE]
        texts = [f"{mean:.3f} ± {half:.3f}" for mean, half in shares]
        lines.append(f"| {gamma} | {noise:g} | {BUDGETS[i]} | " + " | ".join(texts) + " |")
    table = "\n".join(lines) + "\n"
    print(table)
    if arguments.table:
        arguments.table.write_text(table)
    if arguments.figure:
        draw(cells, arguments.figure)


def draw(cells: dict[Cell, dict[str, list[dict[str, float]]]], file: Path) -> None:
    """How well each predictor orders the rules, by length of training: a panel for each γ and noise."""
    import matplotlib.pyplot as plt

    gammas, noises = (sorted({cell[k] for cell in cells}) for k in range(2))
    figure, axes = plt.subplots(
        len(gammas), len(noises), figsize=(9, 5), sharex=True, sharey=True, layout="constrained"
    )
    for row, gamma in zip(axes, gammas, strict=True):
        for panel, noise in zip(row, noises, strict=True):
            for (name, _), marker in zip(PREDICTORS.items(), "os^", strict=True):
                points = [
                    mean_and_interval([e[name] for e in cells[gamma, noise, i]["r"]]) for i in range(len(BUDGETS))
                ]
                mean, half = np.array(points).T
                panel.errorbar(BUDGETS, mean, half, marker=marker, ms=4, lw=1.3, capsize=2, label=name)
            panel.axhline(0, color="0.6", lw=0.6)
            panel.set_xscale("log")
            panel.set_xticks(BUDGETS, [str(b) for b in BUDGETS])
            panel.set_title(f"γ = {gamma}, noise {noise:g}", fontsize=9)
            panel.spines[["top", "right"]].set_visible(False)
    figure.supylabel("rank correlation with the error", fontsize=9)
    figure.supxlabel("segments of training", fontsize=9)
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False, fontsize=9
    )
    figure.savefig(file, dpi=130)


if __name__ == "__main__":
    main()
