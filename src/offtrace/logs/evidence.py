"""What all estimators compute from, gathered once: μ, the target policy, the model of Q, weights, V(μ)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from offtrace.logs.behavior import Behavior, behavior_of
from offtrace.logs.container import Logs
from offtrace.logs.doubly_robust import Direct
from offtrace.logs.features import as_model
from offtrace.logs.fit import Learned, Model
from offtrace.logs.horizon import WithStep, ends_by_horizon, fits_a_table
from offtrace.logs.importance import weights
from offtrace.logs.intervals import range_of
from offtrace.logs.on_policy import observed
from offtrace.logs.operator import Sampled
from offtrace.logs.policies import as_policy
from offtrace.logs.real_actions import with_log_pi
from offtrace.logs.registry import Evidence
from offtrace.logs.segments import of_episodes
from offtrace.logs.starts import Starts
from offtrace.traces import Trace


@dataclass(frozen=True, kw_only=True)
class Options:
    """The arguments of `evaluate` that say what estimators compute from."""

    model: object = None
    behavior: object = None
    initial: object = None
    step: bool | None = None
    cluster: object = None
    confidence: float = 0.95
    resamples: int = 1000
    folds: int = 5
    bound: float | None = None
    rewards: tuple[float, float] | None = None
    longest: int | None = None
    seed: int = 0


def gather(logs: Logs, target: object, trace: Trace | None, gamma: float, given: Options) -> tuple[Evidence, Behavior]:
    """What estimators compute from, and where μ comes from."""
    logs = with_log_pi(target, logs)
    policy, mu = as_policy(target, logs), behavior_of(logs, given.behavior, folds=given.folds, seed=given.seed)
    logs = replace(logs, log_mu=mu.log_mu)
    policy = policy.for_logs(logs, gamma)
    starts = Starts.of(logs, given.initial)
    log_pi = np.concatenate([policy.log_taken(logs, piece) for piece in logs.pieces(1 << 18)])
    check_support(logs, log_pi)
    kind = as_model(given.model, logs, given.seed)
    step = _with_step(logs, given.step, kind)
    seen_logs, seen_policy, seen_starts = logs, policy, starts
    if step is not None:
        seen_logs, seen_policy, seen_starts = step.logs, step.policy(policy), step.starts(starts)
        kind = step.table if kind is None else kind
    direct = Direct(seen_logs, seen_policy, gamma, kind, seen_starts, given.folds, given.seed, kind)
    made = kind
    if isinstance(kind, Learned) and policy.draws:
        made = kind.made(direct.sampled)
        direct = replace(direct, model=made, relearned=kind if kind.of_returns else made)
    evidence = Evidence(
        logs=logs,
        policy=policy,
        gamma=gamma,
        starts=starts,
        sampled=direct.sampled if trace is None else Sampled(trace, seen_logs, seen_policy, gamma),
        direct=direct,
        weights=None if logs.log_mu is None else weights(logs, log_pi, logs.log_mu, gamma, given.bound),
        observed=observed(seen_logs, gamma, made, given.confidence, given.resamples, given.seed),
        allowed=range_of(logs, gamma, given.rewards, given.longest),
        model=made,
        log_pi=log_pi,
        step=step,
        cluster=_clusters(given.cluster, logs),
    )
    return evidence, mu


def check_support(logs: Logs, log_pi: np.ndarray) -> None:
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


def _with_step(logs: Logs, given: bool | None, kind: Model) -> WithStep | None:
    """The logs with the step in their states, if it is asked for, or episodes end by a horizon and it can be."""
    can = not logs.continuous and (fits_a_table(logs) if kind is None else isinstance(kind, Learned))
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
