"""The distribution of the return of an episode under π: its CDF, quantiles and CVaR, with bands that need no large sample.

With G the discounted return of an episode and W the product of its ratios, F(x) = P_π(G ≤ x) = E_μ[W 1{G ≤ x}]. The estimate is

    F̂(x) = Σ_e W_e 1{G_e ≤ x} / Σ_e W_e

The band holds for all x at once. By the inequality of Dvoretzky, Kiefer and Wolfowitz in two dimensions (Naaman 2021) no
P(W > w, G ≤ x) is off by more than ε, with probability 1 − 2(E + 1) exp(−2Eε²), and E[W 1{G ≤ x}] = ∫ P(W > w, G ≤ x) dw. So it
is at least the mean of W 1{G ≤ x} after the largest share ε of the episodes became 0, as in Anderson's bound of a mean. The same
for 1{G > x} bounds F from above. Each gets half of α: ε = √(ln(4(E + 1)/α) / 2E). What lies outside the support of μ, where
E[W] < 1, could only add to both.

CVaR at level a is the mean of the worst share a of the returns, (1/a) ∫_0^a F⁻¹(u) du. It is the smaller the larger F is, so that
the band of F gives its ends (Chandak et al. 2021); beyond the logged returns the ends go by what rewards and the horizon allow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offtrace.logs.intervals import range_of, without_share
from offtrace.logs.registry import LACKING, MU, OWN_STARTS
from offtrace.logs.result import Result
from offtrace.traces.base import number, whole


@dataclass(frozen=True, eq=False)
class Distribution:
    """The CDF of the return under π, a step function: `cdf`, `low` and `high` hold from each of `returns` up to the next."""

    returns: NDArray[np.float64]
    """[K], increasing: the least return that can be, and logged ones."""
    cdf: NDArray[np.float64]
    """F̂ [K] at these returns."""
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    """The band [K]: it holds F everywhere with probability `confidence`."""
    most: float
    """The largest return that can be, where all of them are 1."""
    confidence: float
    assumes: str
    """In words."""

    def cvar(self, level: float) -> tuple[float, float, float]:
        """The mean of the worst share `level` of the returns, and the two ends of its interval."""
        level = _level(level)
        estimate, least, most = (self._worst(cdf, level) for cdf in (self.cdf, self.high, self.low))
        return estimate, least, most

    def quantile(self, level: float) -> tuple[float, float, float]:
        """The smallest return x with F(x) ≥ level, and the two ends of its interval."""
        level = _level(level)
        points = np.append(self.returns, self.most)
        at = [int(np.searchsorted(cdf, level - 1e-12)) for cdf in (self.cdf, self.high, self.low)]
        return float(points[at[0]]), float(points[at[1]]), float(points[at[2]])

    def _worst(self, cdf: NDArray[np.float64], level: float) -> float:
        if np.isnan(cdf).any():
            return float("nan")
        mass = np.diff(np.minimum(np.append(cdf, 1.0), level), prepend=0.0)
        there = mass > 0
        return float(np.append(self.returns, self.most)[there] @ mass[there]) / level


def distribution(result: Result, *, between: tuple[float, float] | None = None, points: int = 200) -> Distribution:
    """Estimate the distribution of an episode's return under the target policy of a result of `evaluate`.

    - `between`: the least and the largest return that an episode can have; None: what rewards, as the data have them, allow
    - `points`: at so many logged returns at most the CDF is computed; between them the band is as wide as it must be

    >>> import offtrace as ot
    >>> from offtrace import mdps
    >>> from offtrace.logs import evaluate, simulate
    >>> walk = mdps.random_walk(3)
    >>> logs = simulate(walk, mdps.uniform(walk), episodes=2000, seed=0)
    >>> result = evaluate(logs, np.full((walk.S, walk.A), [0.4, 0.6]), trace=ot.RBIS(lam=0.9),
    ...                   gamma=walk.gamma)
    >>> found = distribution(result, between=(-1.0, 1.0))
    >>> [round(x, 2) for x in found.cvar(0.5)]  # the mean of the worse half, and its interval
    [-0.25, -0.59, -0.11]
    """
    whole("points", points)
    logs, log_weights = result.logs, result.diagnosis.log_weights
    if log_weights is None:
        raise ValueError(f"there is no distribution of returns: {LACKING[MU]}")
    if result.conservative is None:
        raise ValueError(f"there is no distribution of returns: {LACKING[OWN_STARTS]}")
    if logs.cut.any():
        raise ValueError(
            f"{np.count_nonzero(logs.cut):,} of {logs.episodes:,} episodes were truncated, so that their returns are not known: "
            "a distribution of returns takes episodes that terminated"
        )
    least, most, assumes = _range(result, between)
    G, E, α = result.observed.returns, logs.episodes, 1 - result.confidence
    W, share = result.diagnosis.weights, result.diagnosis.shares
    assert W is not None
    x = np.unique(np.quantile(G, np.linspace(0, 1, points), method="inverted_cdf"))
    x = np.unique(np.append(least, x))
    ε = float(np.sqrt(np.log(4 * (E + 1) / α) / (2 * E)))
    below = np.array([without_share(np.where(each >= G, W, 0.0), ε) for each in x])
    above = np.array(
        [without_share(np.where(each <= G, W, 0.0), ε) for each in x[1:]] + [0.0]
    )  # from the next point on
    if (below[:-1] + above[:-1] > 1 + 1e-9).any() or below[-1] > 1 + 1e-9:
        raise ValueError(
            f"by the data returns have a probability above 1 (episodes weigh {W.mean():.3g} on average, which should be near 1): "
            "most often μ is not the policy that acted"
        )
    cdf = np.minimum(np.array([share[each >= G].sum() for each in x]), 1.0)
    return Distribution(x, cdf, below, 1.0 - above, most, result.confidence, assumes)


def _range(result: Result, between: tuple[float, float] | None) -> tuple[float, float, str]:
    """The least and the largest return that can be, and what that assumes."""
    seen = float(result.observed.returns.min()), float(result.observed.returns.max())
    note = "independent episodes" + (
        ", and μ as estimated, for which nothing is guaranteed" if result.mu_estimated else ""
    )
    if between is None:
        allowed = range_of(result.logs, result.gamma, None, None)
        return min(allowed.least, seen[0]), max(allowed.most, seen[1]), f"{allowed.assumes}, {note}"
    least, most = between
    if not (least <= seen[0] and seen[1] <= most):
        raise ValueError(
            f"between says that returns lie in [{least:g}, {most:g}], but the logs have them from {seen[0]:g} to {seen[1]:g}"
        )
    return float(least), float(most), f"returns in [{least:g}, {most:g}] (as stated), {note}"


def _level(level: float) -> float:
    if not 0.0 < number("level", level, 0.0, 1.0) <= 1.0:
        raise ValueError(f"level must lie in (0, 1], as 0.1 does, got {level!r}")
    return float(level)
