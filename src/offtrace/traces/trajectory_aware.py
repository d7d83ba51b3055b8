"""Trajectory-aware rules in normal form: β is capped by the whole past, not decision by decision."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from offtrace.traces.base import INFINITY, Math, Numbers, ThreeFactors, Trace, number
from offtrace.traces.registry import register


@dataclass(frozen=True)
class TrajectoryAware(Trace):
    """Common to the rules below."""

    per_decision: ClassVar = False
    reads: ClassVar = ("rho",)


@register
@dataclass(frozen=True)
class NonMarkovRetrace(TrajectoryAware):
    """β_t = λ min(1, β_{t-1} ρ_t): a trace that was cut may recover. Also called Recursive Retrace. Never above λ for t ≥ 1."""

    lam: float = 1.0

    title: ClassVar = "Non-Markov Retrace"
    formula: ClassVar = "λ min(1, β_{t-1} ρ_t)"
    look: ClassVar = 1
    aliases: ClassVar = ("recursive retrace", "nmr")
    recursive: ClassVar = True
    recursive_condition: ClassVar = True
    citation: ClassVar = (
        "Munos, Stepleton, Harutyunyan, Bellemare (2016), Safe and efficient off-policy RL, appendix; "
        "Daley, Amato (2021), section 2.2"
    )

    @classmethod
    def typical(cls) -> tuple[Self, ...]:
        return cls(), cls(lam=0.9)

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers, lam: Numbers) -> ThreeFactors:
        return 1.0, lam * rho, lam


@register
@dataclass(frozen=True)
class RBIS(TrajectoryAware):
    """β_t = min(λ^t, β_{t-1} ρ_t): recency-bounded importance sampling. Unlike Non-Markov Retrace it decays only at the bound.

    A ρ/λ above the largest float counts as infinite: such a step clips every trace, which is exact while β_{t-1} > 10⁻³⁰⁸.
    """

    lam: float = 1.0

    title: ClassVar = "RBIS"
    formula: ClassVar = "min(λ^t, β_{t-1} ρ_t)"
    look: ClassVar = 2
    aliases: ClassVar = ("recency-bounded importance sampling",)
    recursive: ClassVar = True
    recursive_condition: ClassVar = True
    citation: ClassVar = (
        "Daley, White, Amato, Machado (2023), Trajectory-aware eligibility traces for off-policy RL, ICML, equation 8"
    )

    @classmethod
    def typical(cls) -> tuple[Self, ...]:
        return (cls(lam=0.9),)  # at λ = 1 it is Non-Markov Retrace

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers, lam: Numbers) -> ThreeFactors:
        return lam, rho / xp.where(lam > 0, lam, 1.0), 1.0  # at λ = 0 nothing is left to divide


@register
@dataclass(frozen=True)
class TruncatedIS(TrajectoryAware):
    """β_t = λ^t min(d_t, ∏ρ_i), d = `bound`: a number, or one for each lag 1, 2, … (the last holds for all later lags).

    The truncation is at read-out: the product itself is not clipped. It violates the recursive condition: evaluation need
    not be a contraction, and with bounds by lag, such as (0, 1, 0), it can diverge.
    """

    bound: float | Sequence[float] = 1.0
    lam: float = 1.0

    title: ClassVar = "Truncated IS"
    formula: ClassVar = "λ^t min(d_t, ∏ρ_i), d = bound"
    look: ClassVar = 3
    aliases: ClassVar = ("truncated importance sampling", "tis")
    recursive_condition: ClassVar = False
    citation: ClassVar = (
        "Ionides (2008), Truncated importance sampling, JCGS; Daley, Amato (2021), section 2.2; "
        "λ as in Daley, White, Amato, Machado (2023)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if np.ndim(self.bound) == 0:  # pyright: ignore[reportArgumentType]
            self._set("bound", number("bound", self.bound, 0.0, INFINITY))
            return
        self._set("bound", tuple(number("bound", d, 0.0, INFINITY) for d in self.bound))  # pyright: ignore
        if not self.bound:
            raise ValueError("bound must be a number, or a non-empty sequence of one for each lag")

    @property
    def lag_bound(self) -> tuple[float, ...] | None:
        return self.bound if isinstance(self.bound, tuple) else None

    @property
    def parameters(self) -> tuple[Numbers, ...]:
        return INFINITY if self.lag_bound else self.bound, self.lam

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        by_lag = cls(bound=(0.0, 1.0, 0.0)), cls(bound=(0.5, 2.0), lam=0.8)
        return cls(), cls(bound=2.5, lam=0.9), cls(bound=0.0), *by_lag

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers, bound: Numbers, lam: Numbers) -> ThreeFactors:
        return lam, rho, bound


@register
@dataclass(frozen=True)
class HistoryBounded(TrajectoryAware):
    """β_t = min(C, β_{t-1} ρ_t), C = `bound`: a history-dependent λ that keeps each trace at C or below.

    The per-start analogue of the bounded traces of Yu et al. (2018); not their algorithm, which bounds the summed trace.
    """

    bound: float = 1.0

    title: ClassVar = "History-bounded λ"
    formula: ClassVar = "min(C, β_{t-1} ρ_t), C = bound"
    aliases: ClassVar = ("history-bounded", "history-dependent lambda")
    recursive: ClassVar = True
    recursive_condition: ClassVar = True
    citation: ClassVar = (
        "after Yu, Mahmood, Sutton (2018), On generalized Bellman equations and temporal-difference learning, JMLR"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("bound", number("bound", self.bound, 0.0, sys.float_info.max))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        return tuple(cls(bound=bound) for bound in (0.0, 0.8, 3.0, 1e6))

    @classmethod
    def typical(cls) -> tuple[Self, ...]:
        return (cls(bound=2.0),)  # at a bound of 1 it is Non-Markov Retrace with λ = 1

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers, bound: Numbers) -> ThreeFactors:
        return 1.0, rho, bound
