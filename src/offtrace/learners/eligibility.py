"""The eligibility vector z_t = Σ_k (γ_k ··· γ_{t-1}) β_{k:t} ∇q_k of one learner, in one of three forms:

    Vector    per-decision rules      z ← γ_{t-1} decay_t ratio_t z + ∇q_t                O(weights in use) a step
    Starts    all other rules         every live start with its own β                      O(live starts)
    Stack     recursive caps          groups of starts that share β                        O(weights in use), amortised

What a rule does not need is None, and Numba compiles nothing of what stands under `if … is not None` then. While an episode is
short, single starts are cheaper than the stack: recursive caps begin with `Starts`, and gather them into the stack when there
are more than SHORT.

Nothing that could still matter is dropped: a start goes when γ^n β has sunk below 10⁻³⁰ (or when its discounts and decays
alone are below 10⁻¹⁸ and a cap keeps β from making up for it). Under μ the product of ratios is a martingale, so by Ville's
inequality the chance that such a start ever comes back to 10⁻¹⁸ of an update is at most 10⁻¹².
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offtrace.learners import groups
from offtrace.learners.arrays import (
    Floats,
    Integers,
    Records,
    Slots,
    clear_slots,
    inline,
    inline_fma,
    is_crowded,
    move_slot,
    no_inline,
    record,
    set_number,
    slots,
    take_slot,
)
from offtrace.learners.groups import TINY, Stack

FORGET = 1e-30
"""A start whose weight is smaller than this is dropped."""

SPAN = record(
    first=np.int64,  # the live starts are first … last − 1
    last=np.int64,
    step=np.int64,  # steps of this episode
)


class Sparse(NamedTuple):
    """A vector with one number for each weight, nearly all of them 0. A weight that is named twice has the sum."""

    weights: Integers
    numbers: Floats


class Vector(NamedTuple):
    """z itself."""

    used: Slots
    z: Floats
    """[size]: the number in each slot."""


class Starts(NamedTuple):
    """Every live start by itself."""

    span: Records
    """[1]: a record SPAN."""
    x: Floats
    """[room]: the product of ratios, clipped if the rule is recursive."""
    w: Floats
    """[room]: discounts and decays since the start."""
    wβ: Floats
    """[room]: w·β now."""
    began: Integers
    """[room]: the step of the episode at which the start was."""
    pair: Integers
    """[room]: the number of the start's state and action."""
    weights: Integers
    """[room, k]: the weights of its ∇q."""
    numbers: Floats
    """[room, k]: the numbers of its ∇q."""
    carry: Floats
    """[room, c]: the carry of a custom step."""


class Eligibility(NamedTuple):
    """The forms that a rule needs; compiled functions take all three, as `vector, starts, stack`."""

    vector: Vector | None = None
    starts: Starts | None = None
    stack: Stack | None = None


def eligibility(numbers: dict[str, float], size: int, k: int, carry: int) -> Eligibility:
    """The vector 0 over `size` weights, of which k are active at a time; `numbers` are those of `rule_settings`."""
    if numbers["per_decision"]:
        return Eligibility(vector=Vector(slots(size, size), np.zeros(size)))
    if not numbers["grouped"]:
        return Eligibility(starts=_starts(64, k, carry))
    depth = groups.SHORT + 3
    stack = groups.empty(size, min(size, depth * k), depth)
    return Eligibility(starts=_starts(2 * groups.SHORT + 2, k, carry), stack=stack)


def _starts(room: int, k: int, carry: int) -> Starts:
    x, w, wβ = np.zeros((3, room))
    began, pair = np.zeros((2, room), np.int64)
    weights, numbers = np.zeros((room, k), np.int64), np.zeros((room, k))
    return Starts(np.zeros(1, SPAN), x, w, wβ, began, pair, weights, numbers, np.zeros((room, carry)))


def grown(e: Eligibility, k: int) -> Eligibility:
    """The same with twice the room where it might not suffice for one more step, with k active weights."""
    if has_room(*e, k):
        return e
    if e.stack is not None:
        return e._replace(stack=groups.grown(e.stack))
    assert e.starts is not None
    new = _starts(2 * len(e.starts.w), e.starts.weights.shape[1], e.starts.carry.shape[1])
    for a, b in zip(e.starts, new, strict=True):
        b[: len(a)] = a
    return Eligibility(starts=new)


@inline
def has_room(vector, starts, stack, k):
    """Whether one more step fits for certain, with k active weights."""
    if stack is not None:
        return groups.has_room(stack, k)
    if starts is not None:
        return starts.span[0].last < len(starts.w)
    return True


