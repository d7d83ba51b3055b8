"""Rules that do not fit the normal form: a `step` that every backend compiles, or a plain function for prototypes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from types import FunctionType
from typing import ClassVar, NamedTuple, TypeAlias

from offtrace.traces import symbols
from offtrace.traces.base import INFINITY, Math, Numbers, StepForm, Trace, number
from offtrace.traces.pytrees import LEAVES, STATIC

Carry: TypeAlias = Numbers
"""What a step hands to the next: a number, or a tuple of numbers."""


class Step(NamedTuple):
    """What a step of a custom trace sees at time t > k, for a trace that started at k."""

    pi: Numbers
    """π(a_t|s_t); NaN unless the trace reads "pi"."""
    mu: Numbers
    """μ(a_t|s_t); NaN unless it reads "mu"."""
    rho: Numbers
    """π/μ at t; NaN unless it reads "rho"."""
    lam: Numbers
    """The trace's λ."""
    lag: Numbers
    """t − k, at least 1."""
    start_pair: Numbers
    """The id of (s_k, a_k); −1 unless the trace reads "pair"."""
    pair: Numbers
    """The id of (s_t, a_t); −2 unless it reads "pair", so that it equals no start's."""


@dataclass(frozen=True)
class StepTrace(Trace):
    """A trace given by `step(xp, carry, now) → (carry, β)`, called once for each t > k, oldest first; β_{k:k} = 1.

    `carry` is a number or a tuple of numbers and starts as given here; `now` is a `Step`. Use operators and
    `xp.where / minimum / maximum / abs / sqrt / exp / log` only, so that the same function runs on every backend.

    >>> import offtrace as ot
    >>> def clipped(xp, carry, now):
    ...     carry = xp.minimum(2.0, carry * now.rho)
    ...     return carry, now.lam * carry
    >>> ot.StepTrace(clipped, lam=0.9, title="clipped").title
    'clipped'
    """

    step: Callable[[Math, Carry, Step], tuple[Carry, Numbers]] = field(repr=False, metadata=STATIC)
    carry: float | tuple[float, ...] = field(default=1.0, metadata=LEAVES)
    lam: float = 1.0
    reads: tuple[str, ...] = field(default=("rho",), kw_only=True, metadata=STATIC)  # pyright: ignore[reportIncompatibleVariableOverride]
    title: str = field(default="custom", kw_only=True, metadata=STATIC)  # pyright: ignore[reportIncompatibleVariableOverride]
    bound: float | None = field(default=None, kw_only=True, metadata=STATIC)
    """A promise that β never exceeds this: exact operators need it where β depends on the lag and no horizon ends it."""

    per_decision: ClassVar = False
    form: ClassVar = "step"
    citation: ClassVar = "a custom trace: cite its author"

    @property
    def largest(self) -> float:
        """An upper bound of β: the declared `bound`, or 1 if that is larger; ∞ where none is declared."""
        return INFINITY if self.bound is None else max(1.0, self.bound)

    @property
    def promised_bound(self) -> float | None:
        """The `bound` that was given, if one was."""
        return self.bound

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("reads", _reads(self.reads))
        if self.bound is not None:
            self._set("bound", number("bound", self.bound, 0.0, sys.float_info.max))
        if not isinstance(self.step, FunctionType):
            raise TypeError(
                f"step must be a plain function, made with def or lambda, so that it compiles; got {self.step!r}"
            )
        carry: tuple[object, ...] = self.carry if isinstance(self.carry, tuple) else (self.carry,)
        if not all(isinstance(c, Real) for c in carry):
            raise TypeError(f"carry must be a number or a tuple of numbers, got {self.carry!r}")
        # Ints become floats: a compiled carry must keep its type from step to step.
        floats = tuple(float(c) for c in carry if isinstance(c, Real))
        self._set("carry", floats if isinstance(self.carry, tuple) else floats[0])
        _ = self.traced

    @property
    def step_form(self) -> StepForm:
        """The carry, λ and the traced step."""
        return StepForm(self.carry, self.lam, self.traced)

    @property
    def traced(self) -> symbols.Traced:
        """`step` as expressions, from which each backend prints its own."""
        carries = len(self.carry) if isinstance(self.carry, tuple) else 0
        return symbols.step(self.step, carries, Step, f"the step of {self.title!r}")


def _reads(given: Sequence[str]) -> tuple[str, ...]:
    unknown = set(given) - {"pi", "mu", "rho", "pair"}
    if unknown:
        raise ValueError(f'reads may hold "pi", "mu", "rho" and "pair", got {sorted(unknown)}')
    return tuple(given)


