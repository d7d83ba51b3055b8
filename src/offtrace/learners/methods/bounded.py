"""λ that depends on the past, also on what came before a start: TD on state values with a trace e whose λ is computed on the way.

    e_t = λ_t γ ρ_{t-1} e_{t-1} + x_t        w ← w + α ρ_t δ_t e_t        λ_t a function of e_{t-1} and of all that was seen

With `eta` above 0 the gradient correction of GTD(λ) is added, by a second set of weights v with step size ηα:

    w ← w + α [ρ_t δ_t e_t − γ ρ_t (1 − λ_{t+1}) (e_t·v) x_{t+1}]        v ← v + ηα [ρ_t δ_t e_t − (x_t·v) x_t]

*These are not traces of the operator.* λ_t also depends on what came before a start, through e or through counts. So there is no
β(F_{k:t}), and neither `targets`, nor `Stream`, nor `operators` has them. (`HistoryBounded` bounds the trace of each start by
itself, which is a β.) They converge to the solution of a Bellman equation of their own (Yu, Mahmood, Sutton 2018), in which λ_t
has the joint stationary law of states and traces; where a table can hold V^π, that is V^π.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np

from offtrace.learners.arrays import inline_fma
from offtrace.learners.methods.base import (
    Method,
    Store,
    Transition,
    Vectors,
    add,
    decay,
    dot,
    inner,
    number,
    plus,
    register_method,
)
from offtrace.traces import ImportanceSampling

Rate = Callable[[Transition, float, Store], float]


def _step_of(rate: Rate) -> Callable[[Transition, Store, Vectors], None]:
    """The step of a method whose λ is `rate`."""
    compiled = inline_fma(rate)

    def step(t: Transition, m: Store, x: Vectors) -> None:
        e, v, α_v = m.traces[0], m.further[0], m.numbers[0] * t.alpha
        add(e, 1.0, x.φ)
        lam = compiled(t, sqrt(inner(e, e, m.active)), m)
        lam = lam if 0.0 <= lam <= 1.0 else np.nan  # then the weights are NaN, which is seen
        e_v, x_v = inner(v, e, m.active), dot(v, x.φ)
        plus(m.θ, t.alpha * t.rho * t.delta, e, m.active)
        add(m.θ, -t.alpha * t.gamma * t.rho * (1.0 - lam) * e_v, x.φ_next)
        plus(v, α_v * t.rho * t.delta, e, m.active)
        add(v, -α_v * x_v, x.φ)
        decay(e, lam * t.gamma * t.rho, m.active)

    return step


@dataclass(frozen=True)
class HistoryTD(Method):
    """TD on state values whose λ is a function of yours: derive from it, and state `rate`.

    `rate(t, norm, m)` gives λ_{t+1} in [0, 1], the λ of the next step, if there is one. `t` is the step
    that was taken (`t.state`, `t.action`, `t.next_state`, `t.rho`, `t.gamma`, …) and `norm` is ‖e_t‖. What it wants to remember
    inside of an episode it keeps in `m.scalars`, one number for each name in `scalars`; its own parameters are `m.numbers[1:]`,
    see `numbers`. It is compiled by Numba. A λ outside of [0, 1] makes the weights NaN.

    >>> from dataclasses import dataclass
    >>> from offtrace.learners import HistoryTD
    >>> @dataclass(frozen=True)
    ... class CutAtRareActions(HistoryTD):
    ...     @staticmethod
    ...     def rate(t, norm, m):
    ...         return 0.0 if t.mu < 0.1 else 0.9
    >>> CutAtRareActions(alpha=0.1).title
    'CutAtRareActions'
    """

    eta: float = number(0.0)
    """The gradient correction's step size is η α; 0: no correction."""

    values: ClassVar = "state"
    further: ClassVar[tuple[str, ...]] = ("v",)
    traces: ClassVar[tuple[str, ...]] = ("e",)
    step_reads: ClassVar[tuple[str, ...]] = ("eta",)
    uses_trace: ClassVar = False
    equation: ClassVar[str] = "e = λ_tγρ₋e + x;  w += α ρ δ e"
    needs: ClassVar[str] = "π and μ"

    def __init_subclass__(cls, **named: object) -> None:
        super().__init_subclass__(**named)
        if "rate" in vars(cls):
            cls.step = staticmethod(_step_of(vars(cls)["rate"].__func__))  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def trace(self) -> ImportanceSampling:
        """That of importance sampling, in which λ is replaced."""
        return ImportanceSampling()

    @staticmethod
    @abstractmethod
    def rate(t: Transition, norm: float, m: Store) -> float:
        """λ_{t+1}."""

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """Made of `rate`, in each subclass."""
        raise NotImplementedError


@register_method
@dataclass(frozen=True)
class BoundedTD(HistoryTD):
    """λ_t that keeps the summed trace in a ball: ‖λ_t γ ρ_{t-1} e_{t-1}‖ ≤ C, C = `bound`. It is `lam` as long as that does.

    >>> BoundedTD(bound=2.0).title
    'TD with ‖e‖ ≤ 2'
    """

    bound: float = number(1.0)
    """C."""
    lam: float = number(1.0, high=1.0)
    """The largest λ."""

    step_reads: ClassVar = ("eta", "bound", "lam")
    name: ClassVar = "TD with bounded traces"
    aliases: ClassVar = ("bounded td", "yu's td", "td with a bounded trace")
    equation: ClassVar = "e = λ_tγρ₋e + x, λ_t = min(λ, C/(γρ₋‖e‖));  w += α ρ δ e"
    citation: ClassVar = (
        "Yu, Mahmood, Sutton (2018), On generalized Bellman equations and temporal-difference learning, JMLR"
    )
    call: ClassVar = 'method("bounded td", alpha=0.1, bound=2.0, eta=1.0)'
    proven: ClassVar = "bounded traces; its least-squares form converges to the solution of its Bellman equation"

    @property
    def title(self) -> str:
        """The name, with its bound."""
        return f"TD with ‖e‖ ≤ {self.bound:g}"

    @staticmethod
    def rate(t: Transition, norm: float, m: Store) -> float:
        """min(λ, C / (γ ρ ‖e‖))."""
        size, C, lam = t.gamma * t.rho * norm, m.numbers[1], m.numbers[2]
        return lam if lam * size <= C else C / size
