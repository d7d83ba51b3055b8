"""What a policy loss does with the ratio r and the advantage A of a decision: its shapes, one small class each.

A shape gets log r at the loss's level, without gradient, and returns what is to be maximised and its slope: the derivative by
log π of the decision itself. The loss gives the value this slope, so that nothing else is differentiated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np

from offtrace.policy.bad_values import refuse_densities
from offtrace.policy.rows import Rows
from offtrace.policy.steps import Steps
from offtrace.traces.base import number


@dataclass(frozen=True, eq=False)
class Ratios:
    """What a shape reads, without gradients."""

    x: Steps[Any]
    rows: Rows[Any]
    token: Any
    """log r of the decision alone."""
    level: Any
    """log r at the loss's level; 0 where nothing counts, so that nothing overflows there."""
    advantage: Any
    live: Any
    """Where a decision counts: A is not 0, it is kept, and its weight is not 0."""

    def score(self, factor: Any, out: Any) -> Surrogate:
        """A factor times log π; the value is 0 where π is."""
        log: Any = self.x.constant("log_pi")
        factor = self.x.xp.where(self.live & (log != -np.inf), factor, 0.0)
        return Surrogate(self.x.times_log(factor, log), factor, out)


class Surrogate(NamedTuple):
    """What a shape makes of each decision."""

    value: Any
    """What is to be maximised."""
    slope: Any
    """Its derivative by log π of the decision."""
    out: Any
    """Where the gradient is taken away, or weighed otherwise than in r A."""


class Shape(ABC):
    """What is done with r and A."""

    formula: str = ""
    """What is maximised, in one line."""

    @abstractmethod
    def __call__(self, r: Ratios) -> Surrogate:
        """The surrogate of each decision."""

    def clipped_at(self, low: Any, high: Any, dual: float | None) -> Self:
        """The same with other bounds; an error where it has none."""
        raise TypeError(f"{type(self).__name__} has no clip: leave out clip and dual")

    def without_dual(self, dual: float | None) -> None:
        """Raise where a dual clip is given to a shape that has none."""
        if dual is not None:
            raise TypeError(f"{type(self).__name__} has no dual clip: leave out dual")


def _above_0(**numbers: float) -> None:
    for name, value in numbers.items():
        if number(name, value, 0.0, np.inf) == 0.0:
            raise ValueError(f"{name} must be above 0, got {value!r}")


def pessimistic(r: Ratios, low: Any, high: Any, dual: Any | None) -> Surrogate:
    """min(r A, clip(r, low, high) A), and for A < 0 at least dual · A."""
    xp, A = r.x.xp, r.advantage
    ratio = xp.exp(r.level)
    plain, bounded = ratio * A, xp.clip(ratio, low, high) * A
    out = bounded < plain
    value = xp.where(out, bounded, plain)
    if dual is not None:
        least = (A < 0) & (value < dual * A)
        out, value = out | least, xp.where(least, dual * A, value)
    return Surrogate(value, xp.where(out, 0.0, plain), out)


@dataclass(frozen=True)
class Clip(Shape):
    """PPO (Schulman et al. 2017), with a dual clip (Ye et al. 2020)."""

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None
    formula = "min(r A, clip(r, 1 − low, 1 + high) A), with dual for A < 0 at least dual · A"

    def __post_init__(self) -> None:
        number("low", self.low, 0.0, 1.0)
        number("high", self.high, 0.0, np.inf)
        if self.dual is not None and number("dual", self.dual, 0.0, np.inf) <= 1.0:
            raise ValueError(
                f"dual must be above 1, got {self.dual!r}: it bounds ratios of decisions with a negative advantage"
            )

    def __call__(self, r: Ratios) -> Surrogate:
        """See `Shape`."""
        return pessimistic(r, 1.0 - self.low, 1.0 + self.high, self.dual)

    def clipped_at(self, low: Any, high: Any, dual: float | None) -> Self:
        """See `Shape`."""
        return replace(self, low=low, high=high, dual=self.dual if dual is None else dual)


