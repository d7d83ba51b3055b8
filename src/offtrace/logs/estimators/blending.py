"""MAGIC: partial returns of many lengths, blended so that the estimated mean squared error is least (Thomas & Brunskill 2016).

The return of j steps is weighted doubly robust up to step j, and the model's from there on; with w_t = W_t / Σ_e W_t,

    g_j = Σ_e V̂(s_0) / E + Σ_{t≤j} γ^t Σ_e w_t δ_t,      δ_t = r_t + γ V̂(s_{t+1}) − Q̂(s_t, a_t)

So g_{−1} is the model alone, and g_∞ is weighted doubly robust. The blend is Σ_j x_j g_j with x ≥ 0, Σ x = 1, at the least

    xᵀ(Ω + bbᵀ)x          Ω the covariance of the g_j, b_j the distance from g_j to the 90 % interval of g_∞

j is −1, 0, 1, 3, 7, … and ∞. Three things are other than in the paper. V̂ is cross-fitted. Ω and the interval of g_∞ are by the
delta method, from what each episode contributes, in place of a bootstrap; and for j < ∞ that has the episode's pull on V̂, without
which the model would seem to have no variance. The interval of the blend takes x for fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from offtrace._shared.number_text import number, percent
from offtrace.logs.estimators.estimator_checks import (
    Check,
    Checking,
    Estimated,
    OfFit,
    few,
    in_range,
    markov,
    mean_weight_by_step,
    rests_on,
)
from offtrace.logs.estimators.fitted_iteration import Fit, Regressed
from offtrace.logs.estimators.importance_sampling import Weighting, weighted_per_decision
from offtrace.logs.estimators.registry import LACKING, MU, Evidence
from offtrace.logs.estimators.weight_shares import kish, shares

QUANTILE = 1.6448536269514722
"""Of the normal distribution, for an interval of 90 %."""
RIDGE = 1e-9
"""The least eigenvalue of the errors, relative to all: of two returns that are alike each gets half."""
LEANS = 0.1
"""From this share of the model on, what is wrong with the model is wrong with the blend."""


@dataclass(frozen=True, eq=False)
class Blend:
    """The partial returns, and how they are blended."""

    steps: NDArray[np.int64]
    """[m]: j of each return; the last is that of the longest return whose weights exist."""
    returns: NDArray[np.float64]
    """g_j [m]."""
    contributions: NDArray[np.float64]
    """[E, m]: what each episode contributes to each."""
    bias: NDArray[np.float64]
    """b_j [m]."""
    share: NDArray[np.float64]
    """x_j [m]."""
    model: float
    """The share of the model: Σ_j x_j γ^{j+1} over j < ∞."""
    effective: float
    """How many episodes the weights are worth, discounted over the steps of the longest return."""


def partial_steps(longest: int) -> NDArray[np.int64]:
    """The lengths j of partial returns in episodes of at most so many steps.

    >>> partial_steps(10).tolist()
    [-1, 0, 1, 3, 7, 9]
    """
    powers = 2 ** np.arange(0, max(1, int(longest).bit_length())) - 1
    return np.unique(np.concatenate([[-1], powers[powers < longest], [longest - 1]]))


def least_error(covariance: NDArray[np.float64], bias: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return x [m] ≥ 0 with Σ x = 1 at the least xᵀ(Ω + bbᵀ)x.

    Without Σ x = 1, the least xᵀMx + (Σx − 1)² is a problem of non-negative least squares; scaled to the sum 1 it has the same x,
    since for a fixed direction of least q = xᵀMx the whole is q / (1 + q).

    >>> least_error(np.diag([1.0, 3.0]), np.zeros(2)).round(2).tolist()
    [0.75, 0.25]
    """
    M = covariance + np.outer(bias, bias)
    scale = float(np.trace(M)) or 1.0
    values, vectors = np.linalg.eigh(M / scale)
    root = np.sqrt(np.clip(values, RIDGE, None))[:, None] * vectors.T
    x, _ = nnls(np.vstack([root, np.ones(len(M))]), np.append(np.zeros(len(M)), 1.0))
    return x / x.sum()


