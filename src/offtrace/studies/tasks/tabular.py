"""The tasks "control", "evaluation" and "replay": learners with tables, all seeds of a unit at once."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from offtrace import learners
from offtrace._shared.compile_cache import cached_njit
from offtrace.learners import published
from offtrace.learners.result import Learned
from offtrace.mdps import MDP
from offtrace.studies import environments, policies
from offtrace.studies.fields import Table
from offtrace.studies.plan import Job
from offtrace.studies.traces import make

POINTS = 100
"""Of a curve, in addition to its begin."""
Columns = dict[str, np.ndarray]


def trace_of(job: Job) -> Any:
    """The trace, or the learning method, of a job."""
    return make(job.unit.trace, json.loads(job.unit.parameters or "{}"), job.unit.lam)


def _arguments(job: Job) -> Table:
    p = job.protocol
    memory = learners.Replay(p.capacity, p.every, p.batch, p.length)
    return {
        "alpha": job.unit.alpha,
        "steps": p.steps,
        "seed": job.first,
        "seeds": job.count,
        "update": memory if p.update == "replay" else p.update,
        "q0": p.q0,
        "spread": p.spread,
        "limit": p.limit or None,
        "threads": 1,
        "progress": False,
    }


def control(job: Job) -> tuple[Columns, Columns]:
    """Rows and curve of a unit of the task "control"."""
    p, greedy = job.protocol, learners.EpsilonGreedy
    by_error = job.metric.endswith("rms error")
    trace = trace_of(job)
    learned = learners.control(
        trace,
        environments.mdp(job.unit.environment),
        behavior=greedy(p.behavior).exploring(p.explore),
        target=None if getattr(trace, "on_policy", False) else greedy(p.target),
        points=POINTS if by_error else 1,
        evaluation=None if by_error else learners.Evaluation(greedy(p.evaluation), every=1, limit=p.evaluation_limit),
        **_arguments(job),
    )
    if by_error:
        return _by_error(job, learned)
    marks = np.unique(np.round(np.linspace(0, p.steps, POINTS + 1)).astype(np.int64))
    curves = np.empty((job.count, len(marks)))
    for i, (at, returns) in enumerate(learned.evaluations):
        moving_mean(at, returns, p.window, marks, curves[i])
    if job.metric == "return":
        value = curves[:, -1].copy()
    else:
        value = np.array([published.area(at, returns, p.steps, p.window) for at, returns in learned.evaluations])
    return _rows(job, learned, value), _curve(marks, curves)


def evaluate(job: Job) -> tuple[Columns, Columns]:
    """Rows and curve of a unit of the tasks "evaluation" and "replay"."""
    mdp, p, unit = environments.mdp(job.unit.environment), job.protocol, job.unit
    if job.task == "replay":
        how = unit.environment, p.updates, p.rate, p.temperature
        now, then = policies.ageing(*how, age=0), policies.ageing(*how, age=unit.age or 0)
    else:
        now, then = policies.policy(p.target, mdp), policies.policy(p.behavior, mdp)
    arguments = {"target": now, "behavior": then, "certify": False, **_arguments(job)}
    if job.metric == "weighted rms error":
        return _by_weighted_error(job, mdp, now, arguments)
    return _by_error(job, learners.evaluate(trace_of(job), mdp, points=POINTS, **arguments))


def _by_weighted_error(job: Job, mdp: MDP, pi: np.ndarray, arguments: Table) -> tuple[Columns, Columns]:
    """Learners give their Q at the end only; but a run of half the steps is the first half of the run."""
    weights, errors = policies.visits(mdp, pi), []
    truth: np.ndarray = mdp.q(pi)
    marks = np.unique([max(1, job.protocol.steps // part) for part in (8, 4, 2, 1)])
    runs = [learners.evaluate(trace_of(job), mdp, points=1, **{**arguments, "steps": int(steps)}) for steps in marks]
    for learned in runs:
        if learned.features.states:
            error = np.sqrt((weights.sum(axis=1) * (learned.V - (pi * truth).sum(axis=1)) ** 2).sum(axis=1))
        else:
            error = np.sqrt((weights * (learned.Q - truth) ** 2).sum(axis=(1, 2)))
        errors.append(np.where(learned.diverged, np.inf, error))
    return _rows(job, runs[-1], errors[-1]), _curve(marks, np.stack(errors, axis=1))


def _by_error(job: Job, learned: Learned) -> tuple[Columns, Columns]:
    error = learned.curve.error
    value = error[:, -1].copy() if job.metric == "rms error" else error.mean(axis=1)
    return _rows(job, learned, value), _curve(learned.curve.steps[0], error)


def _rows(job: Job, learned: Learned, value: np.ndarray) -> Columns:
    return {
        "seed": np.arange(job.first, job.first + job.count, dtype=np.int64),
        "value": value,
        "episodes": learned.episodes.astype(np.int64),
        "diverged": np.atleast_1d(learned.diverged),
    }


def _curve(marks: np.ndarray, curves: np.ndarray) -> Columns:
    """The mean over the seeds, and its 95% interval by the normal approximation."""
    n, mean = len(curves), curves.mean(axis=0)
    half = 1.96 * curves.std(axis=0, ddof=1) / math.sqrt(n) if n > 1 else np.full(len(marks), np.nan)
    return {
        "step": np.asarray(marks, dtype=np.int64),
        "mean": mean,
        "low": mean - half,
        "high": mean + half,
        "n": np.full(len(marks), n, dtype=np.int64),
    }


@cached_njit(nogil=True)
def moving_mean(at: np.ndarray, returns: np.ndarray, window: int, marks: np.ndarray, out: np.ndarray) -> None:
    """The curve under which `protocols.area` takes the area, at the steps `marks`."""
    before, y, running, m = 0, 0.0, 0.0, 0
    for i in range(len(at)):
        running += returns[i]
        if i >= window:
            running -= returns[i - window]
        new, width = running / min(i + 2, window), at[i] - before
        while m < len(marks) and marks[m] < at[i]:
            out[m] = y if width == 1 else y + (new - y) * (marks[m] - before) / (width - 1)
            m += 1
        before, y = at[i], new
    out[m:] = y
