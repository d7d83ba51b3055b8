"""`evaluate`: what a target policy is worth, from logs of another one, by several estimators side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs]

from offtrace._shared.number_text import number as number_text
from offtrace._shared.suggestions import closest, ending
from offtrace._shared.type_guards import is_array, is_list
from offtrace.logs.container import Logs
from offtrace.logs.estimators.action_densities import with_log_pi
from offtrace.logs.estimators.behavior_policy import behavior_of
from offtrace.logs.estimators.built_in import FITTED
from offtrace.logs.estimators.checks import Check, Estimated, beyond_cuts
from offtrace.logs.estimators.direct_method import Direct
from offtrace.logs.estimators.first_states import Starts, take
from offtrace.logs.estimators.fitted_iteration import Fit, Regressed, Regressor, as_model, fit
from offtrace.logs.estimators.importance_sampling import weights
from offtrace.logs.estimators.intervals import Conservative, bootstrap, conservative, range_of
from offtrace.logs.estimators.linear_bases import Table
from offtrace.logs.estimators.linear_densities import has_features
from offtrace.logs.estimators.lower_bounds import ANDERSON
from offtrace.logs.estimators.on_policy import observed
from offtrace.logs.estimators.registry import (
    ACTIONS,
    ESTIMATORS,
    FEATURES,
    IMPORTANCE,
    LACKING,
    MU,
    OWN_STARTS,
    TABLE,
    Estimator,
    Evidence,
)
from offtrace.logs.estimators.sampled_operator import Sampled
from offtrace.logs.estimators.support import way_out
from offtrace.logs.estimators.target_policy import as_policy
from offtrace.logs.estimators.weight_shares import kish
from offtrace.logs.result import Result, Row
from offtrace.logs.warnings_of_result import contradictions, diagnosis_of, warnings_of
from offtrace.traces import Trace
from offtrace.traces.base import number, whole

DROPPED = 0.05
"""The share of dropped episodes from which on no estimator passes its checks."""
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

    - `target`: the policy, a table [S, A], a callable (states → probabilities [n, A]) or an object with `predict_proba`; where
      actions are real numbers, a `Density`, a `Deterministic`, or None if the logs have a column `log_pi`
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
    - `progress`: called with how much is done, of how much, and what comes next, in words

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
    tell = _Progress(progress, 2 + 2 * len(names))
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
    rows = _rows(estimates, evidence, confidence, resamples, seed)
    if isinstance(kind, Regressor):
        for i, row in enumerate(rows):
            if (operator := ESTIMATORS[row.estimator].operator) is not None:
                rows[i] = _refitted(row, operator(evidence), evidence, confidence, refits, seed, tell)
    for i, row in enumerate(rows):
        tell(f"checks of {row.estimator}")
        rows[i] = _checked(row, estimates[row.estimator], evidence)
    rows = contradictions(rows)

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


def _rows(
    estimates: dict[str, tuple[float, np.ndarray]], evidence: Evidence, confidence: float, resamples: int, seed: int
) -> list[Row]:
    """Return the estimates with bootstrap intervals of what episodes contribute, all from the same weights of episodes."""
    columns = np.column_stack([x for _, x in estimates.values()])
    finite = np.array([np.isfinite(x).all() for x in columns.T])
    columns = np.where(finite, columns, 0.0)
    seen, m = evidence.observed, columns.shape[1]
    low, high = bootstrap(np.hstack([columns, columns - seen.returns[:, None]]), confidence, resamples, seed)
    rows: list[Row] = []
    for j, (name, (value, x)) in enumerate(estimates.items()):
        title = ESTIMATORS[name].titled(evidence.sampled.trace)
        if not finite[j]:  # a product of ratios that overflows, or a fit that did not settle
            nan = float("nan")
            rows.append(Row(name, title, value, nan, nan, nan, nan, nan))
            continue
        d = x - x.mean()
        share = float(np.abs(d).max() / np.abs(d).sum()) if d.any() else float("nan")
        error = float(x.std() / np.sqrt(len(x)))
        row = Row(name, title, value, error, float(low[j]), float(high[j]), kish(d), share)
        if evidence.starts.own:
            row = replace(row, gain=value - seen.estimate, gain_low=float(low[m + j]), gain_high=float(high[m + j]))
        rows.append(row)
    return rows


def _checked(row: Row, found: tuple[float, np.ndarray], evidence: Evidence) -> Row:
    """The row with its checks, and with an interval only where there can be one, of values that can be."""
    entry = ESTIMATORS[row.estimator]
    row = _widened(row, entry, evidence)
    allowed, seen = evidence.allowed, evidence.observed
    estimated = Estimated(*found, row.low, row.high)
    checks = [check for each in entry.checks if (check := each(evidence, estimated)) is not None]
    if (check := _of_kernel(row, found, entry, evidence)) is not None:
        checks.append(check)
        row = _wider(row, abs(check.number), abs(check.number))
    if evidence.model is not None:  # what a model of features misses of μ, it may miss of π
        miss = max((abs(check.number - seen.estimate) for check in checks if check.kind == "V(μ)"), default=0.0)
        row = _wider(row, miss, miss)
    if entry.operator is None and row.standard_error == 0:
        words = "all episodes contribute the same, so that it has no interval"
        checks.append(Check("spread", 0.0, words, True, no_interval=True))
    if (report := evidence.logs.report) is not None and report.dropped:
        words = report.loss.partition(":")[0]  # the rest stands in the warnings
        checks.append(Check("dropped", report.dropped, words, failed=report.dropped > DROPPED * report.episodes))
    row = replace(row, low=max(row.low, allowed.least), high=min(row.high, allowed.most))
    least, most = allowed.least - seen.high, allowed.most - seen.low
    row = replace(row, gain_low=max(row.gain_low, least), gain_high=min(row.gain_high, most))
    if any(check.no_interval for check in checks) or not row.low <= row.high:
        nan = float("nan")
        row = replace(row, low=nan, high=nan, gain_low=nan, gain_high=nan)
    return replace(row, checks=tuple(checks))


def _of_kernel(row: Row, found: tuple[float, np.ndarray], entry: Estimator, evidence: Evidence) -> Check | None:
    """How far a kernel moves an estimate: its bias is about c·h², so that it is twice what half of h² takes away."""
    if evidence.narrower is None or MU not in entry.needs or np.isnan(row.estimate):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        value, x = entry.function(evidence.narrower)
        bias = 2 * (row.estimate - value)
        error = 2 * float((found[1] - x).std() / np.sqrt(len(x)))
    if not np.isfinite([bias, error]).all():
        return None
    failed = abs(bias) > max((row.high - row.low) / 2, 2 * error)
    words = f"{evidence.policy.kernel} moves it by about {number_text(bias)} (± {number_text(2 * error)})"
    words += ", which is more than its interval has: more episodes allow a smaller one" if failed else ""
    return Check("kernel", bias, words, failed)


def _widened(row: Row, entry: Estimator, evidence: Evidence) -> Row:
    """The interval, wider by what is rounded and, of a table, by what pairs that were never logged could be worth."""
    less = more = 1e-8 * abs(row.estimate) + 1e-12
    if entry.family != IMPORTANCE and evidence.model is None:
        main = entry.operator is not None and entry.operator(evidence) is evidence.sampled
        out = way_out(evidence, evidence.fit if main else evidence.direct.fit)
        if out.share:
            less += out.taken_for - out.share * evidence.allowed.least
            more += out.share * evidence.allowed.most - out.taken_for
    if entry.family == IMPORTANCE and (left := beyond_cuts(evidence)):  # what is left out may be worth what can be
        less -= left * evidence.allowed.least
        more += left * evidence.allowed.most
    return _wider(row, less, more)


def _wider(row: Row, less: float, more: float) -> Row:
    low, high, gain_low, gain_high = row.low - less, row.high + more, row.gain_low - less, row.gain_high + more
    return replace(row, low=low, high=high, gain_low=gain_low, gain_high=gain_high)


def _refitted(
    row: Row, sampled: Sampled, evidence: Evidence, confidence: float, refits: int, seed: int, tell: _Progress
) -> Row:
    """The row of a regressor, whose pull by each episode is not known: Student's interval from refits to episodes drawn again."""
    if refits and sampled.trace.shape is not None:
        raise ValueError("a λ for each step of these logs does not fit episodes drawn again: give refits=0")
    rng, E, starts = np.random.default_rng(seed), sampled.logs.episodes, evidence.starts
    found: list[float] = []
    gains: list[float] = []
    for i in range(refits):
        tell(f"{row.estimator}: refit {i + 1} of {refits}", 0)
        drawn = rng.integers(0, E, E)
        logs = take(sampled.logs, drawn)
        states = logs.state[logs.starts[:-1]] if starts.own else starts.state
        weight = np.full(E, 1 / E) if starts.own else starts.weight
        found.append(float(weight @ fit(replace(sampled, logs=logs), evidence.model).values(states)))
        gains.append(found[-1] - float(evidence.observed.returns[drawn].mean()))
    nan = float("nan")
    t = float(stdtrit(refits - 1, (1 + confidence) / 2)) if refits > 1 else nan
    error, spread = (float(np.std(x, ddof=1)) if refits > 1 else nan for x in (found, gains))
    return replace(
        row, standard_error=error, low=row.estimate - t * error, high=row.estimate + t * error, effective=nan, largest=nan,
        gain_low=row.gain - t * spread, gain_high=row.gain + t * spread,
    )  # fmt: skip


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
        actions, states = (logs.action_names or range(logs.actions)), (logs.state_names or range(logs.states))
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
