"""What each named loss's gradient is off by, exactly, on small token MDPs, for docs/losses.md.

    .venv/bin/python benchmarks/loss_table.py            prints the tables and writes docs/losses_short.inc, losses_long.inc
    .venv/bin/python benchmarks/loss_table.py --figure   also draws docs/losses.png

Nothing is sampled: all rows of an MDP are listed, and long ones counted (`long_losses`). π, π_prox and μ are apart: μ is as of
some updates ago, π_prox a quarter of the way. Advantages are Q^π − V^π.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from long_losses import long_loss
from long_rows import forgetting, remembering

from offtrace.policy import gradient_moments, losses, token_rows

DOCS = Path(__file__).resolve().parent.parent / "docs"
TOKENS, DRIFTS, TASKS, ROWS = (4, 8, 12), (0.2, 0.8, 1.6), 6, 64
LONG = (("forgets", 64), ("forgets", 512), ("remembers", 64))
"""Rows whose context one token in ten sets, and rows whose context is the score so far; and their tokens."""
RATIOS, RARE = (1.05, 1.2), 0.1
"""The ratio π/μ of a token, or its inverse; and how often a token sets the context."""
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


def long_cell(name: str, kind: str, tokens: int, ratio: float) -> tuple[float, float, float]:
    """The same of long rows, counted."""
    automaton = forgetting(ratio, rare=RARE) if kind == "forgets" else remembering(ratio, tokens)
    g = long_loss(automaton, tokens, losses()[name], share=1.0 if name in AGAINST_MU else 0.25)
    return g.bias, g.spread, g.alignment(ROWS)


def as_markdown(table: dict[str, list[tuple[float, float, float]]], heads: list[str]) -> str:
    """A table as Markdown."""
    lines = [f"| loss | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for name, cells in table.items():
        lines.append(
            f"| {AGAINST_MU.get(name, name)} | " + " | ".join(f"{b:.2f}, **{a:.2f}**" for b, _, a in cells) + " |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print and write the tables; draw if asked to."""
    shown = [name for name in losses() if name not in SAME]
    columns = [(tokens, drift) for tokens in TOKENS for drift in DRIFTS]
    table = {name: [cell(name, *column) for column in columns] for name in shown}
    short_rows = as_markdown(table, [f"{tokens} tokens, {drift:g}" for tokens, drift in columns])
    long_columns = [(*rows, ratio) for rows in LONG for ratio in RATIOS]
    long_table = {name: [long_cell(name, *column) for column in long_columns] for name in shown if name != "gmpo"}
    long_rows = as_markdown(long_table, [f"{kind}, {tokens} tokens, {ratio:g}" for kind, tokens, ratio in long_columns])
    print(short_rows, long_rows, sep="\n")
    (DOCS / "losses_short.inc").write_text(short_rows)
    (DOCS / "losses_long.inc").write_text(long_rows)
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
