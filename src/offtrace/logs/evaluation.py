"""`evaluate`: what a target policy is worth, from logs of another one, by several estimators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

from offtrace._shared.progress_bar import for_watchers
from offtrace._shared.suggestions import closest, ending
from offtrace._shared.type_guards import is_array, is_list
from offtrace.logs.bases import Table
from offtrace.logs.choosing import chosen_trace, needs_lambda
from offtrace.logs.container import Logs
from offtrace.logs.diagnosis import contradictions, diagnosis_of, warnings_of
from offtrace.logs.estimators import FITTED
from offtrace.logs.evidence import Evidence, gather
from offtrace.logs.fit import Fit, Regressed, Regressor
from offtrace.logs.intervals import conservative
from offtrace.logs.registry import ACTIONS, ESTIMATORS, LACKING, MU, OWN_STARTS, TRACE, named
from offtrace.logs.result import Result
from offtrace.logs.rows import checked, refitted, rows_of, without_failed_intervals
from offtrace.logs.segments import segments
from offtrace.traces import Trace
from offtrace.traces.base import number, whole

SPELT_OUT: tuple[type, ...] = (bool, int, float, str, tuple, list, np.generic, Trace)
"""Kinds of arguments that the call of a result repeats in full."""


def evaluate(
    logs: Logs,
    target: object,
    *,
    gamma: float,
    trace: Trace | None = None,
    model: object = None,
    estimators: Sequence[str] | None = None,
    behavior: object = None,
    initial: object = None,
    step: bool | None = None,
    cluster: object = None,
    by: object = None,
    gammas: Sequence[float] = (),
    confidence: float = 0.95,
    resamples: int = 1000,
    refits: int = 20,
    folds: int = 5,
    rewards: tuple[float, float] | None = None,
    longest: int | None = None,
    seed: int = 0,
) -> Result:
    """Estimate V(π) of the target policy, the mean over the episodes' first states, from logs of another policy.

    The headline is the direct method (fitted Q evaluation, with a ridge from cross-validation) if it passes its checks; else
    weighted doubly robust, else weighted per-decision importance sampling. A fit with λ above 0 is made where the states seem to
    hide something, or the model misses V(μ): there a trace earns its place.

    - `target`: the policy, a table [S, A], a callable (states → probabilities [n, A], or a mapping from actions to [n]) or an
      object with `predict_proba`; where actions are real numbers, a `Density`, a `Deterministic`, or None if the logs have a
      column `log_pi`. Names are matched by name; by position only if their order was given to `read`
    - `trace`: a rule for the fitted estimate, such as `ot.RBIS(lam=0.95)`, which is then preferred; None: as said above
    - `model` of Q: None (a table for ids, "fourier" for features), "linear", "fourier", `Features` or `Regressor`
    - `estimators`: names out of `ESTIMATORS`; None takes all that can be computed
    - `behavior`: None (μ as logged, estimated where it is not), "estimate", False (never), a classifier to estimate it with, or μ
      itself as a table or a callable
    - `initial`: the first states to average over, in place of the logs' own; states, or a distribution [S]
    - `step`: whether the number of the step is a part of the state; None: where episodes end by a horizon
    - `cluster`: what episodes belong together, such as the user of each: a column that `read` has kept, or an array [E].
      Intervals take clusters, not episodes, for independent
    - `by`: segments, such as regions, in the same form: each is evaluated from its own episodes, too
    - `gammas`: further discounts at which the value is estimated, to see how much it depends on γ
    - `resamples` of the bootstrap; `refits` of a regressor in its place, which are costly (0: no interval)
    - `folds` of the cross-fitting of a classifier for μ, and of Q̂ in doubly robust estimates
    - `rewards`: their range (lo, hi), and `longest`: the most steps that an episode can have, for the conservative interval;
      guessed from the data if None; intervals do not leave what they allow

    >>> from offtrace import mdps
    >>> from offtrace.logs import simulate
    >>> walk = mdps.random_walk(3)
    >>> logs = simulate(walk, mdps.uniform(walk), episodes=200, seed=0)
    >>> target = np.full((walk.S, walk.A), [0.4, 0.6])
    >>> result = evaluate(logs, target, gamma=walk.gamma)
    >>> result.headline.estimator, round(result.value, 2)
    ('direct method', 0.38)
    """
    given: dict[str, Any] = dict(locals())
    call = _call(given)
    _check_logs(logs)
    for name in ("logs", "target", "by", "gammas"):
        del given[name]
    again: Any = evaluate
    parts = segments(logs, by, cluster, lambda part, ids: again(part, target, **(given | {"cluster": ids})))
    others = {float(other): again(logs, target, **(given | {"gamma": other})) for other in sorted(set(gammas))}
    gamma = number("gamma", gamma, 0.0, 1.0)
    _check_numbers(confidence, resamples, refits, folds, rewards, longest)
    # Pieces of logs run on all cores: threads of BLAS would get in their way, by a factor of ten on a busy machine.
    with threadpool_limits(1, user_api="blas"), for_watchers() as bar:
        done, total = 0, 2 + 2 * len(ESTIMATORS)

        def tell(text: str, steps: int = 1) -> None:
            nonlocal done
            bar.show(done, total, text)
            done += steps

        tell("the logs, μ and the target policy")
        evidence, mu = gather(
            logs, target, trace, gamma, model=model, behavior=behavior, initial=initial, step=step, cluster=cluster,
            confidence=confidence, resamples=resamples, folds=folds, rewards=rewards, longest=longest, seed=seed,
        )  # fmt: skip
        reason = ""
        if trace is None and evidence.policy.draws:
            evidence, reason = _with_lambda(evidence, estimators)
        names = _names(
            estimators,
            {
                MU: evidence.logs.log_mu is not None,
                OWN_STARTS: evidence.starts.own,
                ACTIONS: evidence.policy.draws,
                TRACE: trace is not None or evidence.sampled is not evidence.one_step,
            },
        )
        estimates: dict[str, tuple[float, np.ndarray]] = {}
        for name in names:
            tell(name)
            estimates[name] = ESTIMATORS[name].function(evidence)
        rows = rows_of(estimates, evidence, confidence, resamples, seed)
        if isinstance(evidence.model, Regressor):
            for i, row in enumerate(rows):
                if (operator := ESTIMATORS[row.estimator].operator) is not None:
                    rows[i] = refitted(row, operator(evidence), evidence, confidence, refits, seed, tell)
        for i, row in enumerate(rows):
            tell(f"checks of {row.estimator}")
            rows[i] = checked(row, estimates[row.estimator], evidence)
        rows = without_failed_intervals(contradictions(rows, {name: x for name, (_, x) in estimates.items()}))
        main = evidence.fit if evidence.policy.draws else None
        logs, w = evidence.logs, evidence.weights
        anderson = None
        if w is not None and evidence.starts.own:
            anderson = conservative(logs, w, confidence, evidence.allowed, mu.estimated, evidence.policy.kernel)
        return Result(
            estimates=tuple(rows),
            observed=evidence.observed,
            conservative=anderson,
            diagnosis=diagnosis_of(evidence),
            warnings=tuple(warnings_of(evidence, mu, rows, anderson)),
            notes=tuple(filter(None, (reason, _of_step(evidence), _of_rewards(evidence, rewards)))),
            trace=evidence.sampled.trace,
            gamma=gamma,
            confidence=confidence,
            episodes=logs.episodes,
            steps=len(logs),
            behavior=mu.origin,
            mu_estimated=mu.estimated,
            state_values=_state_values(evidence) if logs.tabular and main is not None else None,
            values=_not_fitted if main is None else lambda states: evidence.values(main, states),
            q=_not_fitted if main is None else main.at if logs.continuous else _q(evidence, main),
            sweeps=0 if main is None else main.sweeps,
            logs=logs,
            policy=evidence.policy,
            call=call,
            cluster=evidence.cluster,
            segments=parts,
            gammas=others,
            contributions={name: x for name, (_, x) in estimates.items()},
        )


def _with_lambda(evidence: Evidence, estimators: Sequence[str] | None) -> tuple[Evidence, str]:
    """The evidence with a trace of λ > 0 where λ = 0 fails or a fit was asked for, and why; else as it is."""
    if estimators is not None and FITTED.name not in estimators:
        return evidence, ""
    why = needs_lambda(evidence) or ("it was asked for" if estimators is not None else None)
    if why is None:
        return evidence, ""
    trace = chosen_trace(evidence)
    operator = replace(evidence.sampled, trace=trace)
    return replace(evidence, sampled=operator), f"a fit with {named(trace)} was made too, since {why}"


def _of_step(evidence: Evidence) -> str:
    if evidence.step is None:
        return ""
    return (
        f"episodes end by a horizon of {evidence.step.longest:,} steps, so that fits take the number of the step for a part of "
        "the state (step=False does not)"
    )


def _of_rewards(evidence: Evidence, rewards: tuple[float, float] | None) -> str:
    """What of a stated range of rewards was never seen."""
    if rewards is None:
        return ""
    lo, hi = float(evidence.logs.reward.min()), float(evidence.logs.reward.max())
    said = [f"above {hi:g}"] * (rewards[1] > hi) + [f"below {lo:g}"] * (rewards[0] < lo)
    return (
        f"rewards may lie in [{rewards[0]:g}, {rewards[1]:g}], and none {' and none '.join(said)} was seen"
        if said
        else ""
    )


def _q(evidence: Evidence, main: Fit | Regressed) -> Callable[[np.ndarray], np.ndarray]:
    """States → Q [n, A]; where the step is a part of the state, at the first step."""
    step = evidence.step
    return main.q if step is None else lambda states: main.q(step.states(states))


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

    lines = [f"    {name}={said(value)}," for name, value in given.items() if name not in ("logs", "target")]
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


def _state_values(evidence: Evidence) -> np.ndarray:
    """V^π(s) [S]; NaN where nothing was logged."""
    logs = evidence.logs
    values = evidence.values(evidence.fit, np.arange(logs.states))
    known = isinstance(evidence.fit, Regressed) or not (
        isinstance(evidence.fit.basis, Table) or evidence.step is not None
    )
    return values if known else np.where(np.bincount(logs.state, minlength=logs.states) > 0, values, np.nan)


def _check_numbers(
    confidence: float,
    resamples: int,
    refits: int,
    folds: int,
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
    if rewards is not None and (np.shape(rewards) != (2,) or not np.isfinite(rewards).all()):
        raise ValueError(f"rewards must be their range (lo, hi), two finite numbers, got {rewards!r}")


def _not_fitted(*given: object) -> np.ndarray:
    raise ValueError(f"there is no Q of this result: {LACKING[ACTIONS]}")


def _check_logs(logs: Logs) -> None:
    """Every episode must end, and only where it ends."""
    if not isinstance(logs, Logs):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"logs must be those that offtrace.logs.read or simulate make, got {type(logs).__name__}")
    if logs.episodes < 2:
        raise ValueError(f"the logs hold only {logs.episodes} episode: it takes two at least to know a spread")
    ends = logs.terminated | logs.truncated
    last = logs.last_steps
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
