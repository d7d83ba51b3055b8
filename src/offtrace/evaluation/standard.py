"""The standard estimators, by importance sampling: Σ a_t x_t, for W_t = ρ_0 ··· ρ_t in an episode and x_t a signal.

    ordinary (trajectory) IS     a_t = γ^t W_{T−1} / E              weighted    a_t = γ^t W_{T−1} / Σ_e W_{T−1}
    per-decision IS              a_t = γ^t W_t / E                  weighted    a_t = γ^t W_t / Σ_e W_t
    truncated IS                 a_t = γ^t min(c, W_t) / E          c = √E unless it is given (Ionides 2008)

x_t is the reward; an episode that was *truncated* goes on unseen, so its last x also has γ V̂(s_T), V̂ from the direct method.
Doubly robust estimators (Jiang & Li 2016; weighted: Thomas & Brunskill 2016) take the TD error for x and add the mean of V̂(s_0):

    V̂(s_0) + Σ_t γ^t W_t (r_t + γ V̂(s_{t+1}) − Q̂(s_t, a_t))

An episode that is over keeps its last W in the sums Σ_e W_t of later steps: there it goes on at rest, with reward 0. Leaving it
out, as is sometimes done, takes the mean over the episodes that still run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numba import njit

from offtrace.evaluation.logs import Logs


@dataclass(frozen=True, eq=False)
class Weights:
    """The products of ratios in every episode."""

    starts: np.ndarray
    """[E + 1]: where episodes begin."""
    product: np.ndarray
    """W_t [N]."""
    gamma: float
    log_whole: np.ndarray
    """log W_{T−1} [E]."""

    @property
    def episodes(self) -> int:
        """E."""
        return len(self.starts) - 1

    @property
    def whole(self) -> np.ndarray:
        """W_{T−1} [E]: of whole episodes."""
        return self.product[self.starts[1:] - 1]

    @cached_property
    def age(self) -> np.ndarray:
        """The number t [N] of each step in its episode."""
        return np.arange(len(self.product)) - np.repeat(self.starts[:-1], np.diff(self.starts))

    @cached_property
    def discount(self) -> np.ndarray:
        """γ^t [N]."""
        return self.gamma**self.age

    def by_episode(self, x: np.ndarray) -> np.ndarray:
        """The sum of x [N] over each episode [E]."""
        return np.add.reduceat(x, self.starts[:-1])

    def totals(self, values: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Σ_e of values [N] at each t, where an episode that is over counts with `last` [E]: [T]."""
        lengths = np.diff(self.starts)
        T = int(lengths.max())
        over = np.cumsum(np.bincount(lengths, last, T + 1))[:T]
        return np.bincount(self.age, values, T) + over

    def effective(self) -> np.ndarray:
        """Kish's effective number of episodes at each t, (Σ W_t)² / Σ W_t²: [T]."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            squares = self.totals(self.product**2, self.whole**2)
            return self.totals(self.product, self.whole) ** 2 / squares


def weights(logs: Logs, log_pi: np.ndarray, log_mu: np.ndarray, gamma: float) -> Weights:
    """The products of ratios of these logs."""
    product = np.empty(len(logs))
    _products(np.asarray(log_pi), np.asarray(log_mu), logs.starts, product)
    return Weights(logs.starts, product, gamma, np.add.reduceat(log_pi - log_mu, logs.starts[:-1]))


@njit(cache=True, nogil=True, error_model="numpy")
def _products(log_pi, log_mu, starts, out):
    for e in range(len(starts) - 1):
        w = 1.0
        for t in range(starts[e], starts[e + 1]):
            ρ = np.exp(log_pi[t] - log_mu[t])
            w = w * ρ if ρ > 0 else 0.0  # an overflow does not survive a zero
            out[t] = w


@dataclass(frozen=True, eq=False)
class Estimate:
    """A value as the mean of what each episode contributes."""

    contributions: np.ndarray
    """[E]: their mean is the estimate, their spread its error (for a ratio of means, by its derivative: the delta method)."""
    by_step: np.ndarray
    """a_t [N]: the weight that each step's x has in the estimate."""


def ordinary(w: Weights, x: np.ndarray) -> Estimate:
    """(1/E) Σ_e W_{T−1} Σ_t γ^t x_t."""
    return Estimate(
        w.whole * w.by_episode(w.discount * x), w.discount * np.repeat(w.whole, np.diff(w.starts)) / w.episodes
    )


def weighted(w: Weights, x: np.ndarray) -> Estimate:
    """Σ_e W_{T−1} Σ_t γ^t x_t / Σ_e W_{T−1}."""
    share = w.whole / w.whole.sum()
    returns = w.by_episode(w.discount * x)
    value = share @ returns
    return Estimate(value + w.episodes * share * (returns - value), w.discount * np.repeat(share, np.diff(w.starts)))


def per_decision(w: Weights, x: np.ndarray) -> Estimate:
    """(1/E) Σ_e Σ_t γ^t W_t x_t."""
    by_step = w.discount * w.product
    return Estimate(w.by_episode(by_step * x), by_step / w.episodes)


def weighted_per_decision(w: Weights, x: np.ndarray) -> Estimate:
    """Σ_t γ^t Σ_e W_t x_t / Σ_e W_t."""
    total = w.totals(w.product, w.whole)
    mean = w.totals(w.product * x, np.zeros(w.episodes)) / total
    γ = w.gamma ** np.arange(len(total))
    by_step = (γ / total)[w.age] * w.product
    after = np.append(
        np.cumsum((γ * mean / total)[::-1])[::-1], 0.0
    )  # what an episode that is over gives, by its length
    moved = w.by_episode(by_step * (x - mean[w.age])) - w.whole * after[np.diff(w.starts)]
    return Estimate(γ @ mean + w.episodes * moved, by_step)


def truncated(w: Weights, x: np.ndarray, bound: float | None = None) -> Estimate:
    """(1/E) Σ_e Σ_t γ^t min(c, W_t) x_t. Biased towards 0 where the bound acts."""
    c = np.sqrt(w.episodes) if bound is None else bound
    return per_decision(replace(w, product=np.minimum(w.product, c)), x)


def cut(logs: Logs) -> np.ndarray:
    """Whether each step [N] was followed by more that is not seen."""
    return logs.truncated & ~logs.terminated


@dataclass(frozen=True)
class Standard:
    """An estimator by its name: how it weighs, and whether it does so with TD errors (doubly robust) or rewards."""

    title: str
    weigh: Callable[[Weights, np.ndarray], Estimate]
    doubly_robust: bool = False

    def signal(self, logs: Logs, gamma: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        """x_t [N]; q and v [N] are Q̂(s_t, a_t) and V̂(s_{t+1}), of which only what the estimator uses is read."""
        goes_on = ~logs.terminated if self.doubly_robust else cut(logs)
        x = logs.reward + np.where(goes_on, gamma * v, 0.0)
        return x - q if self.doubly_robust else x


STANDARD = {
    "per-decision IS": Standard("per-decision IS", per_decision),
    "weighted per-decision IS": Standard("weighted per-decision IS", weighted_per_decision),
    "IS": Standard("ordinary IS", ordinary),
    "weighted IS": Standard("weighted IS", weighted),
    "truncated IS": Standard("truncated IS", truncated),
    "doubly robust": Standard("doubly robust", per_decision, doubly_robust=True),
    "weighted doubly robust": Standard("weighted doubly robust", weighted_per_decision, doubly_robust=True),
}
"""All of them, by the names that `evaluate` takes; "fitted" and "direct method" stand beside them."""
