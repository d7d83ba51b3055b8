"""How the eligibility vector z_t = Σ_k (γ_k ··· γ_{t-1}) β_{k:t} ∇q_k is kept from step to step.

At step t the older starts are scaled (`advance`), then start t enters with weight 1 (`enter`):

    per-decision    z ← γ_{t-1} decay_t ratio_t z + ∇q_t                    O(size) a step
    recursive cap   a stack of groups of starts that share x                O(size) a step, amortised, for cap ≤ 1
    all others      every live start with its own state                     O(live starts), times size for gradients

The stack: all x are multiplied by one ratio_t, and those above the cap meet at the cap and stay together for good. So
the starts form groups, the largest x on top. A group holds x, G = Σ of its discounted ∇q, and C = x·G + C of the group
below, so that z is the C of the top. The groups at or above the cap are popped and become one: G = Σ G, C = cap·G + C
of the group below. Nothing is subtracted, so a huge ρ that is clipped costs no digits. Memory: 16 bytes × groups × size;
a clip merges groups, so there are few, except where λ < 1 and π ≈ μ, where up to 745 / ln(1/λ) of them are alive.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from offtrace.traces import Factors, History, Step, Trace
from offtrace.traces.base import StepForm


class Now(NamedTuple):
    """One step as the rule sees it. NaN and −1 stand for what it does not read."""

    where: int | np.ndarray
    pair: int
    pi: float
    mu: float
    rho: float
    number: int
    """The number of the step, from 0 when the stream was created."""


def factors_of(trace: Trace, now: Now) -> Factors:
    """decay, ratio and cap of this step, as floats; arrays of the rule are read at the number of the step."""
    parameters = (p[now.number] if np.ndim(p) else p for p in trace.parameters)
    return Factors(*map(float, trace.traced.call(np, now.pi, now.mu, now.rho, *parameters)))


def keeper(trace: Trace, size: int, *, on_states: bool = False) -> _PerDecision | _Groups | _Starts:
    """What keeps z: `advance` scales the older starts by γ_{t-1} and by the rule, `enter` adds start t, `clear` forgets all.

    On state values a start has no own action, and is scaled by the actions before t, which `Now` then holds.
    """
    step, beta = trace.step_form, trace.history_form
    if beta is not None:
        return _OfHistories(trace, beta, size, on_states)
    if step is not None:
        return _OfSteps(trace, step, size)
    if trace.horizon is None and trace.lag_bound is None and (trace.per_decision or trace.recursive):
        return _PerDecision(trace, size) if trace.per_decision else _Groups(trace, size)
    return _OfProducts(trace, size)


class _Lost:
    """How much of a weight may be missing because it was too small for a float before it rose again.

    A weight below 2^-1000 may be lost. While what is lost stays below 2^-600 no update shows it, since the newest start has
    weight 1. Beyond that the trace would be silently wrong.
    """

    SMALLEST, HARMLESS = 2.0**-1000, 2.0**-600

    def __init__(self) -> None:
        self.least = 1.0
        """The smallest weight that is alive, or 0."""
        self.most = 0.0
        """The largest weight that a lost start could have by now."""

    def scale(self, factor: float) -> None:
        self.most *= factor
        self.least = min(1.0, self.least * factor)
        if self.least < self.SMALLEST:
            self.most = max(self.most, self.SMALLEST)
        if self.most > self.HARMLESS:
            raise OverflowError("a product of ratios fell below the smallest float and rose again; call reset()")


class _PerDecision:
    """z ← γ_{t-1} decay_t ratio_t z + ∇q_t."""

    def __init__(self, trace: Trace, size: int) -> None:
        self.trace, self.z, self.lost = trace, np.zeros(size), _Lost()

    def clear(self) -> None:
        self.z[:] = 0.0
        self.lost = _Lost()

    def advance(self, discount: float, now: Now) -> None:
        decay, ratio, _ = factors_of(self.trace, now)
        if discount * decay * ratio == 0.0:
            self.clear()  # nothing is passed on, not even an overflow
            return
        self.lost.scale(discount * decay * ratio)
        self.z *= discount * decay * ratio

    def enter(self, now: Now) -> None:
        _add(self.z, now.where)


def _add(z: np.ndarray, where: int | np.ndarray) -> None:
    """z += ∇q."""
    if isinstance(where, int):
        z[where] += 1.0
    else:
        z += where


@dataclass(slots=True)
class _Group:
    """Starts that share x."""

    x: float
    gradient: np.ndarray
    """G = Σ_k (discounts and decays since k) ∇q_k."""
    total: np.ndarray
    """C = x·G + C of the group below."""
    ratio: float = 1.0
    """What x of all groups below is still to be multiplied by: they take it in when they come to the top."""
    discount: float = 1.0
    """The same for their G."""

    def scale(self, ratio: float, discount: float) -> None:
        self.x *= ratio
        self.gradient *= discount
        self.total *= ratio * discount
        self.ratio *= ratio
        self.discount *= discount


class _Groups:
    """The stack. A step pushes two groups at most, so on average it pops no more than two.

    With a cap above 1 a new start lies below the groups with x > 1: these are lifted and put back, at O(size) each.
    """

    CROWD = 256  # from so many groups on, look now and then for those at the bottom that have underflowed

    def __init__(self, trace: Trace, size: int) -> None:
        self.trace, self.size, self.crowd = trace, size, self.CROWD
        self.groups: list[_Group] = []
        self.lost = _Lost()

    @property
    def z(self) -> np.ndarray:
        return self.groups[-1].total if self.groups else np.zeros(self.size)

    def clear(self) -> None:
        self.groups.clear()
        self.lost = _Lost()

    def advance(self, discount: float, now: Now) -> None:
        decay, ratio, cap = factors_of(self.trace, now)
        discount *= decay
        if discount == 0.0 or ratio == 0.0 or cap == 0.0:
            self.clear()
            return
        self.lost.scale(ratio)
        clipped = None
        while self.groups and self.groups[-1].x * ratio >= cap:
            top = self.groups.pop()
            clipped = discount * top.gradient + (0.0 if clipped is None else clipped)
            ratio, discount = ratio * top.ratio, discount * top.discount
        if self.groups:
            self.groups[-1].scale(ratio, discount)
            if self.groups[-1].x == 0.0:  # underflow: the groups below are smaller still
                self.groups.clear()
        if clipped is not None:
            self._push(cap, clipped)

    def enter(self, now: Now) -> None:
        gradient = np.zeros(self.size)
        _add(gradient, now.where)
        lifted: list[_Group] = []
        while self.groups and self.groups[-1].x > 1.0:
            top = self.groups.pop()
            lifted.append(top)
            if self.groups:
                self.groups[-1].scale(top.ratio, top.discount)
        self._push(1.0, gradient)
        for group in reversed(lifted):
            self._push(group.x, group.gradient)
        if len(self.groups) > self.crowd:
            self._drop_underflowed()

    def _push(self, x: float, gradient: np.ndarray) -> None:
        below = self.groups[-1].total if self.groups else 0.0
        self.groups.append(_Group(x, gradient, x * gradient + below))

    def _drop_underflowed(self) -> None:
        """Else an endless episode would only add groups, as with the x = λ^n of Non-Markov Retrace at ρ = 1."""
        ratio = discount = 1.0
        for i in reversed(range(len(self.groups))):
            group = self.groups[i]
            if group.x * ratio == 0.0 or discount == 0.0:
                del self.groups[: i + 1]
                break
            ratio, discount = ratio * group.ratio, discount * group.discount
        self.crowd = max(self.CROWD, 2 * len(self.groups))


NOBODY = np.empty(0)


class _Starts(ABC):
    """Every live start as a record: ∇q, pair, lag, weight γ_k ··· γ_{t-1}, β, and what the rule keeps of it.

    It costs as much as there are live starts, times the size of z for gradients.
    """

    def __init__(self, trace: Trace, size: int, first: tuple[float, ...] = ()) -> None:
        self.trace, self.size, self.first = trace, size, first
        self.reach = trace.horizon or math.inf
        self.live: np.ndarray = NOBODY

    def clear(self) -> None:
        self.live = NOBODY

    def advance(self, discount: float, now: Now) -> None:
        if not len(self.live):  # as after an error
            return
        self.live["lag"] += 1
        self.live["weight"] *= discount
        self.live = self.live[(self.live["lag"] < self.reach) & (self.live["weight"] > 0.0)]
        β = np.broadcast_to(self.betas(now), len(self.live)) if len(self.live) else np.empty(0)
        bad = ~((β >= 0.0) & (β < np.inf))
        if bad.any():
            self.clear()
            title = self.trace.title
            if (β == np.inf).any():
                raise OverflowError(f"a product of ratios overflowed: {title!r} gave an infinite β; call reset()")
            raise ValueError(
                f"the trace {title!r} gave a β that is negative or not finite: {β[bad][0]}; does it list all that it uses in "
                "`reads`?"
            )
        self.live["beta"] = β[: len(self.live)]

    @abstractmethod
    def betas(self, now: Now) -> ArrayLike:
        """β_{k:t} of all live starts; `first` is what `kept` holds for a new one."""

    def enter(self, now: Now) -> None:
        where = ("where", "i8") if isinstance(now.where, int) else ("where", "f8", (self.size,))
        numbers = [(name, "f8") for name in ("lag", "weight", "beta")]
        record = [where, ("pair", "i8"), *numbers, ("kept", "f8", (len(self.first),))]
        new = np.array([(now.where, now.pair, 0.0, 1.0, 1.0, self.first)], record)
        self.live = np.concatenate([self.live, new]) if len(self.live) else new

    @property
    def z(self) -> np.ndarray:
        if not len(self.live):
            return np.zeros(self.size)
        where, weights = self.live["where"], self.live["weight"] * self.live["beta"]
        return np.bincount(where, weights, minlength=self.size) if where.ndim == 1 else weights @ where


class _OfProducts(_Starts):
    """A normal form with a horizon, with bounds by lag, or with the cap at read-out.

    x is kept as m·2^e: a product may leave the range of floats and come back before it is read off at the cap.
    """

    def __init__(self, trace: Trace, size: int) -> None:
        super().__init__(trace, size, first=(0.5, 1.0))
        self.bounds = np.array(trace.lag_bound or [np.inf])
        if self.bounds[-1] == 0.0:  # β is 0 for good after the last bound above 0
            self.reach = min(self.reach, 1 + np.max(np.nonzero(self.bounds)[0] + 1, initial=0))

    def betas(self, now: Now) -> ArrayLike:
        """The product of ratios, read off at the cap and at the bound of its lag."""
        decay, ratio, cap = factors_of(self.trace, now)
        if decay == 0.0 or ratio == 0.0 or (self.trace.recursive and cap == 0.0):
            self.live = self.live[:0]
            return 0.0
        m, shift = np.frexp(self.live["kept"][:, 0] * ratio)
        e = self.live["kept"][:, 1] + shift
        x = np.ldexp(m, np.clip(e, -2000, 2000).astype(int))
        if self.trace.recursive:
            m, e = (np.where(x > cap, of_cap, of_x) for of_cap, of_x in zip(np.frexp(cap), (m, e), strict=True))
        self.live["kept"] = np.stack([m, e], axis=1)
        self.live["weight"] *= decay
        lag = self.live["lag"].astype(int)
        return np.minimum(np.minimum(x, cap), self.bounds[np.minimum(lag, len(self.bounds)) - 1])


class _OfSteps(_Starts):
    """A custom step: one call of it for all live starts, with arrays for what differs among them."""

    def __init__(self, trace: Trace, step: StepForm, size: int) -> None:
        super().__init__(trace, size, first=step.carries)
        self.step = step

    def betas(self, now: Now) -> ArrayLike:
        """What the step makes of each start's carry."""
        kept, many = self.live["kept"], isinstance(self.step.carry, tuple)
        seen = Step(now.pi, now.mu, now.rho, self.step.lam, self.live["lag"], self.live["pair"], now.pair)
        carry, β = self.step.traced.call(np, tuple(kept.T) if many else kept[:, 0], seen)
        self.live["kept"] = np.stack([np.broadcast_to(c, len(kept)) for c in (carry if many else (carry,))], axis=1)
        return β


class _OfHistories(_Starts):
    """A custom β of the whole history, called once for each live start."""

    def __init__(self, trace: Trace, beta: Callable[[History], float], size: int, on_states: bool) -> None:
        super().__init__(trace, size)
        self.beta, self.on_states = beta, on_states
        self.past: list[Now] = []

    def clear(self) -> None:
        """Forget all starts, and the history."""
        super().clear()
        self.past = []

    def betas(self, now: Now) -> ArrayLike:
        """β of the history since each start."""
        lags = self.live["lag"].astype(int)
        self.past = self.past[-max(lags) :]
        seen = {name: np.array([getattr(step, name) for step in (*self.past, now)]) for name in self.trace.reads}
        return [float(self.beta(self._history(seen, lag))) for lag in lags]

    def _history(self, seen: dict[str, np.ndarray], lag: int) -> History:
        parts = {n: seen[n][-lag - 1 :] if n in seen else None for n in History._fields}
        if self.on_states:
            parts |= {n: np.concatenate([[np.nan], a[1:]]) for n, a in parts.items() if a is not None and n != "pair"}
        return History(**parts)

    def enter(self, now: Now) -> None:
        """Add start t, and remember its step."""
        super().enter(now)
        self.past.append(now)
