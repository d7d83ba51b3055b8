"""Trajectory-aware rules in normal form: β is capped by the whole past, not decision by decision."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from offtrace.traces.base import INFINITY, Math, Numbers, ThreeFactors, Trace, for_each_step, number
from offtrace.traces.pytrees import STATIC
from offtrace.traces.registry import register


class HoldsAnArray:
    """A fact of a rule: whether its `bound` is an array, one number for each step. Of the class it is False."""

    def __get__(self, rule: DiscountedBound | None, cls: type) -> bool:
        return rule is not None and rule.shape is not None


@dataclass(frozen=True)
class TrajectoryAware(Trace):
    """What the rules below have in common: they are not per-decision."""

    per_decision: ClassVar = False
    reads: ClassVar = ("rho",)


@register
@dataclass(frozen=True)
class NonMarkovRetrace(TrajectoryAware):
    """β_t = λ min(1, β_{t-1} ρ_t): a trace that was cut may recover. Also called Recursive Retrace. Never above λ for t ≥ 1.

    >>> import numpy as np, offtrace as ot
    >>> # decay, ratio, cap: π = 0.5, μ = 0.25
    >>> print(*ot.NonMarkovRetrace(lam=0.5).normal_form(np, 0.5, 0.25, 2.0))
    1.0 1.0 0.5
    """

    lam: float = 1.0

    title: ClassVar = "Non-Markov Retrace"
    formula: ClassVar = "λ min(1, β_{t-1} ρ_t)"
    look: ClassVar = 1
    aliases: ClassVar = ("recursive retrace", "nmr")
    recursive: ClassVar = True
    recursive_condition: ClassVar = True
    citation: ClassVar = (
        "Munos, Stepleton, Harutyunyan, Bellemare (2016), Safe and efficient off-policy RL, appendix; "
        "Daley, Amato (2021), Improving the efficiency of off-policy RL by accounting for past decisions, section 2.2"
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

    >>> import numpy as np, offtrace as ot
    >>> print(*ot.RBIS(lam=0.5).normal_form(np, 0.5, 0.25, 2.0))  # decay, ratio, cap: π = 0.5, μ = 0.25
    0.5 4.0 1.0
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

    >>> import numpy as np, offtrace as ot
    >>> # decay, ratio, cap: π = 0.5, μ = 0.25
    >>> print(*ot.TruncatedIS(bound=1.5, lam=0.9).normal_form(np, 0.5, 0.25, 2.0))
    0.9 2.0 1.5
    """

    bound: float | Sequence[float] = 1.0
    lam: float = 1.0

    title: ClassVar = "Truncated IS"
    formula: ClassVar = "λ^t min(d_t, ∏ρ_i), d = bound"
    look: ClassVar = 3
    aliases: ClassVar = ("truncated importance sampling", "tis")
    recursive_condition: ClassVar = False
    citation: ClassVar = (
        "Ionides (2008), Truncated importance sampling, JCGS; "
        "Daley, Amato (2021), Improving the efficiency of off-policy RL by accounting for past decisions, section 2.2; "
        "Daley, White, Amato, Machado (2023), Trajectory-aware eligibility traces for off-policy RL, ICML, for λ"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.bound, list | tuple) and not getattr(self.bound, "ndim", 0):
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

    >>> import numpy as np, offtrace as ot
    >>> # decay, ratio, cap: π = 0.5, μ = 0.25
    >>> print(*ot.HistoryBounded(bound=1.5).normal_form(np, 0.5, 0.25, 2.0))
    1.0 2.0 1.5
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


