"""The standard estimators, by importance sampling: Σ a_t x_t, for W_t = ρ_0 ··· ρ_t in an episode and x_t a signal.

    ordinary (trajectory) IS     a_t = γ^t W_{T−1} / E              weighted    a_t = γ^t W_{T−1} / Σ_e W_{T−1}
    per-decision IS              a_t = γ^t W_t / E                  weighted    a_t = γ^t W_t / Σ_e W_t

x_t is the reward; an episode that was *truncated* continues unseen, so its last x also has γ V̂(s_T), V̂ from the direct method.
Doubly robust estimators (Jiang & Li 2016; weighted: Thomas & Brunskill 2016) take the TD error for x and add the mean of V̂(s_0):

    V̂(s_0) + Σ_t γ^t W_t (r_t + γ V̂(s_{t+1}) − Q̂(s_t, a_t))

An episode that is over keeps its last W in the sums Σ_e W_t of later steps: there it rests, with reward 0. Leaving it
out, as is sometimes done, takes the mean over the episodes that still run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from offtrace._shared.compile_cache import cached_njit
from offtrace.logs.container import Logs
from offtrace.logs.fit import Regressed, Regressor
from offtrace.logs.registry import LACKING, MU

if TYPE_CHECKING:
    from offtrace.logs.evidence import Evidence


LARGEST = 0.9
"""Of the shares of an episode, where it is left out."""


@dataclass(frozen=True, eq=False)
class Weights:
    """The products of ratios in every episode, as logarithms: those of long episodes are no floats."""

    logs: Logs
    log: np.ndarray
    """log W_t [N]."""
    gamma: float

    @property
    def episodes(self) -> int:
        """The number of episodes, E."""
        return self.logs.episodes

    @cached_property
    def product(self) -> np.ndarray:
        """W_t [N]."""
        with np.errstate(over="ignore"):
            return np.exp(self.log)

    @property
    def whole(self) -> np.ndarray:
        """W_{T−1} [E]: of whole episodes."""
        return self.product[self.logs.last_steps]

    @property
    def log_whole(self) -> np.ndarray:
        """log W_{T−1} [E]."""
        return self.log[self.logs.last_steps]

    @cached_property
    def age(self) -> np.ndarray:
        """The number t [N] of each step in its episode."""
        return self.logs.age

    @cached_property
    def discount(self) -> np.ndarray:
        """γ^t [N]."""
        return self.gamma**self.age

    def by_episode(self, x: np.ndarray) -> np.ndarray:
        """The sum of x [N] over each episode [E]."""
        return self.logs.by_episode(x)

    def discounted_mean(self) -> np.ndarray:
        """Σ_t γ^t W_t / Σ_t γ^t of each episode [E], over as many steps as the longest has: one that is over keeps its last W."""
        lengths = self.logs.lengths
        T = int(lengths.max())
        γ = self.gamma ** np.arange(T + 1)
        total, after = γ[:T].sum(), np.append(np.cumsum(γ[:T][::-1])[::-1], 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            rest = np.where(after[lengths] > 0, self.whole * after[lengths], 0.0)
            return (self.by_episode(self.discount * self.product) + rest) / total

    @property
    def worth_by_step(self) -> float:
        """How many episodes the discounted means are worth."""
        with np.errstate(divide="ignore"):
            return worth(np.log(self.discounted_mean()))

    def log_totals(self, power: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """log Σ_e W_t^power at each t [T], and what the episodes that are over have in it, each with its last W [T]."""
        lengths = self.logs.lengths
        running, last = (
            _log_sums(power * log, at, int(lengths.max()) + 1)
            for log, at in ((self.log, self.age), (self.log_whole, lengths))
        )
        over = np.logaddexp.accumulate(last)
        return np.logaddexp(running, over)[:-1], over[:-1]

    def effective(self) -> np.ndarray:
        """Kish's effective number of episodes at each t, (Σ W_t)² / Σ W_t²: [T]; NaN where all W_t are 0."""
        with np.errstate(invalid="ignore"):
            return np.exp(2 * self.log_totals()[0] - self.log_totals(2.0)[0])


