"""Methods with eligibility traces of their own.

Emphatic temporal differences on state values: one set of weights, stable off-policy by the weight F of each update.

    F_t = γ ρ_{t-1} F_{t-1} + 1,    m_t = λ + (1−λ) F_t,    z_t = ρ_t (γλ z_{t-1} + m_t x_t),    w ← w + α δ_t z_t

F, the follow-on trace, begins at 1 with each episode. ETD(λ, β) has β instead of γ in F: with a smaller β the variance is
smaller, and the promise of stability holds up to a β that depends on the policies. The variance of F may be infinite.

PTD(λ) and PQ(λ): a forward view that holds at every step, and Monte Carlo at λ = 1, by provisional weights u.

    PTD(λ)   e ← ρ(γλe + αφ)         θ ← θ + δe + (ρ−1)u                         u ← γλ (ρu + δ̄e)
    PQ(λ)    e ← γλρe + αφ           θ ← θ + δe + c(e − αφ) + (ρ−1)u             u ← γλ [ρu + δ̄e + c(e − αφ)]

    δ = r + γ θ·φ' − θ·φ,      δ̄ = r + θ·φ' − θ·φ,      c = θ·φ − θ·φ̄

φ' are the features of s' (PTD), or Σ_a π(a|s') φ(s', a) (PQ); φ̄ = Σ_a π(a|s) φ(s, a). α stands inside of e. What a step learns
from a reward is provisional until it is known whether π would have gone on as μ did: at a later step with ratio ρ, (ρ−1)u takes
it back (ρ = 0) or makes it larger. γ is seen as the probability to go on: with 1 − γ the return ends with what was collected,
undiscounted, hence δ̄, and the value that is learned is the discounted one.

The forward view, with values of fixed weights, ending at t: θ_t = θ_0 + α Σ_{k<t} w_k Δ_{k,t} φ_k,  w_k = ρ_k (PTD), 1 (PQ),

    Δ_{k,t} = Σ_{i=k+1}^{t−1} C_{k,i-1} [(1−γ) ε̄_{k,i} + γ(1−λ) ε_{k,i}] + C_{k,t-1} [(1−γ) ε̄_{k,t} + γ ε_{k,t}]

where C_{k,i} = ∏_{j=k+1}^{i} γλρ_j, ε̄_{k,i} = r_k + … + r_{i-1} − θ·φ_k is the error of the return that ends at i, and ε_{k,i}
that of the one which bootstraps there: θ·φ_i more (PTD), or θ·φ̄_i more (PQ).

True online TD(λ) and Sarsa(λ): equal to the online λ-return algorithm at every step, by dutch traces.

With x the features of s, or of (s, a), V = w·x, V' = w·x' (x' those of s', or of (s', a')), and V_old = 0 at first:

    δ = r + γV' − V        z ← γλ z + (1 − αγλ z·x) x        w ← w + α (δ + V − V_old) z − α (V − V_old) x        V_old ← V'

The online λ-return algorithm redoes, after each step t, all updates k < t from the episode's first weights, with the λ-return of
step k that ends at t. These need O(weights) a step for the same result. They are on-policy methods.
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
    decay,
    dot,
    number,
    plus,
    register_method,
)
from offtrace.traces import QLambda


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
    """ETD(λ, β): β instead of γ in the follow-on trace, which trades bias for variance. β = γ is ETD(λ), β = 0 is TD(λ).

    >>> ETDLB(0.9, beta=0.8).title
    'ETD(0.9, 0.8)'
    """

    beta: float = number(0.8, high=1.0)

    step_reads: ClassVar = ("lam", "beta")
    name: ClassVar = "ETD(λ, β)"
    aliases: ClassVar = ("etdlb", "etd(lambda, beta)")
    equation: ClassVar = "F = βρ₋F + 1;  m = λ + (1−λ)F;  z = ρ(γλz + mx);  w += α δ z"
    citation: ClassVar = "Hallak, Tamar, Munos, Mannor (2016), Generalized emphatic temporal difference learning, AAAI"
    proven: ClassVar = "a contraction for β near γ; with a smaller β a smaller variance, and another fixed point"


@register_method
@dataclass(frozen=True)
class PTD(LambdaMethod):
    """PTD(λ), on state values.

    >>> PTD(0.9).title
    'PTD(0.9)'
    """

    values: ClassVar = "state"
    traces: ClassVar = ("e", "u")
    uses_trace: ClassVar = False
    name: ClassVar[str] = "PTD(λ)"
    aliases: ClassVar[tuple[str, ...]] = ("ptd", "ptd(lambda)")
    equation: ClassVar[str] = "e = ρ(γλe + αφ);  θ += δe + (ρ−1)u;  u = γλ(ρu + δ̄e)"
    citation: ClassVar[str] = (
        "Sutton, Mahmood, Precup, van Hasselt (2014), A new Q(λ) with interim forward view and Monte Carlo equivalence, ICML"
    )
    proven: ClassVar[str] = "its forward view at every step, and Monte Carlo at λ = 1, both for fixed values in δ"
    needs: ClassVar[str] = "π and μ"

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """The equations of the module."""
        e, u, γλ = m.traces[0], m.traces[1], t.gamma * m.numbers[0]
        undiscounted = t.reward + t.next_value - t.value
        decay(e, t.rho * γλ, m.active)
        add(e, t.rho * t.alpha, x.φ)
        plus(m.θ, t.delta, e, m.active)
        plus(m.θ, t.rho - 1.0, u, m.active)
        decay(u, γλ * t.rho, m.active)
        plus(u, γλ * undiscounted, e, m.active)


@register_method
@dataclass(frozen=True)
class PQ(PTD):
    """PQ(λ), on action values.

    >>> PQ(0.9).title
    'PQ(0.9)'
    """

    values: ClassVar = "action"
    expects: ClassVar = True
    name: ClassVar = "PQ(λ)"
    aliases: ClassVar = ("pq", "pq(lambda)")
    equation: ClassVar = "e = γλρe + αφ;  θ += δe + c(e − αφ) + (ρ−1)u;  u = γλ[ρu + δ̄e + c(e − αφ)]"

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """The equations of the module."""
        e, u, γλ = m.traces[0], m.traces[1], t.gamma * m.numbers[0]
        undiscounted, c = t.reward + t.next_value - t.value, t.value - t.expected
        decay(e, t.rho * γλ, m.active)
        add(e, t.alpha, x.φ)
        plus(m.θ, t.delta + c, e, m.active)
        add(m.θ, -c * t.alpha, x.φ)
        plus(m.θ, t.rho - 1.0, u, m.active)
        decay(u, γλ * t.rho, m.active)
        plus(u, γλ * (undiscounted + c), e, m.active)
        add(u, -γλ * c * t.alpha, x.φ)


@register_method
@dataclass(frozen=True)
class TrueOnlineTD(LambdaMethod):
    """True online TD(λ), on state values.

    >>> TrueOnlineTD(0.9).title
    'True online TD(0.9)'
    """

    rule: ClassVar = QLambda
    values: ClassVar = "state"
    traces: ClassVar = ("z",)
    scalars: ClassVar = ("V_old",)
    uses_trace: ClassVar = False
    on_policy: ClassVar = True
    name: ClassVar[str] = "True online TD(λ)"
    aliases: ClassVar[tuple[str, ...]] = ("true online td", "true online td(lambda)")
    equation: ClassVar[str] = "z = γλz + (1 − αγλ z·x)x;  w += α(δ + V − V_old)z − α(V − V_old)x"
    citation: ClassVar[str] = (
        "van Seijen, Sutton (2014), True online TD(λ), ICML; van Seijen et al. (2016), True online temporal-difference learning, "
        "JMLR"
    )
    proven: ClassVar[str] = "equals the online λ-return algorithm at every step"
    needs: ClassVar[str] = "nothing: it is on-policy"

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """The equations of the module."""
        z, γλ = m.traces[0], t.gamma * m.numbers[0]
        change = t.value - m.scalars[0]
        decay(z, γλ, m.active)
        add(z, 1.0 - t.alpha * dot(z, x.φ), x.φ)
        plus(m.θ, t.alpha * (t.delta + change), z, m.active)
        add(m.θ, -t.alpha * change, x.φ)
        m.scalars[0] = t.next_value


@register_method
@dataclass(frozen=True)
class TrueOnlineSarsa(TrueOnlineTD):
    """True online Sarsa(λ), on action values. It learns about the policy that acts; in `control` that is how it improves.

    >>> TrueOnlineSarsa(0.9).title
    'True online Sarsa(0.9)'
    """

    values: ClassVar = "action"
    sampled: ClassVar = True
    name: ClassVar = "True online Sarsa(λ)"
    aliases: ClassVar = ("true online sarsa", "true online sarsa(lambda)")
    equation: ClassVar = "z = γλz + (1 − αγλ z·φ)φ;  θ += α(δ + Q − Q_old)z − α(Q − Q_old)φ"
