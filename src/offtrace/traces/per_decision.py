"""Rules whose β is a product of one coefficient per decision: cap = ∞."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from offtrace.traces.base import INFINITY, Math, Numbers, ThreeFactors, Trace, number
from offtrace.traces.registry import register


@register
@dataclass(frozen=True)
class OneStep(Trace):
    """β_t = 0 for t ≥ 1: Expected Sarsa, or Q-learning where π is greedy. It bootstraps at once and uses no trace.

    >>> import numpy as np, offtrace as ot
    >>> print(*ot.OneStep().normal_form(np, 0.5, 0.25, 2.0))  # decay, ratio, cap: π = 0.5, μ = 0.25
    0.0 1.0 inf
    """

    title: ClassVar = "One-step"
    formula: ClassVar = "0"
    look: ClassVar = 8
    aliases: ClassVar = ("td0", "td(0)", "expected sarsa")
    recursive_condition: ClassVar = True
    citation: ClassVar = "van Seijen et al. (2009), A theoretical and empirical analysis of Expected Sarsa"

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers) -> ThreeFactors:
        return 0.0, 1.0, INFINITY


@register
@dataclass(frozen=True)
class ImportanceSampling(Trace):
    """β_t = ∏ λρ_i (Precup, Sutton, Singh 2000): unbiased at λ = 1. It is not weighted, and nothing bounds its variance.

    >>> import numpy as np, offtrace as ot
    >>> # decay, ratio, cap: π = 0.5, μ = 0.25
    >>> print(*ot.ImportanceSampling(lam=0.9).normal_form(np, 0.5, 0.25, 2.0))
    0.9 2.0 inf
    """

    lam: float = 1.0

    title: ClassVar = "Importance sampling"
    formula: ClassVar = "∏ λρ_i"
    look: ClassVar = 7
    aliases: ClassVar = ("is", "per-decision importance sampling", "pdis")
    reads: ClassVar = ("rho",)
    recursive_condition: ClassVar = True
    citation: ClassVar = (
        "Precup, Sutton, Singh (2000), Eligibility traces for off-policy policy evaluation, ICML, section 3"
    )

    @classmethod
    def typical(cls) -> tuple[Self, ...]:
        return (cls(lam=0.9),)

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers, lam: Numbers) -> ThreeFactors:
        return lam, rho, INFINITY


@register
@dataclass(frozen=True)
class QLambda(Trace):
    """β_t = λ^t: Q(λ) with off-policy corrections. Not Watkins' nor Peng's Q(λ); it may diverge where π and μ differ much.

    >>> import numpy as np, offtrace as ot
    >>> # decay, ratio, cap: π = 0.5, μ = 0.25
    >>> print(*ot.QLambda(lam=0.9).normal_form(np, 0.5, 0.25, 2.0))
    0.9 1.0 inf
    """

    lam: float = 1.0

    title: ClassVar = "Q(λ)"
    formula: ClassVar = "λ^t"
    look: ClassVar = 5
    aliases: ClassVar = ("q(lambda)", "qlambda", "harutyunyan q(lambda)", "q*(lambda)")
    recursive_condition: ClassVar = False
    citation: ClassVar = (
        "Harutyunyan, Bellemare, Stepleton, Munos (2016), Q(λ) with off-policy corrections, ALT, equation 4"
    )

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers, lam: Numbers) -> ThreeFactors:
        return lam, 1.0, INFINITY


@register
@dataclass(frozen=True)
class TreeBackup(Trace):
    """β_t = ∏ λπ_i: safe for any μ, and needs none. Not efficient near on-policy, where it cuts most of the trace.

    >>> import numpy as np, offtrace as ot
    >>> # decay, ratio, cap: π = 0.5, μ = 0.25
    >>> print(*ot.TreeBackup(lam=0.9).normal_form(np, 0.5, 0.25, 2.0))
    0.9 0.5 inf
    """

    lam: float = 1.0

    title: ClassVar = "Tree Backup"
    formula: ClassVar = "∏ λπ_i"
    look: ClassVar = 4
    aliases: ClassVar = ("tb", "tree-backup(lambda)")
    reads: ClassVar = ("pi",)
    recursive_condition: ClassVar = True
    citation: ClassVar = (
        "Precup, Sutton, Singh (2000), Eligibility traces for off-policy policy evaluation, ICML, section 4"
    )

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers, lam: Numbers) -> ThreeFactors:
        return lam, pi, INFINITY


@register
@dataclass(frozen=True)
class Retrace(Trace):
    """β_t = ∏ λ min(1, ρ_i): safe, and efficient near on-policy. A cut is never undone. Not V-trace (state values).

    >>> import numpy as np, offtrace as ot
    >>> # decay, ratio, cap: π = 0.5, μ = 0.25
    >>> print(*ot.Retrace(lam=0.9).normal_form(np, 0.5, 0.25, 2.0))
    0.9 1.0 inf
    """

    lam: float = 1.0

    title: ClassVar = "Retrace"
    formula: ClassVar = "∏ λ min(1, ρ_i)"
    look: ClassVar = 0
    aliases: ClassVar = ("retrace(lambda)",)
    reads: ClassVar = ("rho",)
    recursive_condition: ClassVar = True
    citation: ClassVar = (
        "Munos, Stepleton, Harutyunyan, Bellemare (2016), Safe and efficient off-policy RL, NeurIPS, equation 9"
    )

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers, lam: Numbers) -> ThreeFactors:
        return lam, xp.minimum(rho, 1.0), INFINITY


@register
@dataclass(frozen=True)
class VTrace(Trace):
    """β_t = ∏ λ min(c̄, ρ_i), for state values, where δ carries min(ρ̄, ρ): V-trace. c̄ = `c_bar`, ρ̄ = `rho_bar`.

    On state values its fixed point is the value of π_ρ̄ ∝ min(ρ̄μ, π), which is π itself only where ρ̄ never acts, and it is a
    contraction where c̄ ≤ ρ̄. On action values δ carries no ratio: ρ̄ has no part there, and c̄ = 1 makes it Retrace.

    >>> import numpy as np, offtrace as ot
    >>> # decay, ratio, cap: π = 0.5, μ = 0.25
    >>> print(*ot.VTrace(lam=0.9, c_bar=1.5).normal_form(np, 0.5, 0.25, 2.0))
    0.9 1.5 inf
    """

    lam: float = 1.0
    rho_bar: float = 1.0
    c_bar: float = 1.0

    title: ClassVar = "V-trace"
    formula: ClassVar = "∏ λ min(c̄, ρ_i); on states δ carries min(ρ̄, ρ)"
    proven: ClassVar = "on states with c̄ ≤ ρ̄; its fixed point there is that of π_ρ̄"
    sweep: ClassVar = None  # on action values it is Retrace, but for c̄
    aliases: ClassVar = ("v-trace(lambda)", "impala")
    reads: ClassVar = ("rho",)
    recursive_condition: ClassVar = True
    citation: ClassVar = (
        "Espeholt et al. (2018), IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures, "
        "ICML, equation 1"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rho_bar", "c_bar"):
            self._set(name, number(name, getattr(self, name), 0.0, INFINITY))

    @property
    def parameters(self) -> tuple[Numbers, ...]:
        return self.c_bar, self.lam

    @property
    def delta_bound(self) -> Numbers:
        return self.rho_bar

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        return (cls(lam=0.9, rho_bar=1.2, c_bar=1.5),)

    @classmethod
    def typical(cls) -> tuple[Self, ...]:
        return ()  # on action values Retrace stands for it

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers, c_bar: Numbers, lam: Numbers) -> ThreeFactors:
        return lam, xp.minimum(rho, c_bar), INFINITY


@register
@dataclass(frozen=True)
class WatkinsQ(Trace):
    """β_t = λ^t while the actions taken are greedy in Q, 0 from the first that is not: Watkins' Q(λ).

    Whether an action is greedy is not read off a soft π: tell it with `greedy=…`, or give log π of a greedy policy (0 or −inf).
    Learners and deep agents know Q and ask it. The recursive condition holds where π itself is greedy, not under a soft π.

    >>> import numpy as np, offtrace as ot
    >>> # decay, ratio, cap: π = 1, μ = 0.25
    >>> print(*ot.WatkinsQ(lam=0.9).normal_form(np, 1.0, 0.25, 4.0))
    0.9 1.0 inf
    """

    lam: float = 1.0

    title: ClassVar = "Watkins' Q(λ)"
    formula: ClassVar = "λ^t while the actions taken are greedy, then 0"
    proven: ClassVar = "holds for greedy π"
    look: ClassVar = 6
    sweep: ClassVar = None  # it is not defined for the soft targets of most MDPs
    aliases: ClassVar = ("watkins", "watkins q(lambda)", "watkins' q(lambda)")
    reads: ClassVar = ("pi",)
    needs_greedy: ClassVar = True
    recursive_condition: ClassVar = False
    citation: ClassVar = "Watkins (1989), Learning from delayed rewards, PhD thesis, King's College, Cambridge"

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers, lam: Numbers) -> ThreeFactors:
        return lam, pi, INFINITY  # π of the greedy policy