def shares(log_weights: np.ndarray) -> np.ndarray:
    """W / ΣW, also where W itself is no float; NaN where all W are 0."""
    if log_weights.max() == -np.inf:
        return np.full(len(log_weights), np.nan)
    w = np.exp(log_weights - log_weights.max())
    return w / w.sum()


def worth(log_weights: np.ndarray) -> float:
    """How many equal weights these are worth, by Kish; 0 where all are 0 or one is infinite."""
    return kish(shares(log_weights)) if np.isfinite(log_weights.max()) else 0.0


def kish(x: np.ndarray) -> float:
    """(Σ|x|)² / Σx², computed so that nothing overflows; 0 where there is nothing."""
    largest = np.abs(x).max(initial=0.0)
    if not 0 < largest < np.inf:
        return 0.0
    y = np.abs(x / largest)
    return float(y.sum() ** 2 / (y**2).sum())


def weights(logs: Logs, log_pi: np.ndarray, log_mu: np.ndarray, gamma: float) -> Weights:
    """The products of ratios of these logs."""
    log = np.empty(len(logs))
    _sums(np.asarray(log_pi), np.asarray(log_mu), logs.starts, log)
    return Weights(logs, log, gamma)


@cached_njit(nogil=True, error_model="numpy")
def _sums(log_pi, log_mu, starts, out):
    for e in range(len(starts) - 1):
        log = 0.0
        for t in range(starts[e], starts[e + 1]):
            log += log_pi[t] - log_mu[t]
            out[t] = log


def _log_sums(log: np.ndarray, at: np.ndarray, size: int) -> np.ndarray:
    """log Σ exp(log_i) over the i with at_i = j, for each j < size."""
    largest = np.full(size, -np.inf)
    np.maximum.at(largest, at, log)
    scale = np.where(largest > -np.inf, largest, 0.0)
    with np.errstate(divide="ignore"):
        return scale + np.log(np.bincount(at, np.exp(log - scale[at]), size))


@dataclass(frozen=True, eq=False)
class Estimate:
    """A value as the mean of what each episode contributes."""

    contributions: np.ndarray
    """[E]: their mean is the estimate, their spread its error. Of a ratio of means they are what it loses without each
    episode, as in the jackknife: a heavy episode draws the ratio to itself, and its derivative would hide how much."""
    by_step: np.ndarray
    """a_t [N]: the weight that each step's x has in the estimate."""


def ordinary(w: Weights, x: np.ndarray) -> Estimate:
    """(1/E) Σ_e W_{T−1} Σ_t γ^t x_t."""
    return Estimate(w.whole * w.by_episode(w.discount * x), w.discount * w.logs.of_steps(w.whole) / w.episodes)


def weighted(w: Weights, x: np.ndarray) -> Estimate:
    """Σ_e W_{T−1} Σ_t γ^t x_t / Σ_e W_{T−1}."""
    share = np.exp(w.log_whole - np.logaddexp.reduce(w.log_whole))
    returns = w.by_episode(w.discount * x)
    value = share @ returns
    return _centred(value, w.episodes * without(share) * (returns - value), w.discount * w.logs.of_steps(share))


def without(share: np.ndarray) -> np.ndarray:
    """w / (1 − w) for shares of a sum: what the others' mean moves by is that share of the difference; at most `LARGEST`."""
    return share / (1 - np.minimum(share, LARGEST))


def _centred(value: float, moves: np.ndarray, by_step: np.ndarray) -> Estimate:
    """The estimate whose episodes contribute its value and what they move it by, less the mean of that."""
    return Estimate(value + moves - moves.mean(), by_step)


def per_decision(w: Weights, x: np.ndarray) -> Estimate:
    """(1/E) Σ_e Σ_t γ^t W_t x_t."""
    by_step = w.discount * w.product
    return Estimate(w.by_episode(by_step * x), by_step / w.episodes)