@dataclass(frozen=True)
class PositionClip(Shape):
    """PPO with bounds that widen with the position t of a decision in its row, as the logarithm of a prefix ratio spreads."""

    low: float = 0.025
    high: float = 0.05
    dual: float | None = 0.05
    power: float = 0.5
    formula = "min(r A, clip(r, e^{−low t^p}, e^{high t^p}) A), with dual for A < 0 at least e^{dual t^p} A"

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            number(name, getattr(self, name), 0.0, np.inf)
        number("power", self.power, -1.0, 1.0)
        if self.dual is not None:
            number("dual", self.dual, 0.0, np.inf)

    def __call__(self, r: Ratios) -> Surrogate:
        """See `Shape`."""
        exp = r.x.xp.exp
        place: Any = r.rows.position()
        scale = r.x.xp.where(place > 1, place, 1.0) ** self.power
        dual = None if self.dual is None else exp(self.dual * scale)
        return pessimistic(r, exp(-self.low * scale), exp(self.high * scale), dual)

    def clipped_at(self, low: Any, high: Any, dual: float | None) -> Self:
        """See `Shape`."""
        return replace(self, low=low, high=high, dual=self.dual if dual is None else dual)


@dataclass(frozen=True)
class Importance(Shape):
    """The ratio times the advantage."""

    formula = "r A"

    def __call__(self, r: Ratios) -> Surrogate:
        """See `Shape`."""
        weighted = r.x.xp.exp(r.level) * r.advantage
        return Surrogate(weighted, weighted, r.advantage != r.advantage)


@dataclass(frozen=True)
class ClippedWeight(Shape):
    """CISPO (MiniMax 2025): the ratio is a weight, clipped, and every decision keeps its gradient."""

    low: float = 1.0
    high: float = 0.2
    formula = "sg[clip(r, 1 − low, 1 + high)] A log π"

    def __post_init__(self) -> None:
        number("low", self.low, 0.0, 1.0)
        number("high", self.high, 0.0, np.inf)

    def __call__(self, r: Ratios) -> Surrogate:
        """See `Shape`."""
        ratio: Any = r.x.xp.exp(r.level)
        bound = r.x.xp.clip(ratio, 1.0 - self.low, 1.0 + self.high)
        return r.score(bound * r.advantage, bound != ratio)

    def clipped_at(self, low: Any, high: Any, dual: float | None) -> Self:
        """See `Shape`."""
        self.without_dual(dual)
        return replace(self, low=low, high=high)


@dataclass(frozen=True)
class Gate(Shape):
    """SAPO (Gao et al. 2025): a sigmoid in place of a clip, colder where A < 0."""

    positive: float = 1.0
    negative: float = 1.05
    formula = "(4/τ) σ(τ (r − 1)) A, with τ by the sign of A"

    def __post_init__(self) -> None:
        _above_0(positive=self.positive, negative=self.negative)

    def __call__(self, r: Ratios) -> Surrogate:
        """See `Shape`."""
        xp, A = r.x.xp, r.advantage
        τ = xp.where(A > 0, self.positive + 0.0 * A, self.negative)
        ratio = xp.exp(xp.clip(r.level, None, 10.0))  # beyond that the gate is flat
        gate = 1.0 / (1.0 + xp.exp(-τ * (ratio - 1.0)))
        return Surrogate(4.0 / τ * gate * A, 4.0 * gate * (1.0 - gate) * ratio * A, r.level > 10.0)


@dataclass(frozen=True)
class Kernel(Shape):
    """VESPO (Shen et al. 2026): a kernel of the weight W, 1 at W = 1 and with powers by the sign of A, times the score."""

    positive: tuple[float, float] = (2.0, 3.0)
    negative: tuple[float, float] = (3.0, 2.0)
    formula = "sg[W^k e^{λ(1 − W)}] A log π, with (k, λ) by the sign of A"

    def __post_init__(self) -> None:
        for name, both in (("positive", self.positive), ("negative", self.negative)):
            if len(both) != 2:
                raise ValueError(f"{name} must be (k, λ), got {both!r}")
            _above_0(k=both[0], λ=both[1])

    def __call__(self, r: Ratios) -> Surrogate:
        """See `Shape`."""
        xp, A = r.x.xp, r.advantage
        log = r.level
        k, λ = (xp.where(A < 0, n + 0.0 * A, p) for p, n in zip(self.positive, self.negative, strict=True))
        weight = xp.exp(xp.where(log > 100.0, -np.inf, k * log + λ * (1.0 - xp.exp(xp.where(log > 100.0, 0.0, log)))))
        return r.score(weight * A, weight == 0)


