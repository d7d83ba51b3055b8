"""How much each reward and each value counts in each return: measured of a function by unit inputs, and by definition.

Every return here is linear in rewards and values, so that rows in which a single number is 1 and all others are 0 show all of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offtrace.testing.calling import Estimator
from offtrace.testing.trials import Input, Quantity, Row, Values, right
from offtrace.traces import Rule

INPUTS: tuple[Input, ...] = ("reward", "own", "next_value")


class Credit(NamedTuple):
    """[T, T]: row k is a return, column t the step whose number counts."""

    reward: np.ndarray
    own: np.ndarray
    """Of q[t]; on state values of the value of s_t, wherever it stands."""
    next_value: np.ndarray
    """Of next_value[t]; on state values only where no step of the episode follows."""
    constant: np.ndarray
    """[T], the return where all numbers are 0."""

    def predicted(self, row: Row, values: Values) -> np.ndarray:
        """The returns that a linear function has on a row [T]."""
        after = row.next_value if values == "action" else np.where(row.goes_on, 0.0, row.next_value)
        return self.constant + self.reward @ row.reward + self.own @ row.own + self.next_value @ after


def _probes(row: Row, values: Values) -> list[Row]:
    """One row for each number, in the order of INPUTS, and one of zeros."""
    units = [row.with_numbers(values, [(name, t)]) for name in INPUTS for t in range(row.steps)]
    return [*units, row.with_numbers(values)]


def _credit(row: Row, values: Values, results: np.ndarray) -> Credit:
    """Compute how much each number counts, from the returns of all probes [3T + 1, T]."""
    T, constant = row.steps, results[-1]
    reward, own, after = ((results[i * T : (i + 1) * T] - constant).T for i in range(3))
    if values == "state":
        after = np.where(row.goes_on, 0.0, after)
    return Credit(reward, own, after, constant)


def measured(estimator: Estimator, row: Row, quantity: Quantity) -> Credit:
    """Measure how much each number counts in the returns of the user's function."""
    return _credit(row, estimator.values, estimator(_probes(row, estimator.values))[quantity])


def wanted(rule: Rule, row: Row, values: Values, quantity: Quantity) -> Credit:
    """Compute how much each number should count, by the definition of the returns."""
    results = [right(probe, rule, values, quantity) for probe in _probes(row, values)]
    return _credit(row, values, np.stack(results))


def of_rewards(rule: Rule, row: Row, values: Values, quantity: Quantity) -> np.ndarray:
    """How much each reward counts by definition [T, T]."""
    units = [row.with_numbers(values, [("reward", t)]) for t in range(row.steps)]
    return np.stack([right(unit, rule, values, quantity) for unit in units], axis=1)
