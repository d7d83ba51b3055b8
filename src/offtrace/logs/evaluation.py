"""`evaluate`: what a target policy is worth, from logs of another one, by several estimators side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from offtrace._shared.progress_bar import for_watchers
from offtrace._shared.suggestions import closest, ending
from offtrace._shared.type_guards import is_array, is_list
from offtrace.logs.container import Logs
from offtrace.logs.estimators.action_densities import with_log_pi
from offtrace.logs.estimators.behavior_policy import behavior_of
from offtrace.logs.estimators.built_in import FITTED
from offtrace.logs.estimators.direct_method import Direct
from offtrace.logs.estimators.first_states import Starts
from offtrace.logs.estimators.fitted_iteration import Fit, Regressed, Regressor
from offtrace.logs.estimators.importance_sampling import weights
from offtrace.logs.estimators.intervals import Conservative, conservative, range_of
from offtrace.logs.estimators.linear_bases import Table
from offtrace.logs.estimators.linear_densities import has_features
from offtrace.logs.estimators.lower_bounds import ANDERSON
from offtrace.logs.estimators.model_names import as_model
from offtrace.logs.estimators.on_policy import observed
from offtrace.logs.estimators.registry import (
    ACTIONS,
    ESTIMATORS,
    FEATURES,
    LACKING,
    MU,
    OWN_STARTS,
    TABLE,
    Evidence,
)
from offtrace.logs.estimators.sampled_operator import Sampled
from offtrace.logs.estimators.target_policy import as_policy
from offtrace.logs.result import Result
from offtrace.logs.rows_of_result import checked, refitted, rows_of
from offtrace.logs.warnings_of_result import contradictions, diagnosis_of, warnings_of
from offtrace.traces import Trace
from offtrace.traces.base import number, whole

SPELT_OUT: tuple[type, ...] = (bool, int, float, str, tuple, list, np.generic, Trace)
"""What stands in the call of a result as it was given."""


def evaluate(
    logs: Logs,
    target: object,
    *,
    trace: Trace,
    gamma: float,
    model: object = None,
    estimators: Sequence[str] | None = None,
    behavior: object = None,
    initial: object = None,
    confidence: float = 0.95,
    resamples: int = 1000,
    refits: int = 20,
    folds: int = 5,
    bound: float | None = None,
    rewards: tuple[float, float] | None = None,
    longest: int | None = None,
    seed: int = 0,
    progress: Callable[[float, float, str], None] | None = None,
) -> Result:
    """Estimate V(π) of the target policy, the mean over the episodes' first states, from logs of another policy.

    - `target`: the policy, a table [S, A], a callable (states → probabilities [n, A], or a mapping from actions to [n]) or an
      object with `predict_proba`; where actions are real numbers, a `Density`, a `Deterministic`, or None if the logs have a
      column `log_pi`. Names are matched by name; by position only if their order was given to `read`
    - `trace`: the rule of the fitted estimate, such as `ot.RBIS(lam=0.95)`
    - `model` of Q: None (a table for ids, "fourier" for features), "linear", "fourier", "trees", "network", `Features` or
      `Regressor`
    - `estimators`: names out of `ESTIMATORS`; None takes all that can be computed
    - `behavior`: None (μ as logged, estimated where it is not), "estimate", False (never), a classifier to estimate it with, or μ
      itself as a table or a callable
    - `initial`: the first states to average over, in place of the logs' own; states, or a distribution [S]
    - `resamples` of the bootstrap; `refits` of a regressor in its place, which are costly (0: no interval)
    - `folds` of the cross-fitting of a classifier for μ, and of Q̂ in doubly robust estimates
    - `bound`: that of truncated IS, √E if None
    - `rewards`: their range (lo, hi), and `longest`: the most steps that an episode can have, for the conservative interval;
      guessed from the data if None; intervals do not leave what they allow
    - `progress`: called with how much is done, of how much, and what comes next, in words; None shows a bar in a terminal or a
      notebook if it takes long

    >>> import offtrace as ot
    >>> from offtrace import mdps
    >>> from offtrace.logs import simulate
    >>> walk = mdps.random_walk(3)
    >>> logs = simulate(walk, mdps.uniform(walk), episodes=200, seed=0)
    >>> target = np.full((walk.S, walk.A), [0.4, 0.6])
    >>> result = evaluate(logs, target, trace=ot.RBIS(lam=0.9), gamma=walk.gamma, estimators=["fitted"])
    >>> round(result.value, 2)
    0.38
    """
    call = _call(locals())
    _check_logs(logs)
    gamma = number("gamma", gamma, 0.0, 1.0)
    _check_numbers(confidence, resamples, refits, folds, bound, rewards, longest)
    logs = with_log_pi(target, logs)
    policy, mu = as_policy(target, logs), behavior_of(logs, behavior, folds=folds, seed=seed)
    logs = replace(logs, log_mu=mu.log_mu)
    policy = policy.for_logs(logs, gamma)
    starts = Starts.of(logs, initial)
    kind = as_model(model, logs, seed)
    names = _names(
        estimators,
        {
            MU: logs.log_mu is not None,
            OWN_STARTS: starts.own,
            TABLE: logs.tabular,
            FEATURES: has_features(kind, logs.tabular),
            ACTIONS: policy.draws,
        },
    )
    sampled = Sampled(trace, logs, policy, gamma)
    log_pi = np.concatenate(list(sampled.each(sampled.log_pi)))
    _check_support(logs, log_pi)
    with for_watchers() as bar:
        tell = _Progress(progress or bar.show, 2 + 2 * len(names))
        w = None if logs.log_mu is None else weights(logs, log_pi, logs.log_mu, gamma, bound)
        allowed = range_of(logs, gamma, rewards, longest)
        tell("V(μ) from the logs")
        seen = observed(logs, gamma, kind, confidence, resamples, seed)
        direct = Direct(logs, policy, gamma, kind, starts, folds, seed)
        evidence = Evidence(logs, policy, gamma, starts, sampled, direct, w, seen, allowed, kind)
        tell("fitting with the trace")
        main = evidence.fit if policy.draws else None
        estimates: dict[str, tuple[float, np.ndarray]] = {}
        for name in names:
            tell(name)
            estimates[name] = ESTIMATORS[name].function(evidence)
        rows = rows_of(estimates, evidence, confidence, resamples, seed)
        if isinstance(kind, Regressor):
            for i, row in enumerate(rows):
                if (operator := ESTIMATORS[row.estimator].operator) is not None:
                    rows[i] = refitted(row, operator(evidence), evidence, confidence, refits, seed, tell)
        for i, row in enumerate(rows):
            tell(f"checks of {row.estimator}")
            rows[i] = checked(row, estimates[row.estimator], evidence)
        rows = contradictions(rows, {name: x for name, (_, x) in estimates.items()})

        bounds: dict[str, Conservative] = {}
        if w is not None and starts.own:
            bounds = conservative(logs, w, confidence, allowed, mu.estimated, policy.kernel)
        pull = estimates[FITTED.name][1] if FITTED.name in estimates and isinstance(main, Fit) else None
        found = diagnosis_of(sampled, w, pull)
        return Result(
            estimates=tuple(rows),
            observed=seen,
            conservative=(anderson := bounds.get(ANDERSON)),
            bounds=bounds,
            diagnosis=found,
            warnings=(
                *(
                    [f"the conservative interval is empty: {anderson.empty}"]
                    if anderson is not None and anderson.empty
                    else []
                ),
                *warnings_of(logs, mu, starts, rows, found, table=kind is None, draws=policy.draws),
            ),
            trace=trace,
            gamma=gamma,
            confidence=confidence,
            episodes=logs.episodes,
            steps=len(logs),
            behavior=mu.origin,
            mu_estimated=mu.estimated,
            state_values=_state_values(main, logs) if logs.tabular and main is not None else None,
            values=_not_fitted if main is None else main.values,
            q=_not_fitted if main is None else main.at if logs.continuous else main.q,
            sweeps=0 if main is None else main.sweeps,
            logs=logs,
            policy=policy,
            call=call,
            contributions={name: x for name, (_, x) in estimates.items()},
        )


class _Progress:
    """Tells how far an evaluation is."""

    def __init__(self, show: Callable[[float, float, str], None] | None, total: int) -> None:
        self.show, self.total, self.done = show, total, 0

    def __call__(self, text: str, steps: int = 1) -> None:
        """Say what comes next."""
        if self.show is not None:
            self.show(self.done, self.total, text)
        self.done += steps


def _call(given: Mapping[str, object]) -> str:
    """Write the call in words: numbers, texts and traces as they are, and the kind and size of larger things."""

    def said(value: object) -> str:
        if is_array(value):
            return f"<array {list(value.shape)} of {value.dtype}>"
        if is_list(value) and len(value) > len(ESTIMATORS):
            return f"<{type(value).__name__} of {len(value)}>"
        if value is None or isinstance(value, SPELT_OUT):
            return repr(value)
        return f"<{getattr(value, '__qualname__', type(value).__qualname__)}>"

    lines = [
        f"    {name}={said(value)}," for name, value in given.items() if name not in ("logs", "target", "progress")
    ]
    return "\n".join(["evaluate(", "    logs,", "    target,", *lines, ")"])


def _names(estimators: Sequence[str] | None, there: Mapping[str, bool]) -> list[str]:
    """Return the names of the estimators that are wanted and possible, by which needs are there."""
    lacking = [need for need in there if not there[need]]
    possible = [name for name, entry in ESTIMATORS.items() if not set(lacking) & set(entry.needs)]
    if estimators is None:
        if not possible:
            raise ValueError(f"no estimator can be computed: {'; '.join(LACKING[need] for need in lacking)}")
        return possible
    if isinstance(estimators, str):
        estimators = [estimators]
    for name in estimators:
        if name not in ESTIMATORS:
            hint = ending(closest(name, ESTIMATORS))
            raise ValueError(f"there is no estimator named {name!r}{hint} Known: {', '.join(ESTIMATORS)}")
        if name not in possible:
            reason = next(LACKING[need] for need in lacking if need in ESTIMATORS[name].needs)
            raise ValueError(f"{name!r} cannot be computed: {reason}. Possible: {', '.join(possible)}")
    if not estimators:
        raise ValueError(f"estimators is empty: choose from {', '.join(ESTIMATORS)}, or None for all")
    return list(dict.fromkeys(estimators))


def _state_values(found: Fit | Regressed, logs: Logs) -> np.ndarray:
    """Return V^π(s) [S]; in a table it is NaN where nothing was logged."""
    values = found.values(np.arange(logs.states))
    if isinstance(found, Fit) and isinstance(found.basis, Table):
        values[np.bincount(logs.state, minlength=logs.states) == 0] = np.nan
    return values


def _check_numbers(
    confidence: float,
    resamples: int,
    refits: int,
    folds: int,
    bound: float | None,
    rewards: tuple[float, float] | None,
    longest: int | None,
) -> None:
    """Check the numbers given to `evaluate` that nothing else checks."""
    if not 0.0 < number("confidence", confidence, 0.0, 1.0) < 1.0:
        raise ValueError(f"confidence must lie in (0, 1), as 0.95 does, got {confidence!r}")
    whole("resamples", resamples)
    whole("folds", folds)
    if refits != 0:
        whole("refits", refits)
    if longest is not None:
        whole("longest", longest)
    if bound is not None and number("bound", bound, 0.0, np.inf) == 0.0:
        raise ValueError("bound of truncated IS must be above 0, got 0")
    if rewards is not None and (np.shape(rewards) != (2,) or not np.isfinite(rewards).all()):
        raise ValueError(f"rewards must be their range (lo, hi), two finite numbers, got {rewards!r}")


def _check_support(logs: Logs, log_pi: np.ndarray) -> None:
    if np.all(log_pi == -np.inf):
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


def _not_fitted(*given: object) -> np.ndarray:
    raise ValueError(f"there is no Q of this result: {LACKING[ACTIONS]}")


def _check_logs(logs: Logs) -> None:
    """Every episode must end, and only where it ends."""
    if not isinstance(logs, Logs):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"logs must be those that offtrace.logs.read or simulate make, got {type(logs).__name__}")
    if logs.episodes < 2:
        raise ValueError(f"the logs hold only {logs.episodes} episode: it takes two at least to know a spread")
    ends = logs.terminated | logs.truncated
    last = logs.starts[1:] - 1
    if not ends[last].all():
        e = int(np.argmin(ends[last]))
        raise ValueError(
            f"episode {e} ends in neither a terminated nor a truncated step: say which it was; one that the log broke off is "
            "truncated"
        )
    if np.count_nonzero(ends) != logs.episodes:
        inside = ends.copy()
        inside[last] = False
        raise ValueError(f"step {int(np.argmax(inside))} ends an episode, but is not the last one of its episode")