@dataclass(frozen=True)
class Gaussian(Shape):
    """A Gaussian of the log ratio in place of a clip."""

    σ: float = 0.5
    formula = "sg[r e^{−(log r)² / 2σ²}] A log π"

    def __post_init__(self) -> None:
        _above_0(σ=self.σ)

    def __call__(self, r: Ratios) -> Surrogate:
        """See `Shape`."""
        weight = r.x.xp.exp(r.level - 0.5 * (r.level / self.σ) ** 2)
        return r.score(weight * r.advantage, weight == 0)


@dataclass(frozen=True)
class GeometricClip(Shape):
    """GMPO (Zhao et al. 2025): the geometric mean of a row's ratios, each clipped in the logarithm by the sign of A."""

    low: float = 0.4
    high: float = 0.4
    formula = "exp(mean over the row of log r clipped to [−low, high] by the sign of A) · A"

    def __post_init__(self) -> None:
        number("low", self.low, 0.0, np.inf)
        number("high", self.high, 0.0, np.inf)

    def __call__(self, r: Ratios) -> Surrogate:
        """See `Shape`."""
        xp, A, log = r.x.xp, r.advantage, r.token
        out = xp.where(A > 0, log > self.high, (log < -self.low) & (A < 0))
        bound = xp.where(out, xp.where(A > 0, self.high + 0.0 * log, -self.low), log)
        mean = r.rows.total(bound) / r.rows.count_or_one()
        value = xp.exp(xp.where(r.live, mean, 0.0)) * A
        return Surrogate(value, xp.where(out, 0.0, value), out)

    def clipped_at(self, low: Any, high: Any, dual: float | None) -> Self:
        """See `Shape`."""
        self.without_dual(dual)
        return replace(self, low=low, high=high)


@dataclass(frozen=True)
class Divergence(Shape):
    """DPPO (2026): a decision is left out where the two probabilities of its token are further apart than a bound, in the
    direction in which A pushes; by total variation, |π − π_prox|, or by the KL of token and rest."""

    kind: str = "tv"
    low: float = 0.2
    high: float = 0.2
    most: float = 20.0
    formula = "sg[min(r, most)] A log π where π and π_prox are near enough, by the sign of A"

    def __post_init__(self) -> None:
        if self.kind not in ("tv", "kl"):
            raise ValueError(f"kind must be 'tv' or 'kl', got {self.kind!r}")
        number("low", self.low, 0.0, np.inf)
        number("high", self.high, 0.0, np.inf)
        _above_0(most=self.most)

    def __call__(self, r: Ratios) -> Surrogate:
        """See `Shape`."""
        x, xp, A = r.x, r.x.xp, r.advantage
        log_pi, log_prox = x.constant("log_pi"), x.constant("log_prox")
        if x.looks:
            for name, logs in (("log_pi", log_pi), ("log_prox", log_prox)):
                refuse_densities(name, x.do.as_numpy(logs), x.do.as_numpy(x.decision))
        pi, prox = xp.exp(log_pi), xp.exp(log_prox)
        if self.kind == "tv":
            up, down = pi - prox > self.high, pi - prox < -self.low
        else:
            rest = xp.log1p(-xp.where(prox < 1, prox, 0.0)) - xp.log1p(-xp.where(pi < 1, pi, 0.0))
            kl = x.times_log(prox, log_prox - log_pi) + (1.0 - prox) * xp.where((prox < 1) & (pi < 1), rest, 0.0)
            up, down = (kl > self.high) & (pi > prox), (kl > self.low) & (pi < prox)
        out = xp.where(A > 0, up, down)
        weight = x.at_most(xp.exp(r.level), self.most)
        return r.score(xp.where(out, 0.0, weight * A), out)

    def clipped_at(self, low: Any, high: Any, dual: float | None) -> Self:
        """See `Shape`. `dual` is the largest ratio."""
        return replace(self, low=low, high=high, most=self.most if dual is None else dual)
