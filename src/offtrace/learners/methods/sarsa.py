"""Sarsa(λ) and Expected Sarsa(λ):

    Sarsa(λ)            δ = r + γ q(s', a') − q(s, a)                   z ← γλ z + φ          θ ← θ + α δ z
    Expected Sarsa(λ)   δ = r + γ Σ_a π(a|s') q(s', a) − q(s, a)        z ← γλρ z + φ         θ ← θ + α δ z

a' is the next action taken, chosen before θ changes. Where an episode is cut by a limit, a' is drawn all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from offtrace.learners.methods.registry import register_method
from offtrace.learners.methods.trace_learner import TraceLearner
from offtrace.traces import ImportanceSampling, QLambda


@register_method
@dataclass(frozen=True)
class Sarsa(TraceLearner):
    """Sarsa(λ), with accumulating traces. It learns about the policy that acts.

    >>> Sarsa(0.9).title
    'Sarsa(0.9)'
    """

    of: QLambda = field(init=False, repr=False, compare=False)  # pyright: ignore[reportIncompatibleVariableOverride]
    lam: float = 1.0

    sampled: ClassVar = True
    on_policy: ClassVar = True
    follows_operator: ClassVar = False
    name: ClassVar = "Sarsa(λ)"
    aliases: ClassVar = ("sarsa", "sarsa(lambda)")
    equation: ClassVar = "δ = r + γq(s', a') − q;  z = γλz + φ;  θ += α δ z"
    citation: ClassVar = (
        "Rummery, Niranjan (1994), On-line Q-learning using connectionist systems; Sutton, Barto (2018), section 12.7"
    )
    proven: ClassVar = "with a table and λ = 0, to Q* with a policy that becomes greedy (Singh et al. 2000)"
    needs: ClassVar = "the next action: it is on-policy"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "of", QLambda(lam=self.lam))

    @property
    def title(self) -> str:
        """The name, with its λ."""
        return f"Sarsa({self.lam:g})"


@register_method
@dataclass(frozen=True)
class ExpectedSarsa(TraceLearner):
    """Expected Sarsa(λ): off-policy by ratios in its trace, which is that of importance sampling.

    >>> ExpectedSarsa(0.9).trace
    ImportanceSampling(horizon=None, lam=0.9)
    """

    of: ImportanceSampling = field(init=False, repr=False, compare=False)  # pyright: ignore[reportIncompatibleVariableOverride]
    lam: float = 1.0

    name: ClassVar = "Expected Sarsa(λ)"
    aliases: ClassVar = ("expected sarsa", "expected sarsa(lambda)")
    equation: ClassVar = "δ = r + γΣπ(a|s')q(s', a) − q;  z = γλρz + φ;  θ += α δ z"
    citation: ClassVar = (
        "van Seijen et al. (2009), A theoretical and empirical analysis of Expected Sarsa; Sutton, Barto (2018), "
        "equation 12.29"
    )
    proven: ClassVar = "with a table it converges to Q^π; may diverge with features off-policy"
    needs: ClassVar = "π and μ"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "of", ImportanceSampling(lam=self.lam))

    @property
    def title(self) -> str:
        """The name, with its λ."""
        return f"Expected Sarsa({self.lam:g})"
