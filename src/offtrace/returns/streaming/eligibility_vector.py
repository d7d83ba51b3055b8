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

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from offtrace.returns.streaming.single_starts import Now, OfHistories, OfProducts, OfSteps, factors_of
from offtrace.traces import Trace


class Keeper(Protocol):
    """What keeps z."""

    @property
    def z(self) -> np.ndarray:
        """z_t of the last step."""
        ...

    def clear(self) -> None:
        """Forget all starts."""
        ...

    def advance(self, discount: float, now: Now) -> None:
        """Scale the older starts by γ_{t-1} and by the rule."""
        ...

    def enter(self, now: Now) -> None:
        """Add start t."""
        ...


def keeper(trace: Trace, size: int, *, on_states: bool = False) -> Keeper:
    """What keeps z: `advance` scales the older starts by γ_{t-1} and by the rule, `enter` adds start t.

    On state values a start has no action of its own, and is scaled by the actions before t, which `Now` then holds.
    """
    step, beta = trace.step_form, trace.history_form
    if beta is not None:
        return OfHistories(trace, beta, size, on_states)
    if step is not None:
        return OfSteps(trace, step, size)
    if trace.horizon is None and trace.lag_bound is None and (trace.per_decision or trace.recursive):
        return _PerDecision(trace, size) if trace.per_decision else _Groups(trace, size)
    return OfProducts(trace, size)


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
