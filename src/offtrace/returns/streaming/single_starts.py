"""The eligibility vector of rules of any form: every live start by itself, with its own state.

It costs as much as there are live starts, times the size of z for gradients.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from offtrace.traces import Factors, History, Step, Trace
from offtrace.traces.base import StepForm

NOBODY = np.empty(0)


class Now(NamedTuple):
    """One step as the rule sees it. NaN and −1 stand for what it does not read."""

    where: int | np.ndarray
    pair: int
    pi: float
    mu: float
    rho: float
    number: int
    """The number of the step, from 0 when the stream was made."""


def factors_of(trace: Trace, now: Now) -> Factors:
    """decay, ratio and cap of this step, as floats; arrays of the rule are read at the number of the step."""
    parameters = (p[now.number] if np.ndim(p) else p for p in trace.parameters)
    return Factors(*map(float, trace.traced.call(np, now.pi, now.mu, now.rho, *parameters)))


class _Starts(ABC):
    """Every live start as a record: ∇q, pair, lag, weight γ_k ··· γ_{t-1}, β, and what the rule keeps of it."""

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
            if (β == np.inf).any():
                raise OverflowError(
                    f"a product of ratios overflowed: {self.trace.title!r} gave an infinite β; call reset()"
                )
            raise ValueError(
                f"the trace {self.trace.title!r} gave a β that is negative or not finite: {β[bad][0]}; "
                "does it list all that it uses in `reads`?"
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


class OfProducts(_Starts):
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


class OfSteps(_Starts):
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


class OfHistories(_Starts):
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
