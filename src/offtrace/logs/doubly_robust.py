"""The direct method (fitted Q evaluation), and what standard estimators take from it.

It gives them V̂ beyond a truncation, and Q̂ to be doubly robust. For the latter it is cross-fitted: Q̂ at a step comes from a fit
that saw no step of its fold of episodes. (Fitted to the same steps, a table with few steps to a pair leaves TD errors near 0, and
with them nothing that could correct it.) Its own error is of second order there. Beyond a truncation, a table or a linear
function is that of all logs, and that an episode also moves V̂ counts in what it contributes; of a regressor, cross-fitted here
too, this is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from offtrace.logs.behavior import deal
from offtrace.logs.container import Logs, take
from offtrace.logs.fit import Fit, Model, Regressed, Regressor, fit
from offtrace.logs.importance import Weighting, Weights, cut
from offtrace.logs.operator import Sampled
from offtrace.logs.policies import Policy
from offtrace.logs.starts import Starts
from offtrace.traces import OneStep


@dataclass(frozen=True, eq=False)
class Direct:
    """The one-step fixed point, fitted when it is first needed."""

    logs: Logs
    policy: Policy
    gamma: float
    model: Model
    starts: Starts
    folds: int
    seed: int
    relearned: Model = None
    """The model that a cross-fit takes: where features are made of what followed, they are made without its fold."""

    @cached_property
    def sampled(self) -> Sampled:
        """The one-step operator."""
        return Sampled(OneStep(), self.logs, self.policy, self.gamma)

    @cached_property
    def fit(self) -> Fit | Regressed:
        """Its fixed point on all logs."""
        return fit(self.sampled, self.model)

    @cached_property
    def crossed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Q̂(s_t, a_t) and V̂(s_{t+1}) at the logged steps [N], and V̂(s_0) [E], each from a fit without its fold of episodes."""
        return cross_fitted(self.sampled, self.relearned, self.folds, self.seed)

    def estimate(self, weighting: Weighting, w: Weights) -> tuple[float, np.ndarray]:
        """A standard estimate, and what each episode contributes [E]."""
        logs, beyond = self.logs, cut(self.logs)
        by_regressor = isinstance(self.model, Regressor)
        nothing = np.zeros(len(logs))
        q, v, first = nothing, nothing, 0.0
        if weighting.doubly_robust:
            q, v, first = self.crossed
        elif not self.policy.draws:
            pass  # what came after a cut is left out, and a check tells of it
        elif by_regressor and beyond.any():
            q, v, _ = self.crossed
        elif beyond.any():
            q, v = self.fit.at_steps
        with np.errstate(
            over="ignore", invalid="ignore", divide="ignore"
        ):  # the result tells of products that overflow
            found = weighting.weigh(w, weighting.signal(logs, self.gamma, q, v))
            contributions = found.contributions + first
            value = float(contributions.mean())
        known = not by_regressor and self.policy.draws and np.isfinite(found.by_step).all()
        if weighting.doubly_robust or not beyond.any() or not known or isinstance(self.fit, Regressed):
            return value, contributions
        basis, weight = self.fit.basis, self.gamma * np.where(beyond, found.by_step, 0.0)
        gradient = sum(self.sampled.each(lambda p: basis.spread(p, None, weight[p]), basis.piece), np.zeros(basis.size))
        return value, contributions + logs.episodes * self.fit.influence(gradient)


def cross_fitted(sampled: Sampled, model: Model, folds: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Q̂(s_t, a_t) and V̂(s_{t+1}) at the logged steps [N], and V̂(s_0) [E], each from a fit without its fold of episodes."""
    logs = sampled.logs
    q, v, first = np.empty(len(logs)), np.zeros(len(logs)), np.empty(logs.episodes)
    folds = min(folds, logs.episodes)
    fold = deal(logs, folds, seed)
    of_step = np.repeat(fold, np.diff(logs.starts))
    for f in range(folds):
        others = replace(sampled, logs=take(logs, np.flatnonzero(fold != f)))
        found, here, on = fit(others, model), of_step == f, (of_step == f) & ~logs.terminated
        q[here] = found.at(logs.state[here], logs.action[here])
        if on.any():
            v[on] = found.values(logs.next_state[on])
        first[fold == f] = found.values(logs.state[logs.starts[:-1]][fold == f])
    return q, v, first
