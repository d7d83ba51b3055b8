"""Families of rules whose β is a product of one coefficient per decision: a parameter leads from one known rule to another."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from offtrace.traces.base import (
    INFINITY,
    Math,
    Numbers,
    Range,
    Sweep,
    ThreeFactors,
    Trace,
    for_each_step,
    number,
    whole,
)
from offtrace.traces.registry import register


@register
@dataclass(frozen=True, eq=False)
class VariableLambda(Trace):
    """β_t = ∏ λ_i ρ_i with a λ for every step, given as an array of the trajectory's shape. λ of a start is not used.

    >>> import numpy as np, offtrace as ot
    >>> trace = ot.VariableLambda(lam=np.array([1.0, 0.5, 0.0]))
    >>> trace.normal_form(np, np.full(3, 0.5), np.full(3, 0.25), np.full(3, 2.0)).decay.tolist()
    [1.0, 0.5, 0.0]
    """

    lam: Numbers

    title: ClassVar = "Variable λ"
    formula: ClassVar = "∏ λ_i ρ_i, λ an array"
    sweep: ClassVar = None
    per_step: ClassVar = True
    aliases: ClassVar = ("variable lambda",)
    reads: ClassVar = ("rho",)
    recursive_condition: ClassVar = True
    citation: ClassVar = (
        "Maei, Sutton (2010), GQ(λ): a general gradient algorithm for temporal-difference prediction learning with eligibility "
        "traces, AGI; Daley, Amato (2021), Improving the efficiency of off-policy RL by accounting for past decisions, section 5"
    )

    def __post_init__(self) -> None:
        if self.horizon is not None:
            self._set("horizon", whole("horizon", self.horizon))
        _ = self.traced
        if type(self.lam).__module__.startswith("jax."):
            return  # under JAX it only stands for an array
        self._set("lam", for_each_step("lam", self.lam, 1.0))

    @property
    def shape(self) -> tuple[int, ...] | None:
        return tuple(np.shape(self.lam))

    def mapped(self, function: Callable[[Numbers], Numbers]) -> VariableLambda:
        return replace(self, lam=function(self.lam))

    # By identity: those of Trace do not know `lam`, and arrays are not compared in passing.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        return ()  # each belongs to one trajectory

    @classmethod
    def typical(cls) -> tuple[Self, ...]:
        return ()

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers, lam: Numbers) -> ThreeFactors:
        return lam, rho, INFINITY


@register
@dataclass(frozen=True)
class QSigma(Trace):
    """β_t = ∏ λ(σρ_i + (1−σ)π_i): between importance sampling (σ = 1) and Tree Backup (σ = 0). Not Sarsa: δ is expected.

    >>> import numpy as np, offtrace as ot
    >>> # decay, ratio, cap: π = 0.5, μ = 0.25
    >>> print(*ot.QSigma(sigma=0.5).normal_form(np, 0.5, 0.25, 2.0))
    1.0 1.25 inf
    """

    sigma: float = 0.5
    lam: float = 1.0

    title: ClassVar = "Q(σ)"
    formula: ClassVar = "∏ λ(σρ_i + (1−σ)π_i)"
    aliases: ClassVar = ("q(sigma)", "qsigma", "q(σ, λ)")
    reads: ClassVar = ("pi", "rho")
    recursive_condition: ClassVar = True
    citation: ClassVar = (
        "De Asis, Hernandez-Garcia, Holland, Sutton (2018), Multi-step RL: a unifying algorithm, AAAI, equation 14"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("sigma", number("sigma", self.sigma, 0.0, 1.0))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        return (cls(sigma=0.3, lam=0.9),)

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers, sigma: Numbers, lam: Numbers) -> ThreeFactors:
        return lam, sigma * rho + (1.0 - sigma) * pi, INFINITY


@register
@dataclass(frozen=True)
class AlphaRetrace(Trace):
    """β_t = ∏ λ min(1, αρ_i + 1 − α): Retrace towards απ + (1−α)μ, α = `mix`.

    It does not evaluate π: `next_value` must be the mixture's expectation too, and the fixed point is the mixture's
    value. The recursive condition holds for the mixture's ratio, not for ρ.

    >>> import numpy as np, offtrace as ot
    >>> # decay, ratio, cap: π = 0.25, μ = 0.5
    >>> print(*ot.AlphaRetrace(mix=0.5).normal_form(np, 0.25, 0.5, 0.5))
    1.0 0.75 inf
    """

    mix: float = 1.0
    lam: float = 1.0

    title: ClassVar = "α-Retrace"
    formula: ClassVar = "∏ λ min(1, αρ_i + 1 − α), α = mix"
    proven: ClassVar = "holds for the mixture's ratio"
    sweep: ClassVar = Sweep("mix", "α")
    mixture: ClassVar = True
    aliases: ClassVar = ("alpha-retrace",)
    reads: ClassVar = ("rho",)
    recursive_condition: ClassVar = False
    citation: ClassVar = "Rowland, Dabney, Munos (2020), Adaptive trade-offs in off-policy learning, AISTATS, section 4"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("mix", number("mix", self.mix, 0.0, 1.0))

    @property
    def target_share(self) -> float:
        return self.mix

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        return (cls(mix=0.4, lam=0.9),)

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers, mix: Numbers, lam: Numbers) -> ThreeFactors:
        return lam, xp.minimum(mix * rho + (1.0 - mix), 1.0), INFINITY


@register
@dataclass(frozen=True)
class CTrace(Trace):
    """α-Retrace whose mix is moved by Robbins–Monro steps until its contraction rate is `rate`. See `offtrace.adapt`.

    It is a value, as every trace: `adapt` returns the next one and changes nothing.

    >>> import offtrace as ot
    >>> ot.CTrace(rate=0.8).mix  # as long as `offtrace.adapt` has not moved it
    1.0
    """

    rate: float = 0.9
    """The contraction rate that is wanted."""
    lam: float = 1.0
    mix: float = 1.0
    """α, as it stands."""
    step_size: float = 5.0
    """The first Robbins–Monro step; the n-th is step_size / n^0.6. The nearer γ is to 1, the larger it may be."""
    adapted: int = 0
    """How often the mix has been moved."""

    title: ClassVar = "C-trace"
    formula: ClassVar = "that of α-Retrace"
    proven: ClassVar = "holds for the mixture's ratio"
    sweep: ClassVar = None  # at a fixed mix it is α-Retrace
    mixture: ClassVar = True
    adaptive: ClassVar = True
    reads: ClassVar = ("rho",)
    recursive_condition: ClassVar = False
    citation: ClassVar = (
        "Rowland, Dabney, Munos (2020), Adaptive trade-offs in off-policy learning, AISTATS, algorithm 1"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, high in (("rate", 1.0), ("mix", 1.0), ("step_size", sys.float_info.max)):
            self._set(name, number(name, getattr(self, name), 0.0, high))

    @property
    def parameters(self) -> tuple[Numbers, ...]:
        return self.mix, self.lam

    @property
    def target_share(self) -> float:
        return self.mix

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        return (cls(mix=0.6, rate=0.8),)

    factors = staticmethod(AlphaRetrace.factors)

    def moved(self, measured_rate: Numbers, xp: Math = np) -> CTrace:
        """One Robbins–Monro step: a larger mix cuts more and contracts more slowly, so a rate too high lowers the mix."""
        count = self.adapted + 1
        mix = self.mix - self.step_size / count**0.6 * (measured_rate - self.rate)
        return replace(self, mix=xp.minimum(1.0, xp.maximum(0.0, mix)), adapted=count)


@register
@dataclass(frozen=True)
class ABQ(Trace):
    """β_t = ∏ min(ψ, 1/max(μ_i, π_i)) π_i, ψ = 2ζψ0 + max(0, 2ζ−1)(ψ_max − 2ψ0): action-dependent bootstrapping.

    On state values the same coefficients make ABTD(ζ). ζ in [0, 1] plays the part of λ. It is free of ratios, not of μ. The
    constants belong to the policies: ψ0 is one over the largest max(μ, π) of all pairs, ψ_max one over the smallest above 0.
    `ABQ.from_policies` computes them; learners, operators, studies and logs, which know the policies, do so where they are None.

    >>> import numpy as np, offtrace as ot
    >>> target, behavior = np.array([[0.5, 0.5]]), np.array([[0.25, 0.75]])
    >>> trace = ot.ABQ.from_policies(0.5, target, behavior)
    >>> round(trace.psi0, 3), trace.psi_max
    (1.333, 2.0)
    """

    zeta: float = 0.5
    psi0: float | None = None
    psi_max: float | None = None

    title: ClassVar = "ABQ"
    formula: ClassVar = "∏ min(ψ, 1/max(μ_i, π_i)) π_i"
    sweep: ClassVar = Sweep("zeta", "ζ")
    aliases: ClassVar = ("abq(zeta)", "abq(ζ)", "abtd", "abtd(zeta)", "abtd(ζ)")
    reads: ClassVar = ("pi", "mu")
    recursive_condition: ClassVar = True
    citation: ClassVar = (
        "Mahmood, Yu, Sutton (2017), Multi-step off-policy learning without importance sampling ratios, section 5"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("zeta", number("zeta", self.zeta, 0.0, 1.0))
        for name in ("psi0", "psi_max"):
            if getattr(self, name) is not None:
                self._set(name, number(name, getattr(self, name), 0.0, sys.float_info.max))
        if self.psi0 is not None and self.psi_max is not None and not self.psi0 <= self.psi_max:
            raise ValueError(f"ABQ needs psi0 ≤ psi_max, got psi0={self.psi0!r}, psi_max={self.psi_max!r}")

    @classmethod
    def from_policies(cls, zeta: float, target: ArrayLike, behavior: ArrayLike, *, horizon: int | None = None) -> ABQ:
        """The rule with the published constants of two policies, tables [S, A] or [A].

        >>> import numpy as np
        >>> ABQ.from_policies(0.5, target=np.array([0.9, 0.1]), behavior=np.array([0.5, 0.5]))
        ABQ(horizon=None, zeta=0.5, psi0=1.1111111111111112, psi_max=2.0)
        """
        π, μ = np.asarray(target, float), np.asarray(behavior, float)
        if π.shape != μ.shape:
            raise ValueError(f"target has shape {π.shape} but behavior has shape {μ.shape}")
        return cls(zeta, horizon=horizon).for_policies((π, π), (μ, μ))

    def for_policies(self, target: Range, behavior: Range) -> ABQ:
        """ψ0 and ψ_max of these policies, unless they were given."""
        if self.psi0 is not None and self.psi_max is not None:
            return self
        low, high = (np.maximum(a, b) for a, b in zip(target, behavior, strict=True))
        if not np.max(high) > 0:
            raise ValueError("no action has a probability above 0: these are not policies")
        low = low[low > 0] if np.any(low > 0) else high[high > 0]
        psi0 = float(1 / np.max(high)) if self.psi0 is None else self.psi0
        return replace(self, psi0=psi0, psi_max=float(1 / np.min(low)) if self.psi_max is None else self.psi_max)

    @property
    def psi(self) -> float:
        """ψ(ζ)."""
        psi_max = self.psi_max
        if psi_max is None and self.psi0 is not None and isinstance(self.zeta, float) and self.zeta <= 0.5:
            psi_max = self.psi0  # it has no part in ψ then
        if self.psi0 is None or psi_max is None:
            raise ValueError(
                "ABQ does not know its constants ψ0 and ψ_max, which belong to the two policies: make it with "
                "ABQ.from_policies(zeta, target, behavior), or give psi0 and psi_max"
            )
        excess = 2 * self.zeta - 1
        excess = (excess + abs(excess)) / 2  # max(0, ·), which a number under JAX cannot be asked for
        return 2 * self.zeta * self.psi0 + excess * (psi_max - 2 * self.psi0)

    @property
    def parameters(self) -> tuple[Numbers, ...]:
        return (self.psi,)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        return tuple(cls(zeta=zeta, psi0=0.9, psi_max=3.0) for zeta in (0.3, 0.9))

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers, psi: Numbers) -> ThreeFactors:
        return 1.0, xp.minimum(psi, 1.0 / xp.maximum(mu, pi)) * pi, INFINITY
