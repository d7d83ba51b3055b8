"""λ and the trace, chosen from the data: Lepski's method, as SLOPE has it (Su, Srinath & Krishnamurthy 2020), and the V(μ) check.

With a large λ the fitted estimate leans on returns: it has little bias by a wrong model, and the most variance. With a small one
it leans on the model. Candidates of one rule are looked at from the largest λ down, each with the interval I = estimate ± 2
standard errors. Chosen is the last one whose interval has a point in common with all those before it (`last_in_common`).

Candidates that, asked for V(μ), miss what was observed are left out before. Of several rules, the one whose chosen estimate has
the smallest standard error is taken.

Where the states seem to hide something (`hidden_states`), a table is biased with every λ, and its intervals do not know: that
they have a point in common says nothing. Then the candidate is taken whose estimate is nearest to weighted doubly robust, which
weights correct, whatever the states are; where these weights are worth too few episodes, the largest λ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

from offtrace._shared.number_text import four_digits
from offtrace._shared.number_text import number as in_digits
from offtrace.logs.checks import few
from offtrace.logs.container import Logs
from offtrace.logs.evidence import Evidence, gather
from offtrace.logs.fit import Regressor, fit
from offtrace.logs.importance import Weighting, weighted_per_decision
from offtrace.logs.on_policy import first_values, on_policy
from offtrace.logs.registry import ACTIONS, LACKING, named
from offtrace.traces import RBIS, Trace
from offtrace.traces.base import number

LAMBDAS = (1.0, 0.98, 0.95, 0.9, 0.8, 0.6, 0.3, 0.0)
"""What is tried, if nothing else is asked for."""
WIDTH = 2.0
"""Half of an interval, in standard errors."""


@dataclass(frozen=True)
class Candidate:
    """A trace that was tried."""

    trace: Trace
    estimate: float
    """V̂(π)."""
    standard_error: float
    of_behavior: float
    """V̂(μ) by the same trace and model."""
    misses: bool
    """Whether that misses what was observed, or there is no standard error: then it is left out."""
    agrees: bool
    """Whether its interval has a point in common with all those of larger λ."""


@dataclass(frozen=True)
class Choice:
    """The trace that the data choose, and what was tried; prints as a table."""

    trace: Trace
    candidates: tuple[Candidate, ...]
    behavior: float
    """V(μ) as observed."""
    words: str
    """Why this one, in plain words."""
    by_weights: float = float("nan")
    """V(π) by weighted doubly robust, where the states seem to hide something and weights choose; else NaN."""

    def __repr__(self) -> str:
        width = max(len(named(c.trace)) for c in self.candidates)
        lines = [
            self.words,
            f"  {'':<{width}}  {'V(π)':>10}  {'error':>9}  {'V(μ)':>10}   observed {four_digits(self.behavior)}",
        ]
        for c in self.candidates:
            verdict = "misses V(μ)" if c.misses else "agrees" if c.agrees else "disagrees with larger λ"
            if not c.misses and np.isfinite(self.by_weights):
                verdict = f"{in_digits(abs(c.estimate - self.by_weights))} from what weights find"
            verdict = "chosen" if c.trace == self.trace else verdict
            shown = [four_digits(x) for x in (c.estimate, c.standard_error, c.of_behavior)]
            lines.append(f"  {named(c.trace):<{width}}  {shown[0]:>10}  {shown[1]:>9}  {shown[2]:>10}   {verdict}")
        return "\n".join(lines)


def choose(
    logs: Logs,
    target: object,
    *,
    gamma: float,
    traces: Sequence[Trace] | None = None,
    lambdas: Sequence[float] = LAMBDAS,
    model: object = None,
    behavior: object = None,
    initial: object = None,
    folds: int = 5,
    seed: int = 0,
) -> Choice:
    """Choose λ, and the trace if there are several, for the fitted estimate of V(π), from the data.

    - `traces`: the rules, such as `[ot.RBIS(), ot.Retrace()]`, each of which is tried with all `lambdas`; None takes RBIS
    - the other arguments are those of `evaluate`

    >>> import offtrace as ot
    >>> from offtrace import mdps
    >>> from offtrace.logs import choose, simulate
    >>> walk = mdps.random_walk(3)
    >>> logs = simulate(walk, mdps.uniform(walk), episodes=200, seed=0)
    >>> target = np.full((walk.S, walk.A), [0.4, 0.6])
    >>> choose(logs, target, gamma=walk.gamma, lambdas=(1.0, 0.5)).trace
    RBIS(horizon=None, lam=0.5)
    """
    gamma = number("gamma", gamma, 0.0, 1.0)
    rules = [RBIS()] if traces is None else list(traces)
    without = [rule for rule in rules if not hasattr(rule, "lam")]
    if not rules or without or not lambdas:
        what = f"{without[0].title} has no λ" if without else "there is nothing to choose from"
        raise ValueError(f"{what}: give traces that have one, and at least one of lambdas")
    evidence, _ = gather(
        logs, target, None, gamma, model=model, behavior=behavior, initial=initial, folds=folds, seed=seed
    )
    if not evidence.policy.draws:
        raise ValueError(f"λ is that of the fitted estimate, which cannot be computed: {LACKING[ACTIONS]}")
    if isinstance(evidence.model, Regressor):
        raise TypeError("a Regressor has no standard error without refits: choose λ with another model")
    with threadpool_limits(1, user_api="blas"):  # as in `evaluate`
        return tried_lambdas(evidence, rules, lambdas)


def needs_lambda(evidence: Evidence) -> str | None:
    """Why λ = 0 does not do, in words: the states hide something, or the model misses V(μ); None where it does."""
    if isinstance(evidence.model, Regressor):
        return None
    tested = evidence.hidden_states
    if tested is not None and tested.found:
        return tested.words
    value = _value_of_behavior(evidence, evidence.sampled.trace)
    if not evidence.observed.missed_by(value):
        return None
    return f"with λ = 0 the model finds V(μ) = {in_digits(value)}, and {in_digits(evidence.observed.estimate)} was observed"


def _value_of_behavior(evidence: Evidence, trace: Trace) -> float:
    """V̂(μ) by a trace."""
    return float(first_values(fit(on_policy(trace, evidence.sampled.logs, evidence.gamma), evidence.model)).mean())


def tried_lambdas(evidence: Evidence, rules: Sequence[Trace], lambdas: Sequence[float]) -> Choice:
    """Try all these λ of all these rules, and choose."""
    seen = evidence.observed

    def tried(trace: Trace) -> Candidate:
        value, x = evidence.value_of(fit(replace(evidence.sampled, trace=trace), evidence.model))
        of_behavior = _value_of_behavior(evidence, trace)
        spread = float(x.std() / np.sqrt(len(x)))
        fine = np.isfinite(spread) and not seen.missed_by(of_behavior)
        return Candidate(trace, value, spread, of_behavior, not fine, False)

    by_rule: list[list[Candidate]] = []
    for rule in rules:
        given: Any = rule
        by_rule.append([tried(replace(given, lam=float(lam))) for lam in sorted(set(lambdas), reverse=True)])
    sound = [[c for c in candidates if not c.misses] for candidates in by_rule]
    common = [candidates[: _agreeing(candidates)] for candidates in sound]
    everything = [replace(c, agrees=any(c in each for each in common)) for candidates in by_rule for c in candidates]
    hidden, anchor = evidence.hidden_states, float("nan")
    if not any(sound):
        taken = everything[0]
        words = f"every candidate misses V(μ): {named(taken.trace)} is taken, which leans least on a model"
    elif hidden is not None and hidden.found:
        anchor = _weighted_doubly_robust(evidence)
        all_sound = [c for candidates in sound for c in candidates]
        if np.isfinite(anchor):
            taken = min(all_sound, key=lambda c: abs(c.estimate - anchor))
            why = f"its estimate is nearest to {in_digits(anchor)}, which weighted doubly robust finds"
        else:
            taken = all_sound[0]
            why = "it leans on the states least, and the weights are worth too few episodes to tell more"
        words = (
            f"{named(taken.trace)} is chosen: {why}{_left_out(everything)}. No λ can be relied on here: {hidden.words}"
        )
    else:
        taken = min((candidates[-1] for candidates in common if candidates), key=lambda c: c.standard_error)
        words = f"{named(taken.trace)} is chosen: the smallest λ whose estimate agrees with those of all larger ones"
        words += _left_out(everything)
        words += "; of the rules, the one with the smallest standard error" if len(rules) > 1 else ""
    return Choice(taken.trace, tuple(everything), seen.estimate, words, anchor)


def _agreeing(candidates: Sequence[Candidate]) -> int:
    """How many candidates, from the largest λ down, have intervals with a point in common."""
    halves = [WIDTH * c.standard_error + 1e-8 * abs(c.estimate) for c in candidates]  # on deterministic data: rounding
    ends = [(c.estimate - half, c.estimate + half) for c, half in zip(candidates, halves, strict=True)]
    return last_in_common(ends) + 1


def last_in_common(intervals: Sequence[tuple[float, float]]) -> int:
    """The last i for which the intervals 0 … i have a point in common.

    >>> last_in_common([(0, 4), (1, 5), (3, 6), (4.5, 7)])
    2
    """
    low, high = -np.inf, np.inf
    for i, (a, b) in enumerate(intervals):
        low, high = max(low, a), min(high, b)
        if low > high:
            return i - 1
    return len(intervals) - 1


def _left_out(everything: list[Candidate]) -> str:
    left_out = sum(c.misses for c in everything)
    return f"; {left_out} of {len(everything)} candidates are left out, since they miss V(μ)" if left_out else ""


def _weighted_doubly_robust(evidence: Evidence) -> float:
    """V(π) by weighted doubly robust; NaN where it cannot be computed, or its weights are worth too few episodes."""
    w = evidence.weights
    if w is None or not evidence.starts.own or w.worth_by_step < few(evidence.logs.episodes):
        return float("nan")
    return Weighting(weighted_per_decision, doubly_robust=True)(evidence)[0]
