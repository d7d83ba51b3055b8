"""True online TD(λ) and Sarsa(λ): equal to the online λ-return algorithm at every step, by dutch traces.

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
    plus,
    register_method,
)
from offtrace.traces import QLambda


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
    label: ClassVar = "True online TD({lam:g})"
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
    label: ClassVar = "True online Sarsa({lam:g})"
    name: ClassVar = "True online Sarsa(λ)"
    aliases: ClassVar = ("true online sarsa", "true online sarsa(lambda)")
    equation: ClassVar = "z = γλz + (1 − αγλ z·φ)φ;  θ += α(δ + Q − Q_old)z − α(Q − Q_old)φ"
