"""What all estimators compute from, gathered once: μ, the target policy, the model of Q, weights, fits, V(μ)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from offtrace.logs.behavior import Behavior, behavior_of, deal
from offtrace.logs.container import Logs, take
from offtrace.logs.features import as_model
from offtrace.logs.fit import Features, Fit, Model, Regressed, fit
from offtrace.logs.horizon import WithStep, ends_by_horizon, fits_a_table
from offtrace.logs.importance import Weights, weights
from offtrace.logs.intervals import Range, range_of
from offtrace.logs.markov_test import HiddenStates, hidden_states
from offtrace.logs.on_policy import Observed, observed, on_policy, value_of_behavior
from offtrace.logs.operator import Sampled
from offtrace.logs.policies import Policy, as_policy
from offtrace.logs.segments import of_episodes
from offtrace.logs.starts import Starts
from offtrace.traces import OneStep, Trace


@dataclass(frozen=True, eq=False)
class Evidence:
    """What an estimator may compute from."""

    logs: Logs
    policy: Policy
    """The target policy."""
    gamma: float
    starts: Starts
    """The first states over which V(π) is the mean."""
    one_step: Sampled
    """The operator of one step, as the logs sample it; its logs and policy are those that fits see (`step`)."""
    sampled: Sampled
    """The operator of the trace; `one_step` where there is no trace."""
    weights: Weights | None
    """The products of ratios; None where μ is not known."""
    observed: Observed
    """V(μ) as the logs have it."""
    allowed: Range
    """What rewards and horizon allow."""
    model: Model
    """The model of Q; None: a table."""
    log_pi: NDArray[np.float64]
    """log π(a|s) of the actions taken [N]."""
    step: WithStep | None = None
    """The logs as fits see them, where the number of the step is a part of the state."""
    cluster: NDArray[np.int64] | None = None
    """Which episodes belong together [E], 0 … C − 1; None: each is by itself."""
    folds: int = 5
    """Of cross-fitting."""
    seed: int = 0

    @property
    def independent(self) -> int:
        """How many episodes, or clusters of them, are independent of each other."""
        return self.logs.episodes if self.cluster is None else int(self.cluster.max()) + 1

    def values(self, fitted: Fit | Regressed, states: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
        """V(s) [n] of a fit; where the step is a part of the state, at the first step."""
        return fitted.values(states if self.step is None else self.step.states(states))

    def value_of(self, fitted: Fit | Regressed) -> tuple[float, NDArray[np.float64]]:
        """V(π) of a fit, and what each episode contributes [E]."""
        return (self.starts if self.step is None else self.step.starts(self.starts)).of_fit(fitted)

    def fit_of(self, sampled: Sampled) -> Fit | Regressed:
        """The fixed point of `one_step` or of `sampled`."""
        return self.direct if sampled is self.one_step else self.fit

    @cached_property
    def direct(self) -> Fit | Regressed:
        """The direct method (fitted Q evaluation): the fixed point of `one_step`, fitted when it is first needed."""
        return fit(self.one_step, self.model)

    @cached_property
    def fit(self) -> Fit | Regressed:
        """The fixed point of `sampled`, fitted when it is first needed."""
        return self.direct if self.sampled is self.one_step else fit(self.sampled, self.model)

    @cached_property
    def direct_of_behavior(self) -> float:
        """V̂(μ) by the direct method."""
        return value_of_behavior(self.one_step, self.model)

    @cached_property
    def crossed(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Q̂(s_t, a_t) and V̂(s_{t+1}) [N] and V̂(s_0) [E] of the direct method, each from a fit without its fold of episodes.

        Fitted to the same steps, a table with few steps to a pair leaves TD errors near 0, which could correct nothing.
        """
        logs = self.one_step.logs
        q, v, first = np.empty(len(logs)), np.zeros(len(logs)), np.empty(logs.episodes)
        folds = min(self.folds, logs.episodes)
        fold = deal(logs, folds, self.seed)
        of_step = logs.of_steps(fold)
        for f in range(folds):
            others = replace(self.one_step, logs=take(logs, np.flatnonzero(fold != f)))
            fitted, here = fit(others, self.model), of_step == f
            on = here & ~logs.terminated
            q[here] = fitted.at(logs.state[here], logs.action[here])
            if on.any():
                v[on] = fitted.values(logs.next_state[on])
            first[fold == f] = fitted.values(logs.state[logs.first_steps][fold == f])
        return q, v, first

    @cached_property
    def narrower(self) -> Evidence | None:
        """The same with a narrower kernel, which shows its bias; None where the target policy has none."""
        policy, w, log_mu = self.policy.narrower(), self.weights, self.logs.log_mu
        if policy is None or w is None or log_mu is None:
            return None
        log_pi = policy.log_taken(self.logs, slice(0, len(self.logs)))
        return replace(self, policy=policy, log_pi=log_pi, weights=weights(self.logs, log_pi, log_mu, self.gamma))

    @cached_property
    def hidden_states(self) -> HiddenStates | None:
        """Whether the states hide something, tested when it is first asked for; None where they are no ids."""
        return hidden_states(self.logs, self.gamma, timed=self.step is not None)


