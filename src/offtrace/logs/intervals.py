"""Intervals for V(π): a bootstrap over episodes, and a conservative one that needs no large sample.

**Bootstrap.** Every estimate is the mean of what its episodes contribute. Episodes get random weights, and the weighted mean is
studentised (Efron & Tibshirani 1993, section 12.5): with t* = (mean* − mean) / se*, the interval is
[mean − t*_{1−α/2} se, mean − t*_{α/2} se]. Unlike the percentiles of mean* it follows the skewness that products of ratios have.
The weights are 4·Beta(½, 3/2), divided by their mean. Like the counts of episodes drawn with replacement they have mean,
variance and third moment 1, which is what the skewness takes; unlike counts they are never 0. So no draw lacks the few episodes
that matter, and no end is infinite.

**What can be.** Rewards in [lo, hi], lo ≤ 0 ≤ hi, in at most H steps leave V(π) in [lo, hi]·Σ_{t<H} γ^t: intervals end there.

**Conservative.** With rewards in [lo, hi], lo ≤ 0 ≤ hi, the episode's

    X = Σ_t γ^t W_t (r_t − lo) + [terminated] W_{T−1} Γ_T (−lo),      Γ_T = Σ_{t=T}^{H−1} γ^t

is not negative, and E[X] ≤ V(π) − lo·Γ_0: equal where π stays in the support of μ and nothing is truncated; what is not seen,
beyond a truncation or outside the support, could only add. Anderson's inequality bounds E[X] from below with probability 1 − α/2,
whatever the range of X. The same for hi − r bounds V(π) from above. So the interval covers V(π) with probability 1 − α at least,
for any number of episodes, if they are independent, μ is known, and rewards and the horizon H are as stated.

Anderson (1969), with the band of Dvoretzky, Kiefer and Wolfowitz in Massart's form, for X ≥ 0 of any range:

    Σ_i X_(i) [(1 − (i−1)/n − ε)⁺ − (1 − i/n − ε)⁺],     ε = √(ln(1/δ) / 2n),     X_(1) ≤ … ≤ X_(n)

Where all of that holds the lower bound is above the upper one with probability α at most. So an empty interval is evidence that
one of these does not hold, most often that μ is not the one that acted: it is said, and no numbers are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit  # pyright: ignore

from offtrace.logs.container import Logs
from offtrace.logs.importance import Weights

DRAWS = 1 << 22  # episodes that are drawn at a time
MOST = 1 << 27  # and in all: with very many episodes fewer resamples are made, of which each is then nearer to normal
FEWEST = 200  # resamples
LEAST_FREEDOM = 2.0  # with fewer degrees of freedom an interval says next to nothing


def bootstrap(contributions: np.ndarray, confidence: float, resamples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The studentised bootstrap interval for the mean of each column of contributions [E, m]: its two ends [m].

    All columns get the same weights. Where all contributions are equal, both ends are the mean.
    """
    E = len(contributions)
    rng = np.random.default_rng(seed)
    mean, se = contributions.mean(axis=0), contributions.std(axis=0) / np.sqrt(E)
    scale = np.where(se > 0, se * np.sqrt(E), 1.0)
    z = (contributions - mean) / scale  # standardised: squares do not overflow
    both = np.concatenate([z, z**2], axis=1)
    resamples = max(min(FEWEST, resamples), min(resamples, MOST // E))
    parts = []
    for first in range(0, resamples, max(1, DRAWS // E)):
        n = min(max(1, DRAWS // E), resamples - first)
        weight = _weights(rng, (n, E))
        parts.append(weight @ both / weight.sum(axis=1, keepdims=True))
    draws = np.concatenate(parts)
    moved, squared = draws[:, : len(mean)], draws[:, len(mean) :]
    spread = np.sqrt(np.maximum(squared - moved**2, np.finfo(float).tiny))
    tail = (1 - confidence) / 2
    low, high = np.quantile(moved / spread, [tail, 1 - tail], axis=0, method="inverted_cdf")
    freedom = np.where(se > 0, (z**2).sum(axis=0) ** 2 / np.maximum((z**4).sum(axis=0), 1e-300) - 1, np.inf)
    quantile: Any = stdtrit  # its type stubs know numbers only
    wider = quantile(np.clip(freedom, LEAST_FREEDOM, 1e9), 1 - tail) / ndtri(1 - tail)
    low, high = low * wider, high * wider
    return np.where(se > 0, mean - high * scale, mean), np.where(se > 0, mean - low * scale, mean)


def _weights(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Draw from Beta(½, 3/2): the square of one coordinate of a point in the unit disc, √U cos φ.

    NumPy's own draws take ten times as long. The angle is in single precision, for which cosines are fast.
    """
    angle = np.float32(np.pi) * rng.random(shape, dtype=np.float32)
    return rng.random(shape) * np.cos(angle) ** 2


@dataclass(frozen=True)
class Range:
    """What rewards and the horizon allow."""

    lo: float
    """The least reward, at most 0: after its end an episode continues with reward 0."""
    hi: float
    """The largest reward, at least 0."""
    longest: float
    """H, the most steps that an episode can have."""
    all_steps: float
    """Σ_{t<H} γ^t."""
    assumes: str
    """In words, for the result."""

    @property
    def least(self) -> float:
        """The least V(π) that can be."""
        return self.lo * self.all_steps if self.lo else 0.0

    @property
    def most(self) -> float:
        """The largest V(π) that can be."""
        return self.hi * self.all_steps if self.hi else 0.0


def range_of(logs: Logs, gamma: float, rewards: tuple[float, float] | None, longest: int | None) -> Range:
    """The range of values; `rewards` (lo, hi) and `longest` H are guessed from the data where they are None.

    H matters where γ = 1 or it is given. An episode that was cut was longer than the log shows, so then H is no guess but ∞.
    """
    seen = float(logs.reward.min()), float(logs.reward.max())
    lo, hi = seen if rewards is None else rewards
    if not lo <= seen[0] or not seen[1] <= hi:
        raise ValueError(
            f"rewards says that they lie in [{lo:g}, {hi:g}], but the logs have them from {seen[0]:g} to {seen[1]:g}"
        )
    lo, hi = min(lo, 0.0), max(hi, 0.0)
    lengths, ended = logs.lengths, logs.terminated[logs.last_steps]
    if longest is not None and longest < lengths.max():
        raise ValueError(
            f"longest says that no episode has more than {longest} steps, but one in the logs has {lengths.max()}"
        )
    guessed = int(lengths.max()) if gamma == 1 and ended.all() else np.inf
    H = guessed if longest is None else longest
    given = "as stated" if rewards is not None else "as the data have them, which is a guess"
    reach = f"episodes of at most {H:,} steps" if np.isfinite(H) else "episodes of any length"
    if longest is None and np.isfinite(H):
        reach += " (the longest logged, which is a guess)"
    all_steps = float(_discounts(gamma, np.zeros(1), H)[0])
    return Range(lo, hi, H, all_steps, f"rewards in [{lo:g}, {hi:g}] ({given}), {reach}")


@dataclass(frozen=True)
class Conservative:
    """An interval that covers V(π) at least as often as it says, under what it assumes."""

    low: float
    """The lower end; NaN if the interval is empty."""
    high: float
    assumes: str
    """In words, for the result."""
    empty: str = ""
    """Why it is empty: its two bounds contradict each other, and so the data contradict what it assumes. Else no words."""


def by_cluster(contributions: np.ndarray, cluster: np.ndarray | None) -> np.ndarray:
    """What clusters contribute [C, m], of what episodes do [E, m]; the mean is the same. `cluster` [E] are ids 0 … C − 1.

    >>> by_cluster(np.array([[1.0], [3.0], [5.0]]), np.array([0, 0, 1])).ravel().round(2).tolist()
    [1.67, 4.33]
    """
    if cluster is None:
        return contributions
    mean, C = contributions.mean(axis=0), int(cluster.max()) + 1
    sums = np.zeros((C, contributions.shape[1]))
    np.add.at(sums, cluster, contributions - mean)
    return mean + sums * C / len(contributions)


def conservative(
    logs: Logs, w: Weights, confidence: float, allowed: Range, estimated: bool, kernel: str = ""
) -> Conservative:
    """The conservative interval, for rewards and a horizon as `allowed` has them."""
    below = _shifted(logs, w, logs.reward, allowed.lo, allowed)
    above = _shifted(logs, w, -logs.reward, -allowed.hi, allowed)
    ε = float(np.sqrt(np.log(2 / (1 - confidence)) / (2 * logs.episodes)))

    def least(x: np.ndarray, lo: float) -> float:
        """A lower bound of V(π) for rewards of at least lo ≤ 0."""
        if lo < 0 and allowed.all_steps == np.inf:
            return -np.inf
        return (lo * allowed.all_steps if lo < 0 else 0.0) + without_share(x, ε)

    assumes = f"{allowed.assumes}, independent episodes"
    assumes += f", and the noise of {kernel} added to the target policy" if kernel else ""
    assumes += ", and μ as estimated, for which nothing is guaranteed" if estimated else ""
    low, high = least(below, allowed.lo), 0.0 - least(above, -allowed.hi)
    if low - high > 1e-9 * max(abs(low), abs(high)):  # not by rounding
        return Conservative(np.nan, np.nan, assumes, _contradiction(low, high, w))
    return Conservative(min(low, high), max(low, high), assumes)


def without_share(x: np.ndarray, ε: float) -> float:
    """The mean of X ≥ 0 after the largest share ε of the draws became 0: Anderson's bound."""
    n = len(x)
    left = np.maximum(1.0 - np.arange(n + 1) / n - ε, 0.0)
    counts = left[:-1] - left[1:]
    return float(np.sort(x)[counts > 0] @ counts[counts > 0])


def _shifted(logs: Logs, w: Weights, reward: np.ndarray, lo: float, allowed: Range) -> np.ndarray:
    """X [E] of each episode, for rewards of at least lo ≤ 0."""
    lengths, ended = logs.lengths, logs.terminated[logs.last_steps]
    with np.errstate(over="ignore", invalid="ignore"):  # ∞ · 0, where a product overflows and nothing is left to add
        x = w.by_episode(np.where(reward > lo, w.discount * w.product * (reward - lo), 0.0))
        if lo < 0:
            x += np.where(ended, w.whole * _discounts(w.gamma, lengths, allowed.longest) * -lo, 0.0)
    return x


def _contradiction(low: float, high: float, w: Weights) -> str:
    """Why the interval is empty, in words."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(np.mean(w.whole))
    return (
        f"by the data V(π) is at least {low:.4g} and at most {high:.4g}, which cannot be: they contradict what the interval "
        f"takes for given. Most often μ is not the policy that acted (episodes weigh {mean:.3g} on average, which should be "
        "near 1); else rewards leave their range, or episodes depend on each other"
    )


def _discounts(gamma: float, first: np.ndarray, H: float) -> np.ndarray:
    """Γ = Σ_{t=first}^{H−1} γ^t."""
    if gamma == 1:
        return H - first.astype(float)
    return (gamma ** first.astype(float) - (gamma**H if np.isfinite(H) else 0.0)) / (1 - gamma)
