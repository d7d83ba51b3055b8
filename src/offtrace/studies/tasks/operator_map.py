"""The task "map": the exact operator, its contraction, the variance of the sampled correction, and the bias."""

from __future__ import annotations

import math

import numpy as np

from offtrace.operators import Operator, uncorrected
from offtrace.operators.uncorrected_operators import uncorrected_variance
from offtrace.studies import environments, policies
from offtrace.studies.plan import Job
from offtrace.studies.tasks.tabular import Columns, trace_of


def run(job: Job) -> tuple[Columns, Columns]:
    """Rows of a unit; there is no curve."""
    points = [_point(job, seed) for seed in range(job.first, job.first + job.count)]
    lower, upper, variance, bias = np.array(points).T
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
    mdp = environments.mdp(label, seed if environments.varies(label) else None)
    pi, mu = (policies.policy(p, mdp, rng) for p in (job.protocol.target, job.protocol.behavior))
    Q, live, trace = rng.standard_normal((mdp.S, mdp.A)), ~np.asarray(mdp.terminal, dtype=bool), trace_of(job)
    wanted = mdp.q(pi)
    if trace.uncorrected:
        operator = uncorrected(trace, mdp, pi, mu)
        contraction, reached = operator.contraction, operator.fixed_point
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
