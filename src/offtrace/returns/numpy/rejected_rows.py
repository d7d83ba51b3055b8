"""Which decisions are kept, on NumPy arrays in float64, by estimates of KL(μ, π) of a decision or of a sequence."""

from __future__ import annotations

import warnings

import numpy as np

from offtrace.returns.numpy.read_steps import probabilities
from offtrace.returns.numpy.weights import Sequences, sequences, trajectory
from offtrace.returns.weights.decisions import Criterion, Decisions, estimate
from offtrace.trajectory import first_index, spell


def decisions_of(given: Decisions[np.ndarray], *, never_drawn: bool = False) -> tuple[np.ndarray, Sequences]:
    """log ρ of each decision, [N], checked, and where its sequences begin.

    With `never_drawn` a log μ of −∞ at a decision is no error, and log ρ is NaN there.
    """
    never = _never_drawn(given)
    if never_drawn and never.any():
        given = given._replace(log_mu=np.where(never, 0.0, given.arrays()["log_mu"]))
    x = trajectory(given, ())
    probabilities(x, ("rho",))  # an error where one is bad
    rows = sequences(np.ones(x.terminated.shape, bool) if x.valid is None else x.valid, x.pair)
    if not len(rows.rows):
        raise ValueError("mask has no decision in any row: it must be true at the steps whose actions were chosen by μ")
    log_ratio = np.subtract(rows.of(x.read("log_pi")), rows.of(x.read("log_mu")), dtype=np.float64)
    return np.where(rows.of(np.atleast_2d(never)), np.nan, log_ratio), rows


def _never_drawn(given: Decisions[np.ndarray]) -> np.ndarray:
    """Whether an action was taken that μ never takes, by log_mu."""
    never = np.isneginf(given.arrays()["log_mu"])
    return never if given.mask is None else never & (given.mask != 0)


def statistic(criterion: Criterion, log_ratio: np.ndarray, rows: Sequences) -> np.ndarray:
    """What the criterion looks at: a number for each decision, [N], or for each sequence, [S]."""
    with np.errstate(over="ignore"):  # k3 of an enormous ratio is infinite, and rejected
        value = estimate(np, criterion.k, log_ratio)
        if criterion.over == "token":
            return value
        if criterion.over == "max":
            return np.maximum.reduceat(value, rows.starts)
        total = np.add.reduceat(value, rows.starts)
        return total / rows.lengths if criterion.over == "mean" else total


def keep(criteria: tuple[Criterion, ...], given: Decisions[np.ndarray]) -> np.ndarray:
    """Whether each decision passes all criteria; False where there is no decision. What is not a number passes none."""
    if given.mask is not None and not given.mask.any():
        return np.zeros(given.shape, bool)
    never = _never_drawn(given)
    if never.any():
        warnings.warn(
            f"log_mu is −inf at {never.sum()} decision(s), first at index {spell(first_index(never))}: that action was taken, so "
            "its probability under μ was not 0. Such decisions are rejected, and sequences with one where a sequence is judged",
            stacklevel=4,
        )
    log_ratio, rows = decisions_of(given, never_drawn=True)
    out = np.zeros(given.shape if len(given.shape) == 2 else (1, *given.shape), bool)
    passed = np.ones(len(log_ratio), bool)
    for criterion in criteria:
        value = statistic(criterion, log_ratio, rows)
        inside = (value >= criterion.lower) & (value <= criterion.upper)
        passed &= inside if criterion.over == "token" else rows.spread(inside)
    out[rows.rows, rows.steps] = passed
    return out.reshape(given.shape)
