"""Methods × traces on two counterexamples: which converge, computed and sampled. Writes docs/stability_table.inc for methods.md.

python benchmarks/stability_table.py
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.linalg import expm  # pyright: ignore[reportAttributeAccessIssue]

import offtrace as ot
from offtrace import mdps
from offtrace.learners import Method, StateTraceLearner, follow, method, stability

PAGE = Path(__file__).resolve().parents[1] / "docs" / "stability_table.inc"
METHODS = ("TD", "GTD", "GTD2", "TDRC", "HTD")
ALPHA, STEPS, SEEDS = 0.0002, 200_000, 5


ROWS: dict[str, list[dict[str, np.ndarray]]] = {}


class Task(NamedTuple):
    """An MDP with its policies, features and first weights."""

    title: str
    says: str
    mdp: mdps.MDP
    target: np.ndarray
    behavior: np.ndarray
    features: np.ndarray
    first: np.ndarray


def one_step_to_the_end() -> tuple[mdps.MDP, np.ndarray, np.ndarray, np.ndarray]:
    """Action 0 leads to state 1, action 1 ends the episode: the MDP, π, μ and the features."""
    P = np.zeros((3, 2, 3))
    P[:2, 0, 1] = P[:2, 1, 2] = 1.0
    mdp = mdps.MDP(P, np.zeros((3, 2)), gamma=0.99, start=[1, 0, 0])
    target, behavior = np.array([[0.9, 0.1], [0.5, 0.5], [0.5, 0.5]]), np.array([[0.1, 0.9], [0.1, 0.9], [0.5, 0.5]])
    return mdp, target, behavior, np.array([[1.0], [5.0], [0.0]])


def tasks() -> list[Task]:
    star, two = mdps.baird_star(), mdps.w_to_2w()
    soft = np.where(star[1] > 0, 0.9, 0.1)
    begin = np.array([1.0, 1, 1, 1, 1, 1, 10, 1])
    return [
        Task("The two states w → 2w", "γ = 0.99, `mdps.w_to_2w()`; the first weight is 1.", *two, np.ones(1)),
        Task("Baird's star", "γ = 0.99, `mdps.baird_star()`; first weights (1, 1, 1, 1, 1, 1, 10, 1).", *star, begin),
        Task(
            "Baird's star, with a soft π",
            "As before, but π takes the other action with probability 0.1, so that no ratio is 0: ρ is 6.3 or 0.117, and traces "
            "that were cut may recover.",
            star[0], soft, star[2], star[3], begin,
        ),
        Task(
            "Episodes that end",
            "γ = 0.99. Action 0 leads to state 1, action 1 ends the episode. π(0|s) = 0.9 and 0.5, μ(0|s) = 0.1 in states 0 "
            "and 1, whose features are 1 and 5; the first weight is 1.",
            *one_step_to_the_end(), np.ones(1),
        ),
    ]  # fmt: skip


def traces() -> list[ot.Trace]:
    return [
        *(ot.ImportanceSampling(lam) for lam in (0.0, 0.5, 0.9, 1.0)),
        ot.TreeBackup(0.9),
        ot.Retrace(0.9),
        ot.NonMarkovRetrace(0.9),
        ot.RBIS(0.9),
        ot.TruncatedIS(bound=1.0, lam=0.9),
        ot.Retrace(1.0),
        ot.NonMarkovRetrace(1.0),
        ot.TruncatedIS(bound=1.0, lam=1.0),
    ]


def learner(name: str, trace: ot.Trace, alpha: float) -> Method:
    return StateTraceLearner(trace, alpha=alpha) if name == "TD" else method(name, trace=trace, alpha=alpha)


def predicted(task: Task, made: Method, time: float) -> tuple[float, float]:
    """The largest real part, and what the mean update makes of the size of the values in α · steps = `time`."""
    found = stability(made, task.mdp, features=task.features, target=task.target, behavior=task.behavior)
    begin = np.append(task.first, np.zeros(len(found.matrix) - len(task.first)))
    end = (expm(found.matrix * time) @ begin)[: len(task.first)]
    return found.rate, size(task, end)


def size(task: Task, weights: np.ndarray) -> float:
    """‖Xw‖, against that of the first weights."""
    return float(np.linalg.norm(task.features @ weights) / np.linalg.norm(task.features @ task.first))


def rows(task: Task, steps: int, seeds: int) -> list[dict[str, np.ndarray]]:
    """A row for each seed, the same for all methods."""
    if task.title not in ROWS:
        made = [task.mdp.rollout(task.behavior, seed=seed, steps=steps) for seed in range(seeds)]
        names = ("state", "action", "reward", "next_state", "terminated")
        ROWS[task.title] = [{name: row[name] for name in names} for row in made]
    return ROWS[task.title]


def sampled(task: Task, made: Method, steps: int, seeds: int) -> float:
    """The median over runs of the size of the values after so many steps; ∞ where it is above all floats."""
    found = []
    for given in rows(task, steps, seeds):
        policies = {"target": task.target, "behavior": task.behavior, "gamma": task.mdp.gamma}
        end = follow(made, features=task.features, first=task.first, **given, **policies)[-1]
        found.append(size(task, end) if np.isfinite(end).all() else np.inf)
    return float(np.median(found))


def table(task: Task, steps: int = STEPS, seeds: int = SEEDS) -> list[str]:
    head = "| trace | " + " | ".join(METHODS) + " |"
    lines = [f"### {task.title}", "", task.says, "", head, "|---" * (len(METHODS) + 1) + "|"]
    for trace in traces():
        cells = []
        for name in METHODS:
            made = learner(name, trace, ALPHA)
            rate, mean = predicted(task, made, ALPHA * steps)
            verdict = f"{rate:+.2g}" if rate < 0 else f"**{rate:+.2g}**"
            cells.append(f"{verdict}; {mean:.2g}, {sampled(task, made, steps, seeds):.2g}".replace("inf", "∞"))
        lam = getattr(trace, "lam", None)
        lines.append(f"| {trace.title}, λ = {lam:g} | " + " | ".join(cells) + " |")
    return [*lines, ""]


INTRODUCTION = f"""Made by `python benchmarks/stability_table.py`. Each cell has three numbers.
The first is the largest real part of an eigenvalue of the expected update, computed exactly: below 0 the method converges with
small step sizes, above 0 (in bold) it diverges. The second is what the expected update makes of the size of the values, ‖Xw‖
against that at the beginning, in {STEPS:,} steps with α = {ALPHA} and η = κ = 1. The third is that size in samples, the median of
{SEEDS} runs of the learner itself. Rewards are 0 and V^π = 0 can be held exactly, so that a method that converges ends at 0.
"""


def main() -> None:
    lines = [INTRODUCTION]
    for task in tasks():
        lines += table(task)
    PAGE.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
