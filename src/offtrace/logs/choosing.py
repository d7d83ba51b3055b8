"""λ of a fit, chosen from the data where λ = 0 does not do: Lepski's method, as SLOPE has it (Su, Srinath & Krishnamurthy 2020).

With a large λ the fitted estimate leans on returns: it has little bias by a wrong model, and the most variance. With a small one
it leans on the model. Candidates are looked at from the largest λ down, each with the interval I = estimate ± 2 standard errors,
without those that, asked for V(μ), miss what was observed. Chosen is the last one whose interval has a point in common with all
those before it.

Where the states seem to hide something (`hidden_states`), a table is biased with every λ, and its intervals do not know. Then
the candidate is taken whose estimate is nearest to weighted doubly robust, which weights correct, whatever the states are; where
these weights are worth too few episodes, the largest λ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from offtrace._shared.number_text import number
from offtrace.logs.checks import few
from offtrace.logs.evidence import Evidence
from offtrace.logs.fit import Regressor, fit
from offtrace.logs.importance import Weighting, weighted_per_decision
from offtrace.logs.on_policy import value_of_behavior
from offtrace.traces import RBIS, Trace

LAMBDAS = (1.0, 0.95, 0.8, 0.5)
WIDTH = 2.0
"""Standard errors on each side of an estimate, for its interval."""


def needs_lambda(evidence: Evidence) -> str | None:
    """Why λ = 0 does not do, in words: the states hide something, or the model misses V(μ); None where it does."""
    if isinstance(evidence.model, Regressor):
        return None
    tested = evidence.hidden_states
    if tested is not None and tested.significant:
        return tested.words
    value = evidence.direct_of_behavior
    if not evidence.observed.missed_by(value):
        return None
    return f"with λ = 0 the model finds V(μ) = {number(value)}, and {number(evidence.observed.estimate)} was observed"


def chosen_trace(evidence: Evidence, lambdas: Sequence[float] = LAMBDAS) -> Trace:
    """RBIS with one of these λ, which come from the largest down."""
    traces = [RBIS(lam=lam) for lam in lambdas]
    sound: list[tuple[Trace, float, float]] = []  # with its estimate and standard error
    for trace in traces:
        sampled = replace(evidence.sampled, trace=trace)
        value, x = evidence.value_of(fit(sampled, evidence.model))
        error = float(x.std() / np.sqrt(len(x)))
        if np.isfinite(error) and not evidence.observed.missed_by(value_of_behavior(sampled, evidence.model)):
            sound.append((trace, value, error))
    if not sound:
        return traces[0]
    hidden = evidence.hidden_states
    if hidden is not None and hidden.significant:
        anchor = _weighted_doubly_robust(evidence)
        return sound[0][0] if anchor is None else min(sound, key=lambda each: abs(each[1] - anchor))[0]
    halves = [WIDTH * error + 1e-8 * abs(value) for _, value, error in sound]  # on deterministic data: rounding
    ends = [(value - half, value + half) for (_, value, _), half in zip(sound, halves, strict=True)]
    return sound[last_in_common(ends)][0]


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


def _weighted_doubly_robust(evidence: Evidence) -> float | None:
    """V(π) by weighted doubly robust; None where it cannot be computed, or its weights are worth too few episodes."""
    w = evidence.weights
    if w is None or not evidence.starts.own or w.worth_by_step < few(evidence.logs.episodes):
        return None
    return Weighting(weighted_per_decision, doubly_robust=True)(evidence)[0]
