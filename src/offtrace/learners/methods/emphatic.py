"""Emphatic temporal differences on state values: one set of weights, stable off-policy by the weight F of each update.

    F_t = γ ρ_{t-1} F_{t-1} + 1,    m_t = λ + (1−λ) F_t,    z_t = ρ_t (γλ z_{t-1} + m_t x_t),    w ← w + α δ_t z_t

F, the follow-on trace, begins at 1 with each episode. ETD(λ, β) has β in the place of γ in F: with a smaller β the variance is
smaller, and the promise of stability holds up to a β that depends on the policies. The variance of F may be infinite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from offtrace.learners.methods.base import (
    LambdaMethod,
    Store,
    Transition,
    Vectors,
    add,
    checked,
    decay,
    plus,
    register_method,
)


@register_method
@dataclass(frozen=True)
class ETD(LambdaMethod):
    """ETD(λ), emphatic TD.

    >>> ETD(0.9).title
    'ETD(0.9)'
    """

    values: ClassVar = "state"
    traces: ClassVar = ("z",)
    scalars: ClassVar = ("F", "ρ of the step before")
    uses_trace: ClassVar = False
    label: ClassVar = "ETD({lam:g})"
    name: ClassVar[str] = "ETD(λ)"
    aliases: ClassVar[tuple[str, ...]] = ("etd", "emphatic td", "etd(lambda)")
    equation: ClassVar[str] = "F = γρ₋F + 1;  m = λ + (1−λ)F;  z = ρ(γλz + mx);  w += α δ z"
    citation: ClassVar[str] = (
        "Sutton, Mahmood, White (2016), An emphatic approach to the problem of off-policy temporal-difference learning, JMLR"
    )
    proven: ClassVar[str] = "converges with linear features, off-policy too (Yu 2015)"
    needs: ClassVar[str] = "π and μ"

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """The equations of the module."""
        z, λ, β = m.traces[0], m.numbers[0], m.numbers[1] if len(m.numbers) > 1 else t.gamma
        m.scalars[0] = β * m.scalars[1] * m.scalars[0] + 1.0
        m.scalars[1] = t.rho
        decay(z, t.gamma * λ * t.rho, m.active)
        add(z, t.rho * (λ + (1.0 - λ) * m.scalars[0]), x.φ)
        plus(m.θ, t.alpha * t.delta, z, m.active)


@register_method
@dataclass(frozen=True)
class ETDLB(ETD):
    """ETD(λ, β): β in the place of γ in the follow-on trace, which trades bias for variance. β = γ is ETD(λ), β = 0 is TD(λ).

    >>> ETDLB(0.9, beta=0.8).title
    'ETD(0.9, 0.8)'
    """

    beta: float = 0.8

    step_reads: ClassVar = ("lam", "beta")
    label: ClassVar = "ETD({lam:g}, {beta:g})"
    name: ClassVar = "ETD(λ, β)"
    aliases: ClassVar = ("etdlb", "etd(lambda, beta)")
    equation: ClassVar = "F = βρ₋F + 1;  m = λ + (1−λ)F;  z = ρ(γλz + mx);  w += α δ z"
    citation: ClassVar = "Hallak, Tamar, Munos, Mannor (2016), Generalized emphatic temporal difference learning, AAAI"
    proven: ClassVar = "a contraction for β near γ; with a smaller β a smaller variance, and another fixed point"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "beta", checked("beta", self.beta, 0.0, 1.0))
