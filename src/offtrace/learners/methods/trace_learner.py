"""The paper's Algorithm 1 (Daley and Amato 2021) with any trace, and with π in δ:

    z_t = Σ_k γ^{t-k} β_{k:t} φ_k          θ ← θ + α δ_t z_t

It is a semi-gradient method: with features, and off-policy, its weights may diverge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from offtrace.learners.core.records import Floats
from offtrace.learners.methods.base import Method, Sparse, Transition, add
from offtrace.traces import Trace


@dataclass(frozen=True)
class TraceLearner(Method):
    """What a trace by itself means, where a method is asked for.

    >>> import offtrace as ot
    >>> TraceLearner(ot.Retrace(lam=0.9)).trace
    Retrace(horizon=None, lam=0.9)
    """

    of: Trace

    in_loop: ClassVar[bool] = True
    follows_operator: ClassVar[bool] = True

    @property
    def title(self) -> str:
        """The name of the trace."""
        return self.of.title

    @property
    def trace(self) -> Trace:
        """The trace whose eligibility vector is used."""
        return self.of

    @staticmethod
    def step(t: Transition, θ: Floats, further: Floats, numbers: Floats, e: Sparse, φ: Sparse, φ_next: Sparse) -> None:
        """θ ← θ + α δ e."""
        add(θ, t.alpha * t.delta, e)

    def for_policies(self, target: tuple[Floats, Floats], behavior: tuple[Floats, Floats]) -> Self:
        """With the trace for these policies."""
        return replace(self, of=self.of.for_policies(target, behavior))
