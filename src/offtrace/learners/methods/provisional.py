"""PTD(λ) and PQ(λ): a forward view that holds at every step, and Monte Carlo at λ = 1, by provisional weights u.

    PTD(λ)   e ← ρ(γλe + αφ)         θ ← θ + δe + (ρ−1)u                         u ← γλ (ρu + δ̄e)
    PQ(λ)    e ← γλρe + αφ           θ ← θ + δe + c(e − αφ) + (ρ−1)u             u ← γλ [ρu + δ̄e + c(e − αφ)]

    δ = r + γ θ·φ' − θ·φ,      δ̄ = r + θ·φ' − θ·φ,      c = θ·φ − θ·φ̄

φ' are the features of s' (PTD), or Σ_a π(a|s') φ(s', a) (PQ); φ̄ = Σ_a π(a|s) φ(s, a). α stands inside of e. What a step learns
from a reward is provisional until it is known whether π would have gone on as μ did: at a later step with ratio ρ, (ρ−1)u takes
it back (ρ = 0) or makes it larger. γ is seen as the probability to go on: with 1 − γ the return ends with what was collected,
undiscounted, hence δ̄, and the value that is learned is the discounted one.

The forward view, with values of fixed weights (`returns` of the same episode, ending at t):

    θ_t = θ_0 + α Σ_{k<t} w_k Δ_{k,t} φ_k,       w_k = ρ_k (PTD), 1 (PQ)

    Δ_{k,t} = Σ_{i=k+1}^{t−1} C_{k,i-1} [(1−γ) ε̄_{k,i} + γ(1−λ) ε_{k,i}] + C_{k,t-1} [(1−γ) ε̄_{k,t} + γ ε_{k,t}]

where C_{k,i} = ∏_{j=k+1}^{i} γλρ_j, ε̄_{k,i} = r_k + … + r_{i-1} − θ·φ_k is the error of the return that ends at i, and ε_{k,i}
that of the one which bootstraps there: θ·φ_i more (PTD), or θ·φ̄_i more (PQ). Nothing of the steps between stands in them: along
an older trace c turns the θ·φ_j of δ_j into θ·φ̄_j, from which the step before has bootstrapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from offtrace.learners.methods.base import LambdaMethod, Store, Transition, Vectors, add, decay, plus, register_method


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
    label: ClassVar = "PTD({lam:g})"
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
    label: ClassVar = "PQ({lam:g})"
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
