"""A unit of work, run: the learners or the operator are called, and what comes out is put into columns.

The result depends on the job alone: not on the worker, nor on what it ran before. Nothing here needs polars or rich.
"""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable

import numpy as np

from offtrace.studies import provenance
from offtrace.studies.plan import Job, Outcome
from offtrace.studies.tasks import operator_map, tabular

Columns = dict[str, np.ndarray]


def run(job: Job) -> Outcome:
    """Run a unit."""
    for module in job.modules:
        importlib.import_module(module)
    here = provenance.sources_digest(job.modules, job.files)
    if job.sources and here != job.sources:
        raise RuntimeError(
            f"this worker has other code ({here[:12]}) than the study was begun with ({job.sources[:12]}): the same version of "
            f"offtrace, the modules {list(job.modules)} and the files {list(job.files)} must be there, and not change"
        )
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a learner that diverges is a row that says so
        with np.errstate(all="ignore"):
            rows, curve = TASKS[job.task](job)
            score = float(np.mean(rows["value"]))
    return Outcome(job.unit, rows, curve, score, time.perf_counter() - started)


def _deep(job: Job) -> tuple[Columns, Columns]:
    from offtrace.studies.tasks import deep

    return deep.run(job)


TASKS: dict[str, Callable[[Job], tuple[Columns, Columns]]] = {
    "control": tabular.control,
    "evaluation": tabular.evaluate,
    "replay": tabular.evaluate,
    "map": operator_map.run,
    "deep": _deep,
}
