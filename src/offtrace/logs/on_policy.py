"""V(μ), the value of the policy that made the logs: observed there, and as a model finds it by the same trace.

Observed, V(μ) is the mean of Σ_t γ^t r_t over episodes. A model of Q that is asked for it by the operator that it uses for π has
to find the same, and where it does not, what it says of π is not to be relied on. The whole μ(·|s) is rarely logged, so the
operator takes the expectation over the next action

    ids:         by the counts μ̂(a|s) = n(s, a) / n(s)
    features:    by the action that was taken next (Sarsa); where an episode was cut, by the share of each action in all logs
    real-valued  by the action that was taken next; where an episode was cut, by one drawn from all logs
    actions:

and every ratio is 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from offtrace.logs.container import Logs
from offtrace.logs.fit import Fit, Model, Regressed, fit
from offtrace.logs.intervals import bootstrap, by_cluster
from offtrace.logs.operator import Sampled
from offtrace.logs.policies import Policy
from offtrace.logs.real_actions import RealPolicy
from offtrace.traces import QLambda, Trace

ERRORS = 3.0
"""Standard errors of what was observed, by which a model may miss V(μ)."""


@dataclass(frozen=True, eq=False)
class _Sarsa(Sampled):
    """The operator whose target is μ, for features."""

    @cached_property
    def _taken(self) -> np.ndarray:
        assert self.logs.log_mu is not None
        return self.logs.log_mu

    @cached_property
    def _following(self) -> np.ndarray:
        logs = self.logs
        if logs.continuous:
            taken = np.roll(logs.action, -1, axis=0)
            cut = np.flatnonzero(logs.truncated)
            taken[cut] = logs.action[np.random.default_rng(0).integers(0, len(logs), len(cut))]
            return taken[:, None, :]
        following = np.zeros((len(logs), logs.actions))
        goes_on = ~(logs.terminated | logs.truncated)
        at = np.flatnonzero(goes_on)
        following[at, logs.action[at + 1]] = 1.0
        cut = logs.truncated & ~logs.terminated
        following[cut] = self.policy.probabilities(logs.state[:1])[0]
        return following


def on_policy(trace: Trace, logs: Logs, gamma: float) -> Sampled:
    """The operator of the trace whose target is the policy that made the logs."""
    if logs.continuous:
        log_mu = np.zeros(len(logs)) if logs.log_mu is None else logs.log_mu
        policy = RealPolicy(
            numbers=logs.action.shape[1], sample=lambda states, rng: rng.choice(logs.action, len(states))
        )
        return _Sarsa(trace, replace(logs, log_mu=log_mu), policy, gamma)
    if logs.tabular:
        both = logs.counts
        visits = both.sum(axis=1, keepdims=True)
        table = np.where(visits > 0, both / np.maximum(visits, 1), 1 / logs.actions)
        log_mu = np.log(table[logs.state, logs.action])
        return Sampled(trace, replace(logs, log_mu=log_mu), Policy(logs.actions, table, table.__getitem__), gamma)
    share = np.bincount(logs.action, minlength=logs.actions) / len(logs)
    log_mu = np.log(share[logs.action]) if logs.log_mu is None else logs.log_mu
    policy = Policy(logs.actions, None, lambda states: np.tile(share, (len(states), 1)))
    return _Sarsa(trace, replace(logs, log_mu=log_mu), policy, gamma)


def first_values(fitted: Fit | Regressed) -> NDArray[np.float64]:
    """Q̂(s_0, a_0) of each episode [E]."""
    logs = fitted.sampled.logs
    return np.asarray(fitted.at_steps[0][logs.first_steps])


def value_of_behavior(sampled: Sampled, model: Model) -> float:
    """V̂(μ) by the trace of this operator, on its logs."""
    return float(first_values(fit(on_policy(sampled.trace, sampled.logs, sampled.gamma), model)).mean())


@dataclass(frozen=True, eq=False)
class Observed:
    """V(μ), the value of the policy that made the logs, as they have it."""

    returns: NDArray[np.float64]
    """Σ_t γ^t r_t of each episode [E]; of one that was cut, with γ^T V̂(s_T) for the rest."""
    beyond: float
    """The share of V̂(s_T) in them, which was not observed."""
    standard_error: float
    """That of the mean return; clusters, not episodes, are independent."""
    low: float
    high: float
    """The bootstrap interval of the mean."""

    @property
    def estimate(self) -> float:
        """V(μ): the mean return."""
        return float(self.returns.mean())

    @property
    def unlike_most(self) -> int:
        """How many episodes have another return than the one that occurs most often."""
        return len(self.returns) - int(np.unique(self.returns, return_counts=True)[1].max())

    def missed_by(self, value: float) -> bool:
        """Whether a model's V(μ) misses it: by more than three standard errors and half of what was not observed."""
        allowed = ERRORS * self.standard_error + (self.beyond / 2 + 1e-6) * abs(self.estimate) + 1e-9
        return not abs(value - self.estimate) <= allowed


def observed(
    logs: Logs,
    gamma: float,
    model: Model,
    cluster: NDArray[np.int64] | None,
    confidence: float,
    resamples: int,
    seed: int,
) -> Observed:
    """V(μ) from the logs."""
    returns, beyond = observed_returns(logs, gamma, model)
    x = by_cluster(returns[:, None], cluster)
    (low,), (high,) = bootstrap(x, confidence, resamples, seed)
    return Observed(returns, beyond, float(x.std() / np.sqrt(len(x))), float(low), float(high))


def observed_returns(logs: Logs, gamma: float, model: Model) -> tuple[NDArray[np.float64], float]:
    """Σ_t γ^t r_t of each episode [E], and the share of their mean that was not observed.

    A truncated episode went on unseen: γ^T V̂(s_T) stands for the rest, V̂ fitted to the returns themselves (λ = 1).
    """
    lengths = logs.lengths
    age = logs.age
    seen = logs.by_episode(gamma**age * logs.reward)
    last = logs.last_steps
    cut = logs.truncated[last] & ~logs.terminated[last]
    beyond = np.zeros(len(seen))
    if cut.any() and (gamma ** lengths[cut]).max() > 1e-6:
        v = fit(on_policy(QLambda(lam=1.0), logs, gamma), model).at_steps[1][last]
        beyond = np.where(cut, gamma**lengths * v, 0.0)
    total = np.abs(seen).mean() + np.abs(beyond).mean()
    return seen + beyond, float(np.abs(beyond).mean() / total) if total else 0.0