def blend(evidence: Evidence) -> Blend:
    """Compute the partial returns, and blend them."""
    logs, w, direct, gamma = evidence.logs, evidence.weights, evidence.direct, evidence.gamma
    if w is None:
        raise ValueError(LACKING[MU])
    q, v, first = direct.crossed
    delta = Weighting(weighted_per_decision, doubly_robust=True).signal(logs, gamma, q, v)
    effective = w.effective()
    exists = int(np.argmax(np.isnan(effective))) if np.isnan(effective).any() else len(effective)
    steps, found = partial_steps(exists), []
    for j in steps:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            part = weighted_per_decision(w, np.where(w.age <= j, delta, 0.0))
        x = first + (part.contributions if j >= 0 else 0.0)
        if j < exists - 1 or exists < len(effective):
            x = x + logs.episodes * _pull(direct.fit, evidence, np.where(w.age <= j, part.by_step, 0.0))
        found.append(x)
    contributions = np.column_stack(found)
    fine = np.isfinite(contributions).all(axis=0)
    steps, contributions = steps[fine], contributions[:, fine]
    if not len(steps):
        nothing = np.full(1, np.nan)
        return Blend(np.array([-1]), nothing, np.full((logs.episodes, 1), np.nan), nothing, np.ones(1), 1.0, 0.0)
    g = contributions.mean(axis=0)
    covariance = np.atleast_2d(np.cov(contributions.T)) / logs.episodes
    half = QUANTILE * float(np.sqrt(covariance[-1, -1]))
    bias = np.sign(g - g[-1]) * np.maximum(np.abs(g - g[-1]) - half, 0.0)
    share = least_error(covariance, bias)
    partial = steps < len(effective) - 1
    model = float(share[partial] @ gamma ** (steps[partial] + 1.0))
    with np.errstate(divide="ignore"):
        log_mean = np.log(w.discounted_mean())
    worth = kish(shares(log_mean)) if np.isfinite(log_mean.max()) else 0.0
    return Blend(steps, g, contributions, bias, share, model, worth)


def _pull(found: Fit | Regressed, evidence: Evidence, by_step: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much each episode moves a partial return by way of V̂ [E]; 0 for a regressor, of which it is not known."""
    if isinstance(found, Regressed):
        return np.zeros(evidence.logs.episodes)
    basis, logs, starts = found.basis, evidence.logs, evidence.starts
    onward = np.where(logs.terminated, 0.0, evidence.gamma * by_step)
    parts = found.sampled.each(lambda p: basis.spread(p, -by_step[p], onward[p]), basis.piece)
    return found.influence(sum(parts, basis.spread_values(starts.state, starts.weight)))


def magic(evidence: Evidence) -> tuple[float, NDArray[np.float64]]:
    """V̂ by the blend, and what each episode contributes [E]."""
    found = evidence.blend
    x = found.contributions @ found.share
    return float(x.mean()), x


# --- what can go wrong ------------------------------------------------------------------------------------------------


def leans(evidence: Evidence, found: Estimated) -> Check | None:
    """How much of it is the model's, and whether its interval knows of that."""
    blended = evidence.blend
    regressed = isinstance(evidence.direct.fit, Regressed) and blended.model > LEANS
    words = f"{percent(blended.model)} of it is the model's"
    if regressed:
        words += ", a regressor, and how episodes move that is not known: it has no interval"
    return Check("blend", blended.model, words, regressed, no_interval=regressed)


def unseen(evidence: Evidence, found: Estimated) -> Check | None:
    """Whether the weights are worth enough episodes to show a bias of the model."""
    blended = evidence.blend
    weak = blended.effective < few(evidence.logs.episodes)
    words = f"what the model's bias is judged by is worth {number(blended.effective)} episodes"
    words += ", too few to see one" if weak else ""
    words += ": it says little more than the direct method" if weak and blended.model > LEANS else ""
    return Check("unseen", blended.effective, words, weak)


def of_model(check: Checking) -> Checking:
    """A check of the model, where the blend leans on it."""

    def where_it_leans(evidence: Evidence, found: Estimated) -> Check | None:
        return check(evidence, found) if evidence.blend.model > LEANS else None

    return where_it_leans


def checks_of(model: OfFit) -> tuple[Checking, ...]:
    """All checks of MAGIC, in the order in which they are told."""
    of_fit = (of_model(check) for check in (model.settled, model.finds_behavior, model.support, markov, model.residual))
    return leans, unseen, mean_weight_by_step, *of_fit, rests_on, in_range
