"""The paper's Algorithm 1 (Daley and Amato 2021) with any trace, and with π in δ:

    z_t = Σ_k γ^{t-k} β_{k:t} φ_k          θ ← θ + α δ_t z_t

and the same on state values, where the start's own action acts and δ carries ρ̄_t (see `state_targets`):

    z_t = Σ_k γ^{t-k} b_{k:t-1} φ_k        θ ← θ + α ρ̄_t δ_t z_t

These are semi-gradient methods: with features, and off-policy, their weights may diverge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from offtrace.learners.core.record_arrays import Floats
from offtrace.learners.methods.base import Method, Store, Transition, Vectors, add
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
    name: ClassVar[str] = "Algorithm 1"
    equation: ClassVar[str] = "z = γβ-rule(z) + φ;  θ += α δ z"
    citation: ClassVar[str] = (
        "Daley, Amato (2021), Improving the efficiency of off-policy RL by accounting for past decisions, algorithm 1"
    )
    proven: ClassVar[str] = "what the trace's operator converges to, with a table; may diverge with features"
    needs: ClassVar[str] = "π, and μ where the trace reads it"

    @property
    def title(self) -> str:
        """The name of the trace."""
        return self.of.title

    @property
    def trace(self) -> Trace:
        """The trace whose eligibility vector is used."""
        return self.of

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """θ ← θ + α ρ̄ δ e, where ρ̄ is 1 on action values."""
        add(m.θ, t.alpha * t.ratio * t.delta, x.e)

    def for_policies(self, target: tuple[Floats, Floats], behavior: tuple[Floats, Floats]) -> Self:
        """Return the method with the trace for these policies."""
        made = self.of.for_policies(target, behavior)
        return self if made is self.of else replace(self, of=made)


@dataclass(frozen=True)
class StateTraceLearner(TraceLearner):
    """Off-policy TD on state values with any trace's eligibility vector.

    >>> import offtrace as ot
    >>> StateTraceLearner(ot.RBIS(lam=0.9)).values
    'state'
    """

    values: ClassVar = "state"
    follows_operator: ClassVar[bool] = False  # that of pairs: on states it is another one, `operators.StateOperator`
    name: ClassVar[str] = "TD with a trace"
    equation: ClassVar[str] = "z = γb-rule(z) + x;  w += α ρ̄ δ z"
    needs: ClassVar[str] = "π and μ"