class History(NamedTuple):
    """The past of a trace that started at k, seen at t: arrays over steps k … t. Unread ones are None."""

    pi: Numbers
    """π(a_i|s_i)."""
    mu: Numbers
    """μ(a_i|s_i)."""
    rho: Numbers
    """π/μ; that of the start itself, rho[0], is not used by any rule of the literature."""
    pair: Numbers
    """The ids of (s_i, a_i)."""


@dataclass(frozen=True)
class HistoryTrace(Trace):
    """A trace given as a plain Python function of the history, `beta(history) → β`. For prototypes: slow, NumPy only.

    >>> import offtrace as ot
    >>> trace = ot.HistoryTrace(lambda history: min(1.0, history.rho[1:].max()))
    """

    beta: Callable[[History], float] = field(repr=False, metadata=STATIC)
    reads: tuple[str, ...] = field(default=("rho",), kw_only=True, metadata=STATIC)  # pyright: ignore[reportIncompatibleVariableOverride]
    title: str = field(default="custom", kw_only=True, metadata=STATIC)  # pyright: ignore[reportIncompatibleVariableOverride]
    bound: float | None = field(default=None, kw_only=True, metadata=STATIC)
    """A promise that β never exceeds this: exact operators need it where β depends on the lag and no horizon ends it."""

    per_decision: ClassVar = False
    form: ClassVar = "history"
    citation: ClassVar = "a custom trace: cite its author"

    @property
    def history_form(self) -> Callable[[History], float]:
        """The function `beta` that was given, which must return one number."""
        return self._one_number

    def _one_number(self, history: History) -> float:
        beta = self.beta(history)
        if isinstance(beta, Real) or (getattr(beta, "shape", None) == () and not isinstance(beta, str)):
            return float(beta)
        shape = getattr(beta, "shape", None)
        what = repr(beta) if shape is None else f"an array of shape {tuple(shape)}"
        raise TypeError(
            f"the beta of {self.title!r} returned {what}: it must return one number, β of the whole history, as "
            "history.rho[1:].prod() is"
        )

    @property
    def largest(self) -> float:
        """An upper bound of β: the declared `bound`, or 1 if that is larger; ∞ where none is declared."""
        return INFINITY if self.bound is None else max(1.0, self.bound)

    @property
    def promised_bound(self) -> float | None:
        """The `bound` that was given, if one was."""
        return self.bound

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("reads", _reads(self.reads))
        if self.bound is not None:
            self._set("bound", number("bound", self.bound, 0.0, sys.float_info.max))


def replacing(lam: float = 1.0, *, horizon: int | None = None) -> StepTrace:
    """Replacing traces (Singh and Sutton 1996) with ratios: β_t = ∏ λρ_i, and 0 once the start's pair is visited again.

    The later visit carries the credit from there on. Needs `pair`.

    >>> replacing(0.9).reads
    ('rho', 'pair')
    """
    return StepTrace(_replacing, lam=lam, reads=("rho", "pair"), title="replacing", horizon=horizon)


def _replacing(xp: Math, carry: Carry, now: Step) -> tuple[Carry, Numbers]:
    carry = xp.where(now.pair == now.start_pair, 0.0, now.lam * now.rho * carry)
    return carry, carry


def count_dependent(lam: float = 1.0, *, horizon: int | None = None) -> StepTrace:
    """Retrace divided by the number of visits to the start's pair since the start: β_t = (∏ λ min(1, ρ_i)) / N_{k:t}.

    After the count-dependent coefficients that the paper's conclusion names. Needs `pair`.

    >>> import numpy as np, offtrace as ot
    >>> no, zero = np.zeros(3, bool), np.zeros(3)
    >>> ot.coefficients(ot.count_dependent(), terminated=no, truncated=no, log_pi=zero, log_mu=zero,
    ...                 pair=np.array([5, 5, 7]))
    array([[1. , 0.5, 0.5],
           [0. , 1. , 1. ],
           [0. , 0. , 1. ]])
    """
    return StepTrace(
        _count_dependent, carry=(1.0, 1.0), lam=lam, reads=("rho", "pair"), title="count-dependent", horizon=horizon
    )


def _count_dependent(xp: Math, carry: Carry, now: Step) -> tuple[Carry, Numbers]:
    product, visits = carry
    product = product * now.lam * xp.minimum(now.rho, 1.0)
    visits = visits + xp.where(now.pair == now.start_pair, 1.0, 0.0)
    return (product, visits), product / visits