def gather(
    logs: Logs,
    target: object,
    trace: Trace | None,
    gamma: float,
    *,
    model: object = None,
    behavior: object = None,
    initial: object = None,
    step: bool | None = None,
    cluster: object = None,
    confidence: float = 0.95,
    resamples: int = 1000,
    folds: int = 5,
    rewards: tuple[float, float] | None = None,
    longest: int | None = None,
    seed: int = 0,
) -> tuple[Evidence, Behavior]:
    """What estimators compute from, and where μ comes from; the arguments are those of `evaluate`."""
    policy, mu = as_policy(target, logs), behavior_of(logs, behavior, folds=folds, seed=seed)
    logs = replace(logs, log_mu=mu.log_mu)
    policy = policy.for_logs(logs, gamma)
    starts = Starts.of(logs, initial)
    log_pi = np.concatenate([policy.log_taken(logs, piece) for piece in logs.pieces(1 << 18)])
    _check_support(logs, log_pi)
    kind = as_model(model, logs, seed)
    with_step = _with_step(logs, step, kind)
    if with_step is None:
        one_step = Sampled(OneStep(), logs, policy, gamma)
    else:
        one_step = Sampled(OneStep(), with_step.logs, with_step.policy(policy), gamma)
        kind = with_step.table if kind is None else kind
    fitted = kind(one_step if policy.draws else on_policy(OneStep(), one_step.logs, gamma)) if callable(kind) else kind
    clusters = _clusters(cluster, logs)
    evidence = Evidence(
        logs=logs,
        policy=policy,
        gamma=gamma,
        starts=starts,
        one_step=one_step,
        sampled=one_step if trace is None else replace(one_step, trace=trace),
        weights=None if logs.log_mu is None else weights(logs, log_pi, logs.log_mu, gamma),
        observed=observed(one_step.logs, gamma, fitted, clusters, confidence, resamples, seed),
        allowed=range_of(logs, gamma, rewards, longest),
        model=fitted,
        log_pi=log_pi,
        step=with_step,
        cluster=clusters,
        folds=folds,
        seed=seed,
    )
    return evidence, mu


def _check_support(logs: Logs, log_pi: np.ndarray) -> None:
    """Raise if the target policy takes none of the logged actions."""
    if not np.all(log_pi == -np.inf):
        return
    if logs.continuous:
        raise ValueError(
            f"the target policy has density 0 at all {len(logs):,} logged actions: nothing can be said about it"
        )
    actions, states = logs.names("actions"), logs.names("states")
    there = f" in state {states[logs.state[0]]!r}" if logs.tabular else ""
    raise ValueError(
        f"the target policy takes none of the {len(logs):,} logged actions, such as {actions[logs.action[0]]!r}{there} at "
        "step 0 of episode 0: nothing can be said about it"
    )


def _with_step(logs: Logs, given: bool | None, kind: Model | Callable[[Sampled], Features]) -> WithStep | None:
    """The logs with the step in their states, if it is asked for, or episodes end by a horizon and it can be."""
    can = not logs.continuous and (fits_a_table(logs) if kind is None else callable(kind))
    if given and not can:
        raise ValueError(
            "step=True needs actions that are ids, and states that are features or few enough for a table with the step (1,000 "
            f"columns; these logs have {logs.states:,} states and {logs.actions:,} actions). A model of your own must be given "
            " states that have the step"
        )
    wanted = can and ends_by_horizon(logs) if given is None else given
    return WithStep(logs) if wanted else None


def _clusters(given: object, logs: Logs) -> np.ndarray | None:
    """Which episodes belong together [E], 0 … C − 1, from a name for each episode."""
    if given is None:
        return None
    names = of_episodes(logs, given, "cluster")
    _, ids = np.unique(names, return_inverse=True)
    if ids.max() == 0:
        raise ValueError("cluster puts all episodes into one: it takes two clusters at least to know a spread")
    return ids
