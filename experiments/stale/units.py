"""Units of the grid: runs side by side in one program, put into rows and curves."""

from __future__ import annotations

import json

import numpy as np

from stale.grid import Grid, Unit, token_task
from stale.training import Measured, Runs, Setting, train
from stale.transformer import Shape
from stale.weighting import Weighting

POINTS = 50
"""The largest number of points in the curve of a run."""
LAST = 0.1
"""The share of the updates at the end over which "success" and "reward" are taken."""
LEARNED = 0.1
"""A run has learned something if its reward has ever risen by so much, over a tenth of the updates."""
Columns = dict[str, np.ndarray]


def train_units(grid: Grid, units: list[Unit], at_least: int = 0) -> list[tuple[Columns, Columns]]:
    """Rows and curves of units of one phase and environment, which may differ in weighting, step size and age, in one program.

    With `at_least`, so many runs are computed: what fewer runs leave over is filled, so that one program serves all.
    """
    p, seeds = grid.protocol, grid.seeds_of(units[0].phase)
    task, precision, top_p = token_task(units[0].environment)
    shape = Shape(p["layers"], p["width"], p["heads"])
    clip, oldest = p.get("clip", 1.0), max(grid.ages)
    setting = Setting(task, shape, p["updates"], p["prompts"], p["answers"], oldest, precision, top_p, clip)
    weightings = [Weighting.made(title, json.loads(spelt), lam) for title, spelt, lam in grid.weightings]
    runs = [(seed, unit.alpha, unit.age, grid.weightings.index(unit.weighting)) for unit in units for seed in seeds]
    runs += runs[-1:] * (at_least - len(runs))
    seed, alpha, age, which = zip(*runs, strict=True)
    columns = Runs(np.array(seed, np.uint32), np.array(alpha, np.float32), np.array(age), np.array(which))
    measured = train(setting, weightings, columns)
    found: list[tuple[Columns, Columns]] = []
    for i in range(len(units)):
        own = slice(i * len(seeds), (i + 1) * len(seeds))
        found.append(tidy(Measured(*(a[own] for a in measured)), columns.seed[own], p["prompts"] * p["answers"]))
    return found


def tidy(measured: Measured, seed: np.ndarray, batch: int) -> tuple[Columns, Columns]:
    """Rows and curves from what was measured at each update, [runs, updates].

    Success and reward are means over the last tenth of the updates. A run has diverged if a gradient was not finite: from there
    on its policy answers nothing, and its success and reward are 0. A run has collapsed if it has lost more than half of what
    its reward had gained: the mean of its last tenth against the best tenth, both above the first.
    """
    runs, updates = measured.reward.shape
    finite = np.logical_and.accumulate(measured.finite > 0, axis=1)
    success, reward = (np.where(finite, a, 0.0) for a in (measured.success, measured.reward))
    late = slice(updates - max(1, round(LAST * updates)), None)
    tenths = np.stack([part.mean(axis=1) for part in np.array_split(reward, 10, axis=1)], axis=1)
    gained, best = tenths[:, -1] - tenths[:, 0], tenths.max(axis=1) - tenths[:, 0]
    rows = {
        "seed": seed.astype(np.int64),
        "value": reward[:, late].mean(axis=1),
        "episodes": np.full(runs, updates * batch, np.int64),
        "diverged": ~finite[:, -1],
        "collapsed": (best > LEARNED) & (gained < 0.5 * best),
        "success": success[:, late].mean(axis=1),
        "reward": reward[:, late].mean(axis=1),
        **{name: _mean(getattr(measured, name)[:, late]) for name in ("entropy", "ess", "kl")},
    }
    blocks = np.array_split(np.arange(updates), min(POINTS, updates))

    def thin(of_runs: np.ndarray) -> np.ndarray:
        return np.stack([_mean(of_runs[:, block]) for block in blocks], axis=1).ravel()

    curve = {
        "seed": np.repeat(rows["seed"], len(blocks)),
        "step": np.tile([block[-1] + 1 for block in blocks], runs).astype(np.int64),
        "success": thin(success),
        "reward": thin(reward),
        **{name: thin(getattr(measured, name)) for name in ("entropy", "ess", "kl")},
    }
    return rows, curve


def _mean(of_runs: np.ndarray) -> np.ndarray:
    """Return the mean over updates; NaN where one of them is not finite."""
    mean = of_runs.astype(float).mean(axis=1)
    return np.where(np.isfinite(mean), mean, np.nan)
