"""A unit of work, run: the learners or the operator are called, and what comes out is put into columns.

The result depends on the job alone: not on the worker, nor on what it ran before.
"""

from __future__ import annotations

import importlib
import json
import math
import time
import warnings
from functools import cache
from typing import Any

import numpy as np

from offtrace import learners
from offtrace._shared.compile_cache import cached_njit
from offtrace.learners import published as published
from offtrace.learners.result import Learned
from offtrace.mdps import MDP
from offtrace.operators import Operator, uncorrected
from offtrace.operators.uncorrected_operators import uncorrected_variance
from offtrace.studies import code_digest, declared_policies, declared_traces, named_environments
from offtrace.studies.plan import Job, Outcome

POINTS = 100
"""Of a curve, beside its begin."""


def run(job: Job) -> Outcome:
    """Run a unit."""
    for module in job.modules:
        importlib.import_module(module)
    if job.code and (here := _code(job.task, job.modules)) != job.code:
        raise RuntimeError(
            f"this worker has other code ({here[:12]}) than the study was begun with ({job.code[:12]}): the same files of "
            f"offtrace and of the modules {list(job.modules)} must be there, and not change while it runs"
        )
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a learner that diverges is a row that says so
        with np.errstate(all="ignore"):
            rows, curve = TASKS[job.task](job)
            score = float(np.mean(rows["value"]))
    return Outcome(job.unit, rows, curve, score, time.perf_counter() - started)


@cache
def _code(task: str, modules: tuple[str, ...]) -> str:
    return code_digest.of(task, modules).digest


def _arguments(job: Job) -> named_environments.Arguments:
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


def _trace(job: Job) -> Any:
    return _traces(job)[0]


def _traces(job: Job) -> list[Any]:
    """The traces, or learning methods, of a job, one for each λ."""
    return [declared_traces.make(job.unit.trace, json.loads(job.unit.parameters or "{}"), lam) for lam in job.lams]


def _control(job: Job) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    p, greedy = job.protocol, learners.EpsilonGreedy
    by_error = job.metric.endswith("rms error")
    trace = _trace(job)
    learned = learners.control(
        trace,
        named_environments.mdp(job.unit.environment),
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


def _evaluate(job: Job) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    mdp, p, unit = named_environments.mdp(job.unit.environment), job.protocol, job.unit
    if job.task == "replay":
        now, then = (
            declared_policies.ageing(unit.environment, p.updates, p.rate, p.temperature, age)
            for age in (0, unit.age or 0)
        )
    else:
        now, then = declared_policies.policy(p.target, mdp), declared_policies.policy(p.behavior, mdp)
    arguments = {"target": now, "behavior": then, "certify": False, **_arguments(job)}
    if job.metric == "weighted rms error":
        return _by_weighted_error(job, mdp, now, arguments)
    return _by_error(job, learners.evaluate(_trace(job), mdp, points=POINTS, **arguments))


def _by_weighted_error(
    job: Job, mdp: MDP, pi: np.ndarray, arguments: named_environments.Arguments
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Learners give their Q at the end only; but a run of half the steps is the first half of the run."""
    weights, errors = declared_policies.visits(mdp, pi), []
    truth: np.ndarray = mdp.q(pi)
    marks = np.unique([max(1, job.protocol.steps // part) for part in (8, 4, 2, 1)])
    runs = [learners.evaluate(_trace(job), mdp, points=1, **{**arguments, "steps": int(steps)}) for steps in marks]
    for learned in runs:
        if learned.features.states:
            error = np.sqrt((weights.sum(axis=1) * (learned.V - (pi * truth).sum(axis=1)) ** 2).sum(axis=1))
        else:
            error = np.sqrt((weights * (learned.Q - truth) ** 2).sum(axis=(1, 2)))
        errors.append(np.where(learned.diverged, np.inf, error))
    return _rows(job, runs[-1], errors[-1]), _curve(marks, np.stack(errors, axis=1))


def _by_error(job: Job, learned: Learned) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    error = learned.curve.error
    value = error[:, -1].copy() if job.metric == "rms error" else error.mean(axis=1)
    return _rows(job, learned, value), _curve(learned.curve.steps[0], error)


def _rows(job: Job, learned: Learned, value: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "seed": np.arange(job.first, job.first + job.count, dtype=np.int64),
        "value": value,
        "episodes": learned.episodes.astype(np.int64),
        "diverged": np.atleast_1d(learned.diverged),
    }


def _curve(marks: np.ndarray, curves: np.ndarray) -> dict[str, np.ndarray]:
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


def _map(job: Job) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    found = [_point(job, seed) for seed in range(job.first, job.first + job.count)]
    lower, upper, variance, bias = np.array(found).T
    rows = {
        "seed": np.arange(job.first, job.first + job.count, dtype=np.int64),
        "value": 0.5 * lower + 0.5 * upper,
        "contraction_lower": lower,
        "contraction_upper": upper,
        "variance": variance,
        "bias": bias,
    }
    return rows, {}


def _point(job: Job, seed: int) -> tuple[float, float, float, float]:
    """Bounds of the contraction, the mean variance, the bias: for the MDP, the policies and the Q of one seed."""
    rng = np.random.default_rng(seed)
    label = job.unit.environment
    mdp = named_environments.mdp(label, seed if named_environments.varies(label) else None)
    pi, mu = (declared_policies.policy(p, mdp, rng) for p in (job.protocol.target, job.protocol.behavior))
    Q, live, trace = rng.standard_normal((mdp.S, mdp.A)), ~np.asarray(mdp.terminal, dtype=bool), _trace(job)
    wanted = mdp.q(pi)
    if trace.uncorrected:
        found = uncorrected(trace, mdp, pi, mu)
        contraction, reached = found.contraction, found.fixed_point
        bounds = uncorrected_variance(trace, mdp, pi, mu, Q) or np.full((2, *Q.shape), np.nan)
    else:
        # No budget of seconds: a result must not depend on how fast the machine is.
        op = Operator(trace, mdp, target=pi, behavior=mu, tolerance=job.protocol.tolerance, budget=math.inf)
        contraction, bounds = op.contraction, op.variance_bounds(Q)
        target = np.where(live[:, None], op.setting.evaluated, pi)
        reached = wanted if np.array_equal(target, pi) else mdp.q(target)
    variance = float(0.5 * bounds[0][live].mean() + 0.5 * bounds[1][live].mean())
    bias = float(np.abs(reached - wanted)[live].max(initial=0.0))
    return contraction.lower, contraction.upper, variance, bias


def _deep(job: Job) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    from offtrace.studies import deep_units

    return deep_units.run(job, _traces(job))


TASKS = {
    "control": _control,
    "evaluation": _evaluate,
    "replay": _evaluate,
    "map": _map,
    "deep": _deep,
}