def weighted_per_decision(w: Weights, x: np.ndarray) -> Estimate:
    """Σ_t γ^t Σ_e W_t x_t / Σ_e W_t."""
    total, over = w.log_totals()
    share, γ = np.exp(w.log - total[w.age]), w.gamma ** np.arange(len(total))
    mean = np.bincount(w.age, share * x, len(total))
    after = np.zeros(len(total) + 1)
    _after(γ * mean, total, over, after)
    lengths = w.logs.lengths
    moved = w.by_episode(w.discount * without(share) * (x - mean[w.age]))
    at_rest = np.exp(w.log_whole - np.append(over, np.inf)[lengths]) * after[lengths]
    at_rest /= 1 - np.minimum(share[w.logs.last_steps], LARGEST)
    moved -= np.where(w.log_whole > -np.inf, at_rest, 0.0)
    return _centred(float(γ @ mean), w.episodes * moved, w.discount * share)


@cached_njit(nogil=True, error_model="numpy")
def _after(x, total, over, out):
    """Σ_{u≥t} x_u O_t / Σ_e W_u, O_t the part in Σ_e W_t of the episodes that are over: it only grows: no factor is above 1."""
    for t in range(len(x) - 1, -1, -1):
        if over[t] > -np.inf:
            grown = np.exp(over[t] - over[t + 1]) if t + 1 < len(x) else 0.0
            out[t] = x[t] * np.exp(over[t] - total[t]) + grown * out[t + 1]


@dataclass(frozen=True)
class Weighting:
    """How an estimator weighs, and whether it weighs TD errors (doubly robust) or rewards: the function of its entry.

    A doubly robust one takes Q̂ of the direct method, cross-fitted: its own error is of second order there. Beyond a truncation
    V̂ of a table or a linear function is that of all logs, and that an episode also moves V̂ counts in what it contributes; of a
    regressor, cross-fitted here too, this is left out.
    """

    weigh: Callable[[Weights, np.ndarray], Estimate]
    doubly_robust: bool = False

    def __call__(self, evidence: Evidence) -> tuple[float, np.ndarray]:
        """The estimate, and what each episode contributes [E]."""
        if evidence.weights is None:
            raise ValueError(LACKING[MU])
        one_step, draws = evidence.one_step, evidence.policy.draws
        logs, beyond = one_step.logs, one_step.logs.cut
        q, v, first = np.zeros(len(logs)), np.zeros(len(logs)), np.zeros(logs.episodes)
        by_regressor = isinstance(evidence.model, Regressor)
        if self.doubly_robust:
            q, v, first = evidence.crossed
        elif draws and beyond.any():  # else what came after a cut is left out, and a check says so
            q, v = evidence.crossed[:2] if by_regressor else evidence.direct.at_steps
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # products that overflow are a failed check
            weighed = self.weigh(evidence.weights, self.signal(logs, evidence.gamma, q, v))
            contributions = weighed.contributions + first
            value = float(contributions.mean())
        known = draws and not by_regressor and np.isfinite(weighed.by_step).all()
        if self.doubly_robust or not beyond.any() or not known or isinstance(evidence.direct, Regressed):
            return value, contributions
        basis, weight = evidence.direct.basis, evidence.gamma * np.where(beyond, weighed.by_step, 0.0)
        gradient = sum(one_step.each(lambda p: basis.spread(p, None, weight[p]), basis.piece), np.zeros(basis.size))
        return value, contributions + logs.episodes * evidence.direct.influence(gradient)

    def signal(self, logs: Logs, gamma: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        """x_t [N]; q and v [N] are Q̂(s_t, a_t) and V̂(s_{t+1}), of which only what the estimator uses is read."""
        goes_on = ~logs.terminated if self.doubly_robust else logs.cut
        x = logs.reward + np.where(goes_on, gamma * v, 0.0)
        return x - q if self.doubly_robust else x
