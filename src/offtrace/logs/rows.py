"""The rows of a result: estimates with intervals, which are wider by what is known to be missing, and with their checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs]

from offtrace._shared.number_text import number
from offtrace.logs.checks import Check, beyond_cuts
from offtrace.logs.container import take
from offtrace.logs.evidence import Evidence
from offtrace.logs.fit import fit
from offtrace.logs.importance import kish
from offtrace.logs.intervals import bootstrap, by_cluster
from offtrace.logs.operator import Sampled
from offtrace.logs.registry import ESTIMATORS, IMPORTANCE, MU, Estimator
from offtrace.logs.result import Row
from offtrace.logs.support import way_out

DROPPED = 0.05
"""The share of dropped episodes from which on no estimator passes its checks."""


def rows_of(
    estimates: dict[str, tuple[float, np.ndarray]], evidence: Evidence, confidence: float, resamples: int, seed: int
) -> list[Row]:
    """Return the estimates with bootstrap intervals of what episodes contribute, all from the same weights of episodes."""
    columns = np.column_stack([x for _, x in estimates.values()])
    finite = np.array([np.isfinite(x).all() for x in columns.T])
    columns = np.where(finite, columns, 0.0)
    seen, m = evidence.observed, columns.shape[1]
    both = by_cluster(np.hstack([columns, columns - seen.returns[:, None]]), evidence.cluster)
    low, high = bootstrap(both, confidence, resamples, seed)
    rows: list[Row] = []
    for j, (name, (value, x)) in enumerate(estimates.items()):
        title = ESTIMATORS[name].titled(evidence.sampled.trace)
        if not finite[j]:  # a product of ratios that overflows, or a fit that did not settle
            nan = float("nan")
            rows.append(Row(name, title, value, nan, nan, nan, nan, nan))
            continue
        x = both[:, j]
        d = x - x.mean()
        share = float(np.abs(d).max() / np.abs(d).sum()) if d.any() else float("nan")
        error = float(x.std() / np.sqrt(len(x)))
        row = Row(name, title, value, error, float(low[j]), float(high[j]), kish(d), share)
        if evidence.starts.own:
            row = replace(row, gain=value - seen.estimate, gain_low=float(low[m + j]), gain_high=float(high[m + j]))
        rows.append(row)
    return rows


def checked(row: Row, estimate: tuple[float, np.ndarray], evidence: Evidence) -> Row:
    """The row with its checks, and with an interval only where there can be one, of values that can be."""
    entry = ESTIMATORS[row.estimator]
    row = _widened(row, entry, evidence)
    allowed, seen = evidence.allowed, evidence.observed
    checks = [check for each in entry.checks if (check := each(evidence, row)) is not None]
    if (of_kernel := _of_kernel(row, estimate, entry, evidence)) is not None:
        check, less, more = of_kernel
        checks.append(check)
        row = _wider(row, less, more)
    if evidence.model is not None:  # what a model of features misses of μ, it may miss of π
        miss = max((abs(check.number - seen.estimate) for check in checks if check.kind == "V(μ)"), default=0.0)
        row = _wider(row, miss, miss)
    if not np.isfinite(row.estimate) and not any(check.kind == "settled" for check in checks):
        nothing = "it is not defined, since at some step no episode has any weight"
        words = nothing if np.isnan(row.estimate) else "the products of ratios overflow"
        checks.append(Check("finite", row.estimate, words, True))
    if entry.operator is None and row.standard_error == 0:
        words = "all episodes contribute the same, so that it has no interval"
        checks.append(Check("spread", 0.0, words, True))
    if (report := evidence.logs.report) is not None and report.dropped:
        words = report.loss.partition(":")[0]  # the rest is in the warnings
        checks.append(Check("dropped", report.dropped, words, failed=report.dropped > DROPPED * report.episodes))
    row = replace(row, low=max(row.low, allowed.least), high=min(row.high, allowed.most))
    least, most = allowed.least - seen.high, allowed.most - seen.low
    row = replace(row, gain_low=max(row.gain_low, least), gain_high=min(row.gain_high, most))
    return replace(row, checks=tuple(checks))


def without_failed_intervals(rows: list[Row]) -> list[Row]:
    """The rows; an estimate that fails a check has no interval."""
    nan = float("nan")
    none = {"low": nan, "high": nan, "gain_low": nan, "gain_high": nan}
    return [replace(row, **none) if row.failed or not row.low <= row.high else row for row in rows]


def _of_kernel(
    row: Row, estimate: tuple[float, np.ndarray], entry: Estimator, evidence: Evidence
) -> tuple[Check, float, float] | None:
    """How far a kernel moves an estimate, and how much lower and higher the value without it may therefore be.

    The bias is about c·h², so that it is twice what half of h² takes away, give or take a standard error of that.
    """
    if evidence.narrower is None or MU not in entry.needs or np.isnan(row.estimate):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        value, x = entry.function(evidence.narrower)
        bias = 2 * (row.estimate - value)
        error = 2 * float((estimate[1] - x).std() / np.sqrt(len(x)))
    if not np.isfinite([bias, error]).all():
        return None
    failed = abs(bias) > max((row.high - row.low) / 2, 2 * error)
    words = f"{evidence.policy.kernel} moves it by about {number(bias)} (± {number(2 * error)})"
    words += ", which is more than its interval has: more episodes allow a smaller one" if failed else ""
    return Check("kernel", bias, words, failed), max(error + bias, 0.0), max(error - bias, 0.0)


def _widened(row: Row, entry: Estimator, evidence: Evidence) -> Row:
    """The interval, wider by what is rounded and, of a table, by what pairs that were never logged could be worth."""
    less = more = 1e-8 * abs(row.estimate) + 1e-12
    if entry.operator is not None and evidence.logs.tabular and (evidence.model is None or evidence.step is not None):
        share, taken_for = way_out(evidence, evidence.fit_of(entry.operator(evidence)))
        if share:
            less += taken_for - share * evidence.allowed.least
            more += share * evidence.allowed.most - taken_for
    if entry.family == IMPORTANCE and (left := beyond_cuts(evidence)):  # what is left out may be worth what can be
        less -= left * evidence.allowed.least
        more += left * evidence.allowed.most
    return _wider(row, less, more)


def _wider(row: Row, less: float, more: float) -> Row:
    low, high, gain_low, gain_high = row.low - less, row.high + more, row.gain_low - less, row.gain_high + more
    return replace(row, low=low, high=high, gain_low=gain_low, gain_high=gain_high)


def refitted(
    row: Row,
    sampled: Sampled,
    evidence: Evidence,
    confidence: float,
    refits: int,
    seed: int,
    tell: Callable[[str, int], None],
) -> Row:
    """The row of a regressor, whose pull by each episode is not known: Student's interval from refits to episodes drawn again."""
    if refits and sampled.trace.shape is not None:
        raise ValueError("a λ for each step of these logs does not fit episodes drawn again: give refits=0")
    rng, E, starts = np.random.default_rng(seed), sampled.logs.episodes, evidence.starts
    values: list[float] = []
    gains: list[float] = []
    for i in range(refits):
        tell(f"{row.estimator}: refit {i + 1} of {refits}", 0)
        drawn = rng.integers(0, E, E)
        logs = take(sampled.logs, drawn)
        states = logs.state[logs.first_steps] if starts.own else starts.state
        weight = np.full(E, 1 / E) if starts.own else starts.weight
        values.append(float(weight @ fit(replace(sampled, logs=logs), evidence.model).values(states)))
        gains.append(values[-1] - float(evidence.observed.returns[drawn].mean()))
    nan = float("nan")
    t = float(stdtrit(refits - 1, (1 + confidence) / 2)) if refits > 1 else nan
    error, spread = (float(np.std(x, ddof=1)) if refits > 1 else nan for x in (values, gains))
    return replace(
        row, standard_error=error, low=row.estimate - t * error, high=row.estimate + t * error, effective=nan, largest=nan,
        gain_low=row.gain - t * spread, gain_high=row.gain + t * spread,
    )  # fmt: skip
