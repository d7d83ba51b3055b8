"""The direct method (fitted Q evaluation), and what standard estimators take from it.

It gives them V̂ beyond a truncation, and Q̂ to be doubly robust. A table or a linear function is fitted once to all logs; that
an episode also moves Q̂, and by it the estimate, counts in what it contributes. A regressor is cross-fitted: Q̂ at a step comes
from a fit that saw no step of its fold of episodes, and its own error is left out of the interval (in a doubly robust estimate it
is of second order).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from offtrace.evaluation.behavior import deal
from offtrace.evaluation.fitted import Features, Fit, Regressed, Regressor, fit
from offtrace.evaluation.logs import Logs
from offtrace.evaluation.policies import Policy
from offtrace.evaluation.sampled import Sampled
from offtrace.evaluation.standard import Standard, Weights
from offtrace.evaluation.starts import Starts, take
from offtrace.traces import OneStep


@dataclass(frozen=True, eq=False)
class Direct:
    """The one-step fixed point, fitted when it is first needed."""

    logs: Logs
    policy: Policy
    gamma: float
    model: Features | Regressor | None
    starts: Starts
    folds: int
    seed: int

    @cached_property
    def sampled(self) -> Sampled:
        """The one-step operator."""
        return Sampled(OneStep(), self.logs, self.policy, self.gamma)

    @cached_property
    def fit(self) -> Fit | Regressed:
        """Its fixed point on all logs."""
        return fit(self.sampled, self.model)

    @cached_property
    def at_steps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Q̂(s_t, a_t) and V̂(s_{t+1}) at the logged steps [N], and V̂(s_0) [E]."""
        logs = self.logs
        if not isinstance(self.model, Regressor):
            return *self.fit.at_steps, self.starts.contributions(self.fit.values(self.starts.state))
        q, v, first = np.empty(len(logs)), np.zeros(len(logs)), np.empty(logs.episodes)
        fold = deal(logs, self.folds, self.seed)
        of_step = np.repeat(fold, np.diff(logs.starts))
        for f in range(self.folds):
            others = Sampled(OneStep(), take(logs, np.flatnonzero(fold != f)), self.policy, self.gamma)
            found, here, on = fit(others, self.model), of_step == f, (of_step == f) & ~logs.terminated
            q[here] = found.q(logs.state[here])[np.arange(here.sum()), logs.action[here]]
            v[on] = found.values(logs.next_state[on])
            first[fold == f] = found.values(logs.state[logs.starts[:-1]][fold == f])
        return q, v, first

    def estimate(self, standard: Standard, w: Weights) -> np.ndarray:
        """What each episode contributes to a standard estimate [E]."""
        logs, needed = self.logs, standard.needs_values(self.logs)
        q, v, first = self.at_steps if needed else (None, None, 0.0)
        with np.errstate(
            over="ignore", invalid="ignore", divide="ignore"
        ):  # a product that overflows is told in the result
            found = standard.weigh(w, standard.signal(logs, self.gamma, q, v))
            contributions = found.contributions + (first if standard.doubly_robust else 0.0)
        if not needed or not np.isfinite(contributions).all():
            return contributions
        if isinstance(self.model, Regressor) or isinstance(self.fit, Regressed):
            return contributions
        basis, (γ, subtracted), a = self.fit.basis, standard.shares(logs, self.gamma), found.by_step
        parts = self.sampled.each(lambda p: basis.spread(p, -a[p] if subtracted else None, (a * γ)[p]), basis.piece)
        gradient = sum(parts, np.zeros(basis.size))
        if standard.doubly_robust:
            gradient = gradient + basis.spread_values(self.starts.state, self.starts.weight)
        return contributions + logs.episodes * self.fit.influence(gradient)
