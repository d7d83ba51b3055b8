"""From a clue to the smallest trajectory that shows it: one number is 1, all others are 0, and no step is there in vain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from offtrace.testing.calling import Estimator
from offtrace.testing.mistakes import Clue
from offtrace.testing.trials import Input, Quantity, Row, right


class Smallest(NamedTuple):
    """A trajectory [T], and the return of its step k."""

    row: Row
    k: int
    number: Input
    t: int
    """reward[t], own[t] or next_value[t] is 1."""
    got: np.ndarray
    """What the function returns [T]."""
    wanted: np.ndarray


def smallest(estimator: Estimator, row: Row, clue: Clue, quantity: Quantity, near: float) -> Smallest | None:
    """Leave out steps, and make ratios 1, as long as the function stays wrong. None: it is not wrong on a single row."""
    example = _tried(estimator, row, clue.k, clue.number, clue.t, quantity, near)
    shrunk = example
    while shrunk is not None:
        example = shrunk
        shrunk = next(
            filter(None, (_tried(estimator, *less, quantity, near) for less in _smaller(estimator, example))), None
        )
    return example


def _smaller(estimator: Estimator, of: Smallest) -> Iterator[tuple[Row, int, Input, int]]:
    """The rows that have one step less, or one ratio less that is not 1."""
    row, k, t = of.row, of.k, of.t
    if not estimator.rule.per_step:
        for step in reversed(range(row.steps)):
            if step not in (k, t):
                yield row.without(step), k - (step < k), of.number, t - (step < t)
    half = float(np.float32(np.log(0.5)))
    for step in range(row.steps):
        if not estimator.rule.needs_greedy and (row.log_pi[step], row.log_mu[step]) != (half, half):
            at = np.arange(row.steps) == step
            on_policy = replace(row, log_pi=np.where(at, half, row.log_pi), log_mu=np.where(at, half, row.log_mu))
            yield on_policy, k, of.number, t


def _tried(
    estimator: Estimator, row: Row, k: int, number: Input, t: int, quantity: Quantity, near: float
) -> Smallest | None:
    """The row with one number, if the function is wrong there; a row that it cannot take is none."""
    unit = row.with_numbers(estimator.values, [(number, t)])
    try:
        got = estimator([unit])[quantity][0]
    except Exception:
        return None
    wanted = right(unit, estimator.rule, estimator.values, quantity)
    if abs(got[k] - wanted[k]) <= near * max(1.0, abs(wanted[k])):
        return None
    return Smallest(unit, k, number, t, got, wanted)
