"""The successor's control experiment against figures from independent code (tests/reference/bifurcation1_auc.csv)."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import offtrace as ot
from offtrace.learners import bifurcation_auc
from offtrace.learners.published import area

FILE = Path(__file__).parent.parent / "reference" / "bifurcation1_auc.csv"
REFERENCE = list(csv.DictReader(FILE.read_text().splitlines()))
RULES = {
    "Retrace": ot.Retrace,
    "Truncated IS": ot.TruncatedIS,
    "Recursive Retrace": ot.NonMarkovRetrace,
    "RBIS": ot.RBIS,
}


def literal_area(at: np.ndarray, returns: np.ndarray, steps: int, window: int) -> float:
    """The curve point by point."""
    times, values = [0, *at], [0.0, *returns]
    means = [np.mean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]
    curve: list[float] = []
    for i in range(len(times) - 1):
        curve += list(np.linspace(means[i], means[i + 1], num=times[i + 1] - times[i]))
    curve += [float(means[-1])] * (steps + 1 - len(curve))
    return float(np.sum(curve))


@pytest.mark.parametrize("episodes", [0, 1, 4, 30])
def test_area_is_that_of_the_curve(episodes: int) -> None:
    rng = np.random.default_rng(episodes)
    at = np.sort(rng.choice(np.arange(1, 60), size=episodes, replace=False))
    returns = rng.random(episodes)
    assert area(at, returns, 60, window=7) == pytest.approx(literal_area(at, returns, 60, 7), abs=1e-12)


@pytest.mark.parametrize("row", REFERENCE, ids=lambda r: f"{r['algorithm']} {r['lambda']}")
def test_agrees_with_independent_code(row: dict[str, str]) -> None:
    rule = RULES[row["algorithm"]](lam=float(row["lambda"]))
    ours = bifurcation_auc(1, rule, alpha=float(row["alpha"]), seeds=200)
    interval = 1.96 * ours.std(ddof=1) / np.sqrt(len(ours))
    assert abs(ours.mean() - float(row["mean_auc"])) <= np.hypot(interval, float(row["ci95"]))


def test_a_seed_is_a_trial() -> None:
    one = bifurcation_auc(2, ot.RBIS(lam=0.9), alpha=0.5, seeds=3, threads=2)
    assert bifurcation_auc(2, ot.RBIS(lam=0.9), alpha=0.5, seeds=1, seed=2)[0] == one[2]
    assert (one > 0).all()


def test_an_unknown_gridworld() -> None:
    with pytest.raises(ValueError, match="no Bifurcation 5"):
        bifurcation_auc(5, ot.RBIS(), alpha=0.5)