@inline
def clear(vector, starts, stack):
    """An episode begins."""
    if vector is not None:
        clear_slots(vector.used)
    if starts is not None:
        span = starts.span[0]
        span.first, span.last, span.step = 0, 0, 0
    if stack is not None:
        groups.clear(stack)


@inline
def factors_of(rule, task, π, μ, place):
    """The rule's decay, ratio and cap. `place`, the number of the state and action, selects its parameters."""
    return rule(π, μ, π / μ, task.parameters, place if len(task.parameters) > 1 else 0)


@inline
def advance(vector, starts, stack, rule, custom, task, discount, π, μ, place):
    """Take the older starts past an action of probabilities π and μ.

    There is a `rule`, its three factors, or a `custom` step, and the other is None. False if a custom step gave no coefficient.
    """
    if discount == 0.0:
        clear(vector, starts, stack)
        return True
    if custom is not None:
        return advance_custom(starts, custom, task, discount, π, μ, place)
    if rule is not None:
        settings = task.settings[0]
        decay, ratio, cap = factors_of(rule, task, π, μ, place)
        d = discount * decay
        if vector is not None:
            multiply_vector(vector, d * ratio)
        if stack is not None:
            if groups.in_use(stack):
                if d == 0.0 or ratio == 0.0 or cap == 0.0:
                    clear(vector, starts, stack)
                else:
                    groups.advance(stack, d, ratio, cap, settings.log_forget_w, settings.log_forget_x)
                return True
        if starts is not None:
            drop_starts(starts, settings.horizon, settings.forget)
            multiply_starts(starts, d, ratio, cap, settings.recursive, task.lags)
    return True


@inline_fma
def multiply_vector(vector, c):
    """z ← c z, c = γ decay ratio."""
    used, z = vector
    if c == 0.0:
        clear_slots(used)
        return
    for i in range(used.counts[0]):
        x = c * z[i]
        z[i] = x if abs(x) > TINY else 0.0
    if is_crowded(used):
        m = 0
        for i in range(used.counts[0]):
            keep = z[i] != 0.0
            z[m] = z[i]
            move_slot(used, i, m, keep)
            m += keep
        set_number(used, m)


@no_inline
def advance_custom(starts, custom, task, discount, π, μ, place):
    """One call of a custom step for each live start."""
    settings, span, w, wβ = task.settings[0], starts.span[0], starts.w, starts.wβ
    drop_starts(starts, settings.horizon, settings.forget)
    for v in range(span.first, span.last):
        lag = float(span.step + 1 - starts.began[v])
        β = custom(starts.carry, v, π, μ, settings.lam, lag, starts.pair[v], place)
        if not (β >= 0.0 and β < np.inf):
            return False
        w[v] *= discount
        wβ[v] = w[v] * β
    return True


@inline
def drop_starts(starts, horizon, forget):
    """Drop the oldest starts that have reached their horizon or whose weight is negligible."""
    x, w, began, span = starts.x, starts.w, starts.began, starts.span[0]
    first, last, now = span.first, span.last, span.step + 1
    while first < last and (now - began[first] >= horizon or not w[first] > forget or not w[first] * x[first] > FORGET):
        first += 1
    if first == last:
        span.first, span.last = 0, 0
    elif last + 1 >= len(w) and 2 * first > last:
        move_starts(starts, first, last)
    else:
        span.first = first


@no_inline
def move_starts(starts, first, last):
    """Move the starts first … last − 1, which are fewer than half, to the beginning of the arrays."""
    spans, x, w, wβ, began, pair, weights, numbers, carry = starts
    for v in range(first, last):
        h = v - first
        x[h], w[h], wβ[h] = x[v], w[v], wβ[v]
        began[h], pair[h] = began[v], pair[v]
        for j in range(weights.shape[1]):
            weights[h, j], numbers[h, j] = weights[v, j], numbers[v, j]
        for j in range(carry.shape[1]):
            carry[h, j] = carry[v, j]
    spans[0].first, spans[0].last = 0, last - first


@inline_fma
def multiply_starts(starts, d, ratio, cap, recursive, lags):
    """x ← ratio·x, clipped if recursive; β = min(cap, x), and its bound by lag where there are some; d = γ decay."""
    spans, x, w, wβ, began, _, _, _, _ = starts
    span = spans[0]
    if d == 0.0 or ratio == 0.0 or (recursive and cap == 0.0):
        span.first, span.last = 0, 0
        return
    for v in range(np.uintp(span.first), np.uintp(span.last)):  # unsigned: no index counts from the end
        product = min(x[v] * ratio, 1e300)
        β = min(cap, product)
        x[v] = β if recursive else product
        w[v] *= d
        wβ[v] = w[v] * β
    if len(lags):
        for v in range(span.first, span.last):
            bound = lags[min(span.step + 1 - began[v], len(lags)) - 1]
            wβ[v] = w[v] * min(bound, min(cap, x[v]))


