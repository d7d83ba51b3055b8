"""What can go wrong with an estimator, each kind by itself: a check says what was found, and whether it failed.

finds V(μ)      a model of Q that is asked for the policy that made the logs must find what was observed
support         E[γ^τ], τ the first time that π takes a pair (s, a) that was never logged
thin            of features: (Σρ)² / Σρ² over steps, on which a fit of what the target does rests
settled         whether the iteration ended in a fixed point
hidden          whether the past of an episode tells what follows, given state and action: states should be Markov
mean weight     of whole episodes W_{T−1}, or Σ_t γ^t W_t / Σ_t γ^t; its expectation is 1
worth           (ΣW)² / ΣW²: how many episodes the weights are worth
rests on        on how many episodes the estimate rests, and how many earned something else than most did
range           whether the estimate is one that rewards and horizon allow
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from offtrace._shared.number_text import count, interval, number, percent
from offtrace.logs.fit import Fit, Regressed
from offtrace.logs.importance import Weights, worth
from offtrace.logs.intervals import by_cluster
from offtrace.logs.on_policy import value_of_behavior
from offtrace.logs.registry import ESTIMATORS
from offtrace.logs.support import way_out

if TYPE_CHECKING:
    from offtrace.logs.evidence import Evidence
    from offtrace.logs.result import Row

MUCH = 0.01
"""Of the target's way outside the data."""
HANDFUL = 30
"""Episodes on which an answer must rest."""
FEWEST = 10
"""Episodes that weights must be worth for an interval."""
NARROW = 0.01
"""An interval as narrow as this, in ranges of the returns, need not rest on many episodes: transitions are deterministic."""


@dataclass(frozen=True)
class Check:
    """One way in which an estimator can fail, and what was found."""

    kind: str
    number: float
    words: str
    """What is wrong, for people; what was found where nothing is."""
    failed: bool


Checking = Callable[["Evidence", "Row"], Check | None]
"""A check of a row of the result; None where there is nothing to look at."""


# --- of fitted values -------------------------------------------------------------------------------------------------


def _fit_of(evidence: Evidence, row: Row) -> Fit | Regressed:
    """The fixed point that an estimator of this row took."""
    operator = ESTIMATORS[row.estimator].operator
    assert operator is not None  # these checks are those of fits
    return evidence.fit_of(operator(evidence))


def settled(evidence: Evidence, row: Row) -> Check | None:
    """Whether the iteration ended in a fixed point."""
    fitted = _fit_of(evidence, row)
    if fitted.converged:
        return None
    words = (
        "the iteration did not settle, so that its values are no fixed point and it has no interval; try a γ below 1, a "
        "smaller λ, or a trace with the recursive condition"
    )
    return Check("settled", fitted.sweeps, words, True)


def finds_behavior(evidence: Evidence, row: Row) -> Check | None:
    """V̂(μ) by the same trace and model, against what was observed."""
    mine, seen = _fit_of(evidence, row).sampled, evidence.observed
    if mine.trace.needs_greedy:  # μ is not greedy
        return None
    value = evidence.direct_of_behavior if mine is evidence.one_step else value_of_behavior(mine, evidence.model)
    words = f"it finds V(μ) = {number(value)}; observed were {number(seen.estimate)} {interval(seen.low, seen.high)}"
    return Check("V(μ)", value, words, seen.missed_by(value))


def support(evidence: Evidence, row: Row) -> Check | None:
    """How much of π's discounted way leaves the data."""
    share, _ = way_out(evidence)
    if not share:
        return None
    where = "pairs that were never logged" if evidence.logs.tabular else "actions that were never logged"
    where = "actions outside of the range of the logged ones" if evidence.logs.continuous else where
    words = f"{percent(share)} of the target's way, discounted, leads through {where}: of that the data say nothing"
    return Check("support", share, words, share > MUCH)


def thin(evidence: Evidence, row: Row) -> Check | None:
    """Of features: how many effective steps there are of what the target does, by the ratio of each step alone."""
    logs = evidence.logs
    if evidence.model is None or evidence.logs.tabular or logs.log_mu is None or logs.continuous:
        return None
    log_ratio = evidence.log_pi - logs.log_mu
    steps = worth(log_ratio)
    thin = steps < few(evidence.independent)
    words = f"there are {count(steps)} effective steps of {count(len(logs))} of what the target policy does"
    words += ": from so few a model extrapolates" if thin else ""
    return Check("thin", steps, words, thin)


