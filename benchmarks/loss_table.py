"""What each named loss's gradient is off by, exactly, on small token MDPs, for docs/losses.md.

    .venv/bin/python benchmarks/loss_table.py            prints the table
    .venv/bin/python benchmarks/loss_table.py --figure   also draws docs/losses.png

Nothing is sampled: all rows of an MDP are listed. π, π_prox and μ are apart: μ is as of some updates ago, π_prox a quarter of
the way. Advantages are Q^π − V^π.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from offtrace.policy import gradient_moments, losses, token_rows

DOCS = Path(__file__).resolve().parent.parent / "docs"
TOKENS, DRIFTS, TASKS, ROWS = (4, 8, 12), (0.2, 0.8, 1.6), 6, 64
SAME = ("grpo", "dr_grpo")  # as ppo, but for the mean over rows
AGAINST_MU = {"prefix": "prefix, π_prox = μ"}


def cell(name: str, tokens: int, drift: float) -> tuple[float, float, float]:
    """Bias, spread and the alignment of 64 rows, medians over the tasks."""
    found: list[tuple[float, float, float]] = []
    for seed in range(TASKS):
        rows = token_rows(tokens, drift=drift, seed=seed)
        if name in AGAINST_MU:
            rows = replace(rows, log_prox=rows.log_mu)
        g = gradient_moments(rows, name)
        found.append((g.bias, g.spread, g.alignment(ROWS)))
    bias, spread, aligned = np.median(found, axis=0)
    return float(bias), float(spread), float(aligned)


def main() -> None:
    """Print, and draw."""
    columns = [(tokens, drift) for tokens in TOKENS for drift in DRIFTS]
    shown = [name for name in losses() if name not in SAME]
    table = {name: [cell(name, *column) for column in columns] for name in shown}
    heads = " | ".join(f"{tokens} tokens, {drift:g}" for tokens, drift in columns)
    print(f"| loss | {heads} |\n|---|{'---|' * len(columns)}")
    for name, cells in table.items():
        print(f"| {AGAINST_MU.get(name, name)} | " + " | ".join(f"{b:.2f}, **{a:.2f}**" for b, _, a in cells) + " |")
    if "--figure" in sys.argv:
        draw(table, columns)


def draw(table: dict[str, list[tuple[float, float, float]]], columns: list[tuple[int, float]]) -> None:
    """Alignment, a cell for each loss and column."""
    import matplotlib.pyplot as plt

    aligned = np.array([[a for _, _, a in cells] for cells in table.values()])
    order = np.argsort(-aligned.mean(axis=1))
    names = [AGAINST_MU.get(name, name) for name in table]
    figure, axes = plt.subplots(figsize=(8.4, 6.4), layout="constrained")
    image = axes.imshow(aligned[order], cmap="viridis", vmin=min(0.0, float(aligned.min())), vmax=1.0, aspect="auto")
    for y, i in enumerate(order):
        for x, value in enumerate(aligned[i]):
            axes.text(
                x, y, f"{value:.2f}", ha="center", va="center", color="white" if value < 0.7 else "black", fontsize=8
            )
    axes.set(xticks=range(len(columns)), yticks=range(len(names)), yticklabels=[names[i] for i in order])
    axes.set_xticklabels([f"{tokens}\n{drift:g}" for tokens, drift in columns])
    axes.set_xlabel("tokens in a row; distance of π from μ (standard deviation of the logits' difference)")
    axes.set_title("How well the mean gradient of 64 rows points along ∇J")
    figure.colorbar(image, label="alignment")
    figure.savefig(DOCS / "losses.png", dpi=120)


if __name__ == "__main__":
    main()
