"""Episodes that end by a horizon: what is worth having depends on how many steps are left, so that the step is part of the state.

An episode ends by a horizon where it terminates after as many steps as the longest one. If that is so of at least `SHARE` of the
episodes, and states that are ids do not tell the step themselves, fits take the number t of the step, as t/T and (t/T)², into
their features, a θ for each action; of a table, in addition to a column for each state. Weights need no states, and are the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from offtrace.logs.container import Logs
from offtrace.logs.fit import FEW, Features
from offtrace.logs.policies import Policy
from offtrace.logs.starts import Starts

SHARE = 0.05
TOLD = 0.01
"""Of the variance of the step: states that leave less of it tell the step."""
RIDGE = 1e-5
"""Of the columns of a table: it decides what was never logged, and nothing else."""


def ends_by_horizon(logs: Logs) -> bool:
    """Whether enough episodes terminate after as many steps as the longest one has.

    >>> from offtrace import mdps
    >>> from offtrace.logs import simulate
    >>> walk = mdps.random_walk(5)
    >>> ends_by_horizon(simulate(walk, mdps.uniform(walk), episodes=500, seed=0))
    False
    """
    lengths = logs.lengths
    if logs.tabular:
        age = logs.age
        n = np.maximum(np.bincount(logs.state, minlength=logs.states), 1)
        within = age - (np.bincount(logs.state, age, logs.states) / n)[logs.state]
        if within.var() <= TOLD * age.var():
            return False
    longest = (lengths == lengths.max()) & logs.terminated[logs.last_steps]
    return bool(lengths.max() > 1 and np.count_nonzero(longest) >= max(2, SHARE * logs.episodes))


def fits_a_table(logs: Logs) -> bool:
    """Whether a table with the step has few enough columns to be solved at once."""
    return logs.actions * (logs.states + 3) <= FEW


class WithStep:
    """Logs, policies and first states whose states have the number of the step: (id or features, t/T, (t/T)²)."""

    def __init__(self, logs: Logs) -> None:
        self.given, self.longest = logs, int(logs.lengths.max())
        age = logs.age
        state, following = self.states(logs.state, age), self.states(logs.next_state, age + 1)
        self.logs = replace(logs, state=state, next_state=following, states=0, state_names=(), sorted_names=())

    def states(self, states: np.ndarray, age: np.ndarray | int = 0) -> np.ndarray:
        """States at these steps, the first ones if nothing is said."""
        t = np.broadcast_to(np.asarray(age) / self.longest, len(states))
        return np.column_stack([states, t, t**2])

    def policy(self, policy: Policy) -> Policy:
        """The same policy, which does not look at the step."""
        if self.given.tabular:
            return replace(policy, table=None, ask=lambda x: policy.probabilities(x[:, 0].astype(np.int64)))
        return replace(policy, ask=lambda x: policy.probabilities(x[:, :-2]))

    def starts(self, starts: Starts) -> Starts:
        """The first states, at the first step."""
        return replace(starts, state=self.states(starts.state))

    @property
    def table(self) -> Features:
        """A column for each state, and the step."""
        S = self.given.states

        def columns(x: np.ndarray) -> np.ndarray:
            return np.column_stack([np.eye(S)[x[:, 0].astype(np.int64)], x[:, 1:]])

        return Features(columns, ridge=RIDGE)