# --- of importance sampling -------------------------------------------------------------------------------------------


def _weights(evidence: Evidence) -> Weights:
    assert evidence.weights is not None  # these estimators need μ
    return evidence.weights


def mean_weight(evidence: Evidence, row: Row, by_step: bool) -> Check:
    """The mean weight, which should be 1."""
    w = _weights(evidence)
    x = w.discounted_mean() if by_step else w.whole
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(x.mean())
        x = by_cluster(x[:, None], evidence.cluster)
        error = float(x.std() / np.sqrt(len(x)))
    off = abs(mean - 1) > max(3 * error, 0.02) or not 0.5 < mean < 2
    words = f"its weights have the mean {number(mean)}"
    if off:
        words += (
            ", and should have 1: too few or too many of the episodes that matter for the target policy are there, or μ is "
            "not what it was said to be"
        )
    return Check("mean weight", mean, words, off)


def worth_of_weights(evidence: Evidence, row: Row, by_step: bool) -> Check:
    """How many episodes the weights are worth."""
    w, E = _weights(evidence), evidence.logs.episodes
    effective = w.worth_by_step if by_step else worth(w.log_whole)
    words = f"its weights are worth {effective:.1f} of {E:,} episodes"
    return Check("worth", effective, words, effective < few(E))


def few(episodes: int) -> float:
    """Below this an answer rests on a handful of episodes; of few episodes that is less."""
    return min(HANDFUL, 0.3 * episodes)


# --- of all -----------------------------------------------------------------------------------------------------------


def markov(evidence: Evidence, row: Row) -> Check | None:
    """Whether the states hide something, of an estimator that takes them to be Markov."""
    tested = evidence.hidden_states
    return None if tested is None else Check("hidden", tested.chance, tested.words, tested.significant)


def rests_on(evidence: Evidence, row: Row) -> Check | None:
    """On how many episodes the estimate rests: no more than those that earned something else than most did."""
    enough = few(evidence.independent)
    unlike = evidence.observed.unlike_most
    if 0 < unlike < min(FEWEST, enough):
        words = f"all but {count(unlike)} of {count(evidence.logs.episodes)} episodes earned the same: it rests on these few"
        return Check("rests on", unlike, words, True)
    if np.isnan(row.effective):
        return None
    handful = 0 < row.effective < enough and row.high - row.low > NARROW * float(np.ptp(evidence.observed.returns))
    words = f"it rests on {count(row.effective)} effective episodes" + (", which is a handful" if handful else "")
    return Check("rests on", row.effective, words, handful)


def in_range(evidence: Evidence, row: Row) -> Check | None:
    """Whether the estimate can be."""
    allowed = evidence.allowed
    if allowed.least - 1e-6 <= row.estimate <= allowed.most + 1e-6 or np.isnan(row.estimate):
        return None
    words = f"rewards and horizon only allow values from {number(allowed.least)} to {number(allowed.most)}"
    return Check("range", row.estimate, words, True)


def left_out(evidence: Evidence, row: Row) -> Check | None:
    """How much of the discounted future lies beyond cuts, where no model can say what it is worth."""
    share = beyond_cuts(evidence)
    if not share:
        return None
    words = (
        f"{percent(share)} of the discounted future lies beyond the cut of episodes and is left out, since the target policy "
        "does not say which actions it takes: Density(log_pi, sample=…) does"
    )
    return Check("left out", share, words, share > MUCH)


def beyond_cuts(evidence: Evidence) -> float:
    """The mean over episodes of γ^T where they were cut after T steps; 0 where a model says what comes after."""
    logs = evidence.logs
    if evidence.policy.draws:
        return 0.0
    last = logs.last_steps
    return float(np.where(logs.truncated[last], evidence.gamma**logs.lengths, 0.0).mean())


def _of_weights(by_step: bool) -> tuple[Checking, ...]:
    """The checks of weights W_{T−1} of whole episodes, or of their discounted means over steps."""
    weights = partial(mean_weight, by_step=by_step), partial(worth_of_weights, by_step=by_step)
    return *weights, left_out, rests_on, in_range


OF_FITS: tuple[Checking, ...] = settled, finds_behavior, support, thin, markov, rests_on, in_range
WHOLE, BY_STEP = _of_weights(by_step=False), _of_weights(by_step=True)
