"""Returns that bootstrap from v(s') = Σ_a π(a|s') q(s', a) alone, without the q of later steps, step by step.

    G_k = r_k + γ [(1−λ) v_{k+1} + λ G_{k+1}]

    G_k − q_k = δ_k + Σ_{t>k} (γλ)^{t-k} δ'_t,      δ_t = r_t + γ v_{t+1} − q_t,      δ'_t = r_t + γ v_{t+1} − v_t

so with z_t = γλ z_{t-1} + φ_t, of which a start leaves after n steps, where there is such an n:

    θ ← θ + α [δ_t φ_t + δ'_t (z_t − φ_t)]

Each v is taken once, when its state is reached: a start is credited with its return as it is told above, with those v. These are
Peng's Q(λ) (Peng and Williams 1994) and the uncorrected n-step return, the oldest off-policy methods that are still in use. Their
fixed point is not Q^π unless π = μ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from offtrace.learners.methods.base import Method, Store, Transition, Vectors
from offtrace.traces import Rule, Trace
from offtrace.traces.trace_argument import eligibility_of


@dataclass(frozen=True)
class UncorrectedLearner(Method):
    """What `PengQ` or `NStep` by itself means, where a method is asked for.

    >>> import offtrace as ot
    >>> UncorrectedLearner(ot.NStep(n=3)).trace  # whose eligibility vector it uses
    QLambda(horizon=3, lam=1.0)
    """

    of: Rule

    in_loop: ClassVar[bool] = True
    uncorrected: ClassVar[bool] = True
    name: ClassVar[str] = "Uncorrected return"
    equation: ClassVar[str] = "z = γλz + φ;  θ += α[δφ + δ'(z − φ)],  δ' = r + γv' − v"
    proven: ClassVar[str] = "Peng's Q(λ) converges to the value of λμ + (1−λ)π (Kozuno et al. 2021)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of.uncorrected_return is None:
            raise TypeError(f"{self.of.title} is a trace, not an uncorrected return: use TraceLearner")

    @property
    def title(self) -> str:
        """The name of the return."""
        return self.of.title

    @property
    def trace(self) -> Trace:
        """The trace whose eligibility vector is used: it has no ratios."""
        return eligibility_of(self.of)

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """The loop has this step in itself."""
