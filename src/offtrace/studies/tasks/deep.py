"""Deep agents as units of work: all λ's and seeds of one (game, trace, age) side by side, in one program.

Nothing here needs polars or rich: a machine that only computes may lack them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from offtrace.studies.fields import StudyError
from offtrace.studies.plan import Job
from offtrace.studies.tasks.tabular import Columns
from offtrace.studies.traces import configured, make

POINTS = 50
"""The largest number of points in the curve of a run."""
LAST = 0.1
"""The share of the frames at the end over which the metric "return" is taken."""

SAVE_EVERY = 60.0
"""Seconds between two checkpoints of a unit."""


def run(job: Job) -> tuple[Columns, Columns]:
    """Rows and curves of a unit."""
    from offtrace.deep import train

    parameters = json.loads(job.unit.parameters or "{}")
    traces = [make(job.unit.trace, parameters, lam) for lam in job.lams]
    seeds = list(range(job.first, job.first + job.count))
    config = configured(job.protocol, job.unit.environment, traces[0], job.unit.age or 0, parameters)
    each = [trace for trace in traces for _ in seeds]
    trained = train(
        config, seeds * len(traces), _folder(job, config.game), traces=each,
        progress=False, go_on=True, logs=False, save_every=SAVE_EVERY,
    )  # fmt: skip
    if not trained.finished:
        raise StudyError("the unit was interrupted")
    lams = np.array([np.nan if lam is None else lam for lam in job.lams])
    reports = trained.curve.reshape(-1, len(each))  # slot by slot: a seed is there once for each λ
    return to_columns(reports, np.repeat(lams, len(seeds)), np.tile(seeds, len(lams)), job.metric)


def _folder(job: Job, game: str) -> Path | None:
    """The folder of a unit's checkpoints, from which it resumes after it was killed; None if it must start again.

    It must start again if the records are on another machine, or if it is a Gymnasium game: that would resume with new episodes,
    and a result must not depend on when a worker was killed. Checkpoints that are damaged are removed.
    """
    folder = Path(job.unfinished)
    if not job.unfinished or game.startswith("gym/") or not folder.parents[1].is_dir():
        return None
    from offtrace.deep import CheckpointError, checkpoints

    for path in checkpoints.in_folder(folder):
        try:
            checkpoints.require_whole(path)
        except CheckpointError:
            path.unlink()
    return folder


def to_columns(reports: np.ndarray, lam: np.ndarray, seed: np.ndarray, metric: str) -> tuple[Columns, Columns]:
    """Rows and curves from the reports [times, runs] of `deep.train`, at equal distances in frames.

    A point of a curve is the mean return of the episodes that ended since the point before; where none did, it stays as it was,
    and before the first end it is what that gives. "return" is the mean of the episodes that ended in the last tenth of the
    frames, or of those that ended last; "mean return" is the mean of the curve. A run whose loss is not finite has diverged: its
    value is NaN, and so is its curve from there on.
    """
    diverged = np.logical_or.accumulate(~np.isfinite(reports["loss"]))
    steps, n = reports["frames"][:, 0], reports["episodes"]
    total = np.nan_to_num(reports["return"]) * n
    blocks = np.array_split(np.arange(len(reports)), min(POINTS, len(reports)))
    thin = np.stack(
        [_carried([total[b, i].sum() for b in blocks], [n[b, i].sum() for b in blocks]) for i in range(n.shape[1])]
    )
    thin = np.where(np.stack([diverged[b[-1]] for b in blocks], axis=1), np.nan, thin)
    if metric == "mean return":
        value = np.stack([_carried(total[:, i], n[:, i]) for i in range(n.shape[1])]).mean(axis=1)
    else:
        late = steps > (1.0 - LAST) * steps[-1]
        last = np.stack([_carried(total[:, i], n[:, i])[-1] for i in range(n.shape[1])])
        ended = n[late].sum(axis=0)
        value = np.where(ended > 0, total[late].sum(axis=0) / np.maximum(ended, 1), last)
    rows = {
        "seed": seed.astype(np.int64),
        "lam": lam,
        "value": np.where(diverged[-1], np.nan, value),
        "episodes": n.sum(axis=0).astype(np.int64),
        "diverged": diverged[-1],
    }
    runs, points = thin.shape
    none = np.full(runs * points, np.nan)
    curve = {
        "seed": np.repeat(rows["seed"], points),
        "lam": np.repeat(lam, points),
        "step": np.tile([steps[b[-1]] for b in blocks], runs).astype(np.int64),
        "mean": thin.ravel(),
        "low": none,
        "high": none,
        "n": np.ones(runs * points, dtype=np.int64),
    }
    return rows, curve


def _carried(total: ArrayLike, n: ArrayLike) -> np.ndarray:
    """total / n; where n is 0 what was before, or, at the beginning, what comes first; NaN if there is nothing."""
    totals, counts = np.asarray(total, dtype=float), np.asarray(n)
    known = np.flatnonzero(counts)
    if not len(known):
        return np.full(len(counts), np.nan)
    at = known[np.maximum(np.searchsorted(known, np.arange(len(counts)), side="right") - 1, 0)]
    return totals[at] / counts[at]