@inline
def enter(vector, starts, stack, carry, weights, numbers, s, pair):
    """A start with β = 1, whose gradient has `numbers[s]` at `weights`."""
    if vector is not None:
        enter_vector(vector, weights, numbers, s)
    if stack is not None:
        live = starts.span[0]
        if not groups.in_use(stack) and live.last - live.first == groups.SHORT:
            groups.gather(stack, starts.x, starts.w, starts.weights, starts.numbers, live.first, live.last)
        if groups.in_use(stack):
            groups.enter(stack, weights, numbers, s)
            return
    if starts is not None:
        enter_starts(starts, carry, weights, numbers, s, pair)


@inline
def enter_vector(vector, weights, numbers, s):
    """z ← z + ∇q."""
    used, z = vector
    for j in range(len(weights)):
        before = used.counts[0]
        i = take_slot(used, weights[j])
        z[i] = numbers[s, j] + (z[i] if i < before else 0.0)


@inline
def enter_starts(starts, carry, weights, numbers, s, pair):
    """One more start."""
    span = starts.span[0]
    span.step += 1
    v = span.last
    span.last = v + 1
    for j in range(len(weights)):
        starts.weights[v, j], starts.numbers[v, j] = weights[j], numbers[s, j]
    for j in range(len(carry)):
        starts.carry[v, j] = carry[j]
    starts.x[v], starts.w[v], starts.wβ[v] = 1.0, 1.0, 1.0
    starts.began[v], starts.pair[v] = span.step, pair


@inline
def add_z(vector, starts, stack, to, scale, N, by_visits):
    """to += scale · z, each weight's number divided by its visits N if `by_visits`."""
    if vector is not None:
        add_slots(to, scale, N, by_visits, vector.used, vector.z)
    if stack is not None:
        if groups.in_use(stack):
            top = groups.top(stack)
            if top >= 0:
                add_slots(to, scale, N, by_visits, stack.used, stack.C[top])
            return
    if starts is not None:
        add_starts(starts, to, scale, N, by_visits)


@inline_fma
def add_slots(to, scale, N, by_visits, used, row):
    """to += scale · row, which has one number for each slot."""
    weights, _, counts = used
    for i in range(np.uintp(counts[0])):
        w = np.uintp(weights[i])
        to[w] += (scale * (1.0 / N[w]) if by_visits else scale) * row[i]


@inline_fma
def add_starts(starts, to, scale, N, by_visits):
    """to += scale · Σ w β ∇q over the live starts."""
    spans, _, _, wβ, _, _, weights, numbers, _ = starts
    for v in range(np.uintp(spans[0].first), np.uintp(spans[0].last)):
        c = scale * wβ[v]
        for j in range(weights.shape[1]):
            i = np.uintp(weights[v, j])
            to[i] += c * numbers[v, j] * (1.0 / N[i] if by_visits else 1.0)


@inline
def copy(vector, starts, stack):
    """z as `Sparse`; a weight may come several times."""
    if vector is not None:
        return copy_slots(vector.used, vector.z, vector.used.counts[0])
    if stack is not None:
        if groups.in_use(stack):
            top = groups.top(stack)
            return copy_slots(stack.used, stack.C[max(top, 0)], stack.used.counts[0] if top >= 0 else 0)
    if starts is not None:
        return copy_starts(starts)
    return Sparse(np.empty(0, np.int64), np.empty(0))


@inline
def copy_slots(used, row, n):
    """A vector that has one number for each of n slots."""
    return Sparse(used.weights[:n].copy(), row[:n].copy())


@no_inline
def copy_starts(starts):
    """Σ w β ∇q over the live starts."""
    spans, _, _, wβ, _, _, weights, numbers, _ = starts
    first, last, k = spans[0].first, spans[0].last, weights.shape[1]
    copied, products = np.empty((last - first) * k, np.int64), np.empty((last - first) * k)
    for v in range(first, last):
        for j in range(k):
            i = (v - first) * k + j
            copied[i], products[i] = weights[v, j], wβ[v] * numbers[v, j]
    return Sparse(copied, products)