@register
@dataclass(frozen=True, eq=False)
class DiscountedBound(TrajectoryAware):
    """β_t = min(C/γ^t, β_{t-1} ρ_t), C = `bound`: a recursive cap on the *discounted* trace γ^t β_t.

    No rule that keeps the recursive condition contracts more on average for its variance, where C is the right number for each
    pair (`operators.frontier`): then `bound` is an array of the trajectory's shape, or [S, A] on an MDP. `gamma` is the
    discount of the task.

    >>> import numpy as np, offtrace as ot
    >>> # decay, ratio, cap: π = 0.5, μ = 0.25
    >>> print(*ot.DiscountedBound(bound=1.5, gamma=0.5).normal_form(np, 0.5, 0.25, 2.0))
    2.0 1.0 1.5
    """

    bound: Numbers = 1.0
    gamma: float = 0.99

    title: ClassVar = "Discounted bound"
    formula: ClassVar = "min(C/γ^t, β_{t-1} ρ_t), C = bound"
    aliases: ClassVar = ("discounted-bound", "variance-optimal trace")
    per_step: ClassVar = HoldsAnArray()  # pyright: ignore[reportAssignmentType]
    recursive: ClassVar = True
    recursive_condition: ClassVar = True
    proven: ClassVar = (
        "no rule with the recursive condition has less variance for its mean contraction, if C is that of the pair"
    )
    citation: ClassVar = "offtrace (2026), The efficient frontier of traces, documentation of offtrace, Theory"

    def __post_init__(self) -> None:
        super().__post_init__()
        gamma = number("gamma", self.gamma, 0.0, 1.0)
        if gamma == 0.0:
            raise ValueError("gamma must lie in (0, 1], got 0.0")
        self._set("gamma", gamma)
        if not np.ndim(self.bound):
            self._set("bound", number("bound", self.bound, 0.0, sys.float_info.max))
        elif not type(self.bound).__module__.startswith("jax."):
            self._set("bound", for_each_step("bound", self.bound, sys.float_info.max))

    @property
    def shape(self) -> tuple[int, ...] | None:
        return tuple(np.shape(self.bound)) or None

    def mapped(self, function: Callable[[Numbers], Numbers]) -> DiscountedBound:
        return replace(self, bound=function(self.bound)) if self.shape else self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DiscountedBound) or (self.gamma, self.horizon) != (other.gamma, other.horizon):
            return False
        return self is other or (not self.shape and not other.shape and self.bound == other.bound)

    def __hash__(self) -> int:
        return id(self) if self.shape else hash((self.bound, self.gamma, self.horizon))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        return cls(bound=0.8, gamma=0.9), cls(bound=0.0), cls(bound=3.0, gamma=0.95)

    @classmethod
    def typical(cls) -> tuple[Self, ...]:
        return (cls(bound=1.0, gamma=0.95),)

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers, bound: Numbers, gamma: Numbers) -> ThreeFactors:
        return 1.0 / gamma, gamma * rho, bound


class HasCap:
    """A fact of a rule whose `bound` may be infinite, and of the class: there the cap counts as one that acts."""

    def __init__(self, with_cap: bool) -> None:
        self.with_cap = with_cap

    def __get__(self, rule: FlattenedIS | None, cls: type) -> bool:
        return self.with_cap == (rule is None or rule.bound < INFINITY)


@register
@dataclass(frozen=True)
class FlattenedIS(TrajectoryAware):
    """β_t = min(C, β_{t-1} ρ_t^κ), κ = `kappa`, C = `bound`: ratios are flattened towards 1. Without a bound, β_t = ∏ρ_i^κ.

    κ = 1 is importance sampling, and with a bound the history-bounded rule; κ = 0 weighs no action but those that π never takes.
    On rows of n decisions κ = 1/n makes the weight of a row its geometric mean. With κ < 1 it is *not* a change of measure: as a
    weight it does not evaluate π, not even on average. As a trace it keeps the fixed point Q^π, as every β does, but where
    ρ < 1 it exceeds β_{t-1} ρ_t, so that no contraction is guaranteed.

    >>> import numpy as np, offtrace as ot
    >>> # decay, ratio, cap: π = 0.5, μ = 0.125
    >>> print(*ot.FlattenedIS(kappa=0.5, bound=1.5).normal_form(np, 0.5, 0.125, 4.0))
    1.0 2.0 1.5
    """

    kappa: float = 0.5
    bound: float = field(default=INFINITY, metadata=STATIC)

    title: ClassVar = "Flattened IS"
    formula: ClassVar = "min(C, β_{t-1} ρ_t^κ), C = bound"
    sweep: ClassVar = None  # κ = 0 is far from one-step, where the other sweeps begin
    aliases: ClassVar = ("flattened importance sampling", "adaptive importance weights")
    per_decision: ClassVar = HasCap(False)  # pyright: ignore[reportAssignmentType]
    recursive: ClassVar = HasCap(True)  # pyright: ignore[reportAssignmentType]
    recursive_condition: ClassVar = False
    proven: ClassVar = "as a weight it does not evaluate π unless κ = 1"
    citation: ClassVar = (
        "Hachiya, Akiyama, Sugiyama, Peters (2009), Adaptive importance sampling for value function approximation in "
        "off-policy reinforcement learning, Neural Networks"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("kappa", number("kappa", self.kappa, 0.0, 1.0))
        self._set("bound", number("bound", self.bound, 0.0, INFINITY))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        return cls(), cls(kappa=0.25, bound=1.0)

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers, kappa: Numbers, bound: Numbers) -> ThreeFactors:
        # What is raised to κ is never 0, where the slope of ρ^κ is infinite.
        return 1.0, xp.where(rho == 0, 0.0, xp.where(rho == 0, 1.0, rho) ** kappa), bound
