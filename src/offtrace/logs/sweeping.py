"""Values from logs that are larger than a machine: the fixed point of the sampled operator, by sums over files.

One sweep reads every file once, and adds something up (`one_file`): by how much the steps of each pair (s, a) ask Q to change, or
the matrices of a linear fit. Sums do not depend on how the episodes are spread over files and workers, but for rounding. So the
result is the fitted estimate of `offtrace.logs.evaluate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

from offtrace._shared.progress_bar import ProgressBar
from offtrace.logs import file_sums
from offtrace.logs.bases import Linear, Table, gram_and_variance
from offtrace.logs.features import fourier_features
from offtrace.logs.file_sums import First, Passes, Question, contributions, over_pieces
from offtrace.logs.fit import Features, asked, fixed_point, is_solution, linear_basis, pull_of
from offtrace.logs.intervals import bootstrap
from offtrace.logs.linear_systems import inverse_of
from offtrace.logs.map_files import by_ray, by_threads, check_episodes, files_in
from offtrace.logs.policies import Policy, refuse_frame
from offtrace.logs.reading.columns import Columns, Names
from offtrace.logs.swept import Swept
from offtrace.traces import OneStep, Trace
from offtrace.traces.base import number, whole
from offtrace.traces.trace_argument import as_trace
from offtrace.trajectory import distributions

MODELS = ("table", "linear", "fourier")
"""The models of Q by name."""
RIDGE = 1.0
"""Of linear and Fourier features: in logs that are larger than a machine it hardly matters."""
RESAMPLES = 1000
"""Of the bootstrap."""
MOST = 5000
"""Features at most: a matrix of their number squared is summed for each file."""


def sweep(
    source: str | Path | Sequence[str | Path],
    target: object,
    *,
    gamma: float,
    trace: Trace | None = None,
    model: str | Features | None = None,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
    truncated: Literal["never", "at end"] | None = None,
    states: Names = None,
    actions: Names = None,
    sweeps: int | None = None,
    confidence: float | None = 0.95,
    seed: int = 0,
    on: Literal["here", "ray"] = "here",
    workers: int | None = None,
    address: str | None = None,
    progress: bool = False,
) -> Swept:
    """V(π) and Q of π from logs that need not fit into memory, by sums over files of whole episodes.

    - `source`: a folder of Parquet, Arrow or CSV files, a pattern such as "logs/*.parquet", or a list of files. No episode may be
      in two files: that is an error.
    - `target`: π as a table [S, A], for states that are ids; a callable, features [n, d] → probabilities [n, A], or an object
      with `predict_proba`, for states that are features. `states` and `actions` are what these are called in the files, in the
      order of the table; without them they are ids 0 … S − 1 and 0 … A − 1. With features `actions` must be given: how many, or
      names.
    - `trace`: the rule; None: one step, the direct method
    - `model` of Q: None (a table for ids, "fourier" for features), "linear", "fourier" or `Features`
    - `columns` and `truncated` are those of `read`.
    - `sweeps`: None continues to the fixed point; a number applies the sampled operator of a table so often, from Q = 0.
    - `confidence` of the interval for V(π), by the bootstrap of `evaluate` from what each episode contributes. For a table it
      takes about as many sweeps as Q itself, for features one. None: no interval. It tells nothing of what a model misses, nor of
      actions that were never logged.
    - `seed` of Fourier features.
    - `on`: "here", by threads of this process, or "ray", on the cluster at `address`, or a new one on this machine. The result
      is the same, but for rounding, whatever the number of files and `workers`; a file whose worker is lost is read again.

    Memory is about 150 bytes for each step of the largest file, for each worker, 8 for each episode, and some tables [S, A]; with
    p features also 100 MB for their values, and some matrices [p, p].

    >>> import numpy as np
    >>> target = np.full((1000, 4), 0.25)
    >>> swept = sweep("logs/", target, gamma=0.99)  # doctest: +SKIP
    """
    files, trace = files_in(source), _checked_trace(OneStep() if trace is None else trace, columns)
    gamma = number("gamma", gamma, 0.0, 1.0)
    policy, states, actions = _policy(target, states, actions)
    kind = _model(model, states is not None)
    if sweeps is not None:
        whole("sweeps", sweeps)
        if kind != "table":
            raise ValueError(
                "sweeps are those of a table: with features the fixed point takes a few passes, whatever the trace"
            )
    if confidence is not None and not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie in (0, 1), or be None for no interval, got {confidence!r}")
    if workers is not None:
        whole("workers", workers)
    if on not in ("here", "ray"):
        raise ValueError(f'on must be "here" or "ray", got {on!r}')
    question = Question(trace, policy, gamma, columns, truncated, states, actions)
    workers_map = by_threads(workers) if on == "here" else by_ray(address, workers)
    with threadpool_limits(1, user_api="blas"), ProgressBar() as bar, workers_map as each:
        passes = Passes(files, each, question, bar if progress else None)
        first = First(*passes.over(file_sums.first))
        if columns.episode is not None:
            check_episodes(files, [ids for ids, _, _ in first.files], columns.episode)
        if kind == "table":
            return _of_table(passes, first, sweeps, confidence)
        return _of_features(passes, first, kind, confidence, seed)


def _of_table(passes: Passes, first: First, sweeps: int | None, confidence: float | None) -> Swept:
    basis = Table(passes.question.of_no_steps(), first.counts)
    total, constant = passes.total(basis), basis.mean(first.asked)
    if sweeps is None:
        θ, _, converged = fixed_point(basis, total, constant)
    else:
        θ, converged, confidence = constant, False, None
        for _ in range(sweeps - 1):
            θ = θ + basis.mean(total(np.zeros(basis.size), asked, θ, True))
    policy, states = np.asarray(passes.question.policy), np.arange(len(first.states))
    counts, V, Q = first.counts.reshape(policy.shape), basis.values(θ, states), basis.q(θ, states)
    value, c = float(first.states @ V / first.states.sum()), None
    if confidence is not None and converged:
        c = pull_of(basis, total, basis.spread_values(states, first.states / first.states.sum()))
    outside = counts.sum(axis=1) @ np.where(counts == 0, policy, 0.0).sum(axis=1)
    return _swept(
        passes, first, basis, θ, c, value, confidence, converged=converged, table=(Q, counts),
        unlogged=float(outside / counts.sum()), q=Q.__getitem__, values=V.__getitem__,
    )  # fmt: skip


def _of_features(passes: Passes, first: First, model: str | Features, confidence: float | None, seed: int) -> Swept:
    nothing = passes.question.of_no_steps()
    features = linear_basis(nothing, _features(passes, first, model, nothing.logs.actions, seed))
    gram, total, steps = passes.over(over_pieces, features, Linear.moments)
    if len(gram) > MOST:
        raise ValueError(f"{len(gram):,} features (with a block for each action) are more than {MOST:,}: take fewer")
    basis = replace(features, of_all=gram_and_variance(gram, total, steps))
    matrix, constant, starts = passes.over(over_pieces, basis, file_sums.system)
    inverse = inverse_of(matrix + basis.penalty)
    θ, gradient = inverse @ constant, starts / int(first.returns[0])
    converged = is_solution(matrix + basis.penalty, θ, constant)
    c = gradient @ inverse if confidence is not None and converged else None
    return _swept(
        passes, first, basis, θ, c, float(gradient @ θ), confidence, converged=converged, q=partial(basis.q, θ),
        values=partial(basis.values, θ),
    )  # fmt: skip


def _features(passes: Passes, first: First, model: str | Features, actions: int, seed: int) -> Features:
    if isinstance(model, Features):
        if model.of_states is None and model.of_pairs is None and passes.question.states is not None:
            raise ValueError(
                "the states are ids: say what their features are, with Features(φ), φ a table [S, d] or a callable"
            )
        return model
    if model == "linear":
        return Features(ridge=RIDGE)
    steps = first.returns[1]
    middle = first.states / steps
    scale = np.sqrt(passes.over(file_sums.squares, middle) / steps)
    return Features(fourier_features(middle, scale, int(steps), actions, seed), ridge=RIDGE)


def _swept(
    passes: Passes,
    first: First,
    basis: Table | Linear,
    θ: np.ndarray,
    c: np.ndarray | None,
    value: float,
    confidence: float | None,
    **more: Any,
) -> Swept:
    """The result, with V(μ), and with an interval where c is known, which does not leave what rewards and γ allow."""
    episodes, steps, total, squares = first.returns
    gamma = passes.question.gamma
    error, low, high = (float("nan"),) * 3
    if c is not None and confidence is not None and episodes > 1:
        x = np.concatenate(passes.over(over_pieces, basis, contributions, θ, episodes * c))
        error = float(x.std() / np.sqrt(len(x)))
        (low,), (high,) = bootstrap((value + x - x.mean())[:, None], confidence, RESAMPLES, seed=0)
        rounded = 1e-8 * abs(value) + 1e-12
        low, high = low - rounded, high + rounded
        if gamma < 1:
            least = min(0.0, *(lowest for _, lowest, _ in first.files))
            most = max(0.0, *(highest for _, _, highest in first.files))
            low, high = max(low, least / (1 - gamma)), min(high, most / (1 - gamma))
    mean = total / episodes
    return Swept(
        value=value,
        low=low,
        high=high,
        confidence=confidence,
        standard_error=error,
        observed=float(mean),
        observed_error=float(np.sqrt(max(squares / episodes - mean**2, 0.0) / max(episodes - 1, 1))),
        steps=int(steps),
        episodes=int(episodes),
        sweeps=passes.count,
        **more,
    )


def _checked_trace(trace: object, columns: Columns) -> Trace:
    """A trace that can be swept; else an error that says what to do."""
    rule = as_trace(trace)
    if rule.shape is not None:
        raise ValueError(
            f"{rule.title} holds a λ for each step of one log, and a sweep goes over many files: take a trace with one λ"
        )
    if rule.needs_mu and columns.behaviour is None:
        raise ValueError(
            f"{rule.title} needs μ(a|s) of the actions taken, and a sweep does not estimate it: declare the column that holds "
            "it, Columns(mu=…) or Columns(log_mu=…), or take a trace that needs no μ: TreeBackup, QLambda, OneStep"
        )
    return rule


def _policy(target: object, states: Names, actions: Names) -> tuple[object, Names, Names]:
    """π, and how many states and actions there are, or their names; no states where they are features."""
    if hasattr(target, "predict_proba") or callable(target) or isinstance(target, Policy):
        if states is not None:
            raise ValueError(
                f"states={states!r} are ids, and the target policy is a function: give it as a table [S, A] of probabilities"
            )
        if actions is None:
            raise ValueError(
                "the target policy is a function, so that actions must be given: how many there are, or their names. One file "
                "need not show them all"
            )
        return target, None, actions
    refuse_frame(target, "target")
    table = np.asarray(target)
    if table.ndim != 2 or table.dtype.kind not in "fiub":
        raise TypeError(
            f"target must be a table of probabilities [S, A], or a function of features, got {table.dtype} of shape "
            f"{table.shape}"
        )
    policy = distributions(np.ascontiguousarray(table, np.float64), "the target policy", "state number")
    for what, names, n in (("states", states, policy.shape[0]), ("actions", actions, policy.shape[1])):
        if names is not None and (names if isinstance(names, int) else len(names)) != n:
            raise ValueError(f"{what} must be the {n} of the target policy [S, A] = {policy.shape}, got {names!r}")
    return policy, policy.shape[0] if states is None else states, policy.shape[1] if actions is None else actions


def _model(model: object, tabular: bool) -> str | Features:
    """The model's name, or the features."""
    if isinstance(model, Features):
        return model
    if model is None:
        return "table" if tabular else "fourier"
    if not isinstance(model, str) or model not in MODELS:
        raise ValueError(
            f"model must be one of {', '.join(map(repr, MODELS))} or a Features, got {model!r}: a Regressor needs all "
            "steps at once, which `evaluate` has"
        )
    if model == "table" and not tabular:
        raise ValueError('model="table" needs states that are ids, and a target that is a table [S, A]')
    if model != "table" and tabular:
        raise ValueError(f"model={model!r} needs states that are features: for ids give Features(φ), φ a table [S, d]")
    return model
