"""The eligibility vector z_t = Σ_k (γ_k ··· γ_{t-1}) β_{k:t} ∇q_k of one learner, in one of three forms:

    vector    per-decision rules      z ← γ_{t-1} decay_t ratio_t z + ∇q_t                O(weights in use) a step
    starts    all other rules         every live start with its own β                      O(live starts)
    groups    recursive caps          a stack of groups of starts that share β             O(weights in use), amortised

While an episode is short, single starts are cheaper than the stack: a recursive cap begins with `starts`, and gathers them into
`groups` when there are more than SHORT. Forms that a rule does not need are None, and are not compiled.

Nothing that could still matter is dropped: a start goes when γ^n β has sunk below 10⁻³⁰ (or when its discounts and decays
alone are below 10⁻¹⁸ and a cap keeps β from making up for it). Under μ the product of ratios is a martingale, so by Ville's
inequality the chance that such a start ever comes back to 10⁻¹⁸ of an update is at most 10⁻¹².
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offtrace.learners import groups as stack
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
    slots_view,
    take_slot,
    view,
)
from offtrace.learners.groups import TINY

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
    """The eligibility vector, in the form that a rule needs."""

    vector: Vector | None
    starts: Starts | None
    groups: stack.Groups | None


@inline
def vector_view(t):
    """Vector: `view` of each array."""
    if t is None:
        return t
    return Vector(slots_view(t.used), view(t.z))


@inline
def starts_view(t):
    """Starts: `view` of each array."""
    if t is None:
        return t
    a, b, c, d, e, f, g, h, i = t
    return Starts(view(a), view(b), view(c), view(d), view(e), view(f), view(g), view(h), view(i))


def eligibility(*, per_decision: bool, grouped: bool, size: int, k: int, carry: int) -> Eligibility:
    """The vector 0 over `size` weights, of which k are active at a time. A custom step carries `carry` numbers."""
    if per_decision:
        return Eligibility(Vector(slots(size, size), np.zeros(size)), None, None)
    if not grouped:
        return Eligibility(None, _starts(64, k, carry), None)
    room = stack.SHORT + 3
    return Eligibility(None, _starts(2 * stack.SHORT + 2, k, carry), stack.groups(size, min(size, room * k), room))


def _starts(room: int, k: int, carry: int) -> Starts:
    return Starts(
        span=np.zeros(1, SPAN),
        x=np.zeros(room),
        w=np.zeros(room),
        wβ=np.zeros(room),
        began=np.zeros(room, np.int64),
        pair=np.zeros(room, np.int64),
        weights=np.zeros((room, k), np.int64),
        numbers=np.zeros((room, k)),
        carry=np.zeros((room, carry)),
    )


def grown(e: Eligibility, k: int) -> Eligibility:
    """The same with twice the room where it might not suffice for one more step, with k active weights."""
    if has_room(e.starts, e.groups, k):
        return e
    if e.groups is not None:
        return e._replace(groups=stack.grown(e.groups))
    old = e.starts
    assert old is not None
    new = _starts(2 * len(old.w), old.weights.shape[1], old.carry.shape[1])
    for a, b in zip(old, new, strict=True):
        b[: len(a)] = a
    return e._replace(starts=new)


@inline
def has_room(starts, groups, k):
    """Whether one more step fits for certain, with k active weights."""
    if groups is not None:
        return stack.has_room(groups, k)
    if starts is not None:
        span, w = starts.span[0], starts.w
        return span.last < len(w)
    return True


@no_inline
def clear(vector, starts, groups):
    """Forget everything: an episode begins."""
    if vector is not None:
        clear_slots(vector.used)
    if starts is not None:
        span = starts.span[0]
        span.first, span.last, span.step = 0, 0, 0
    if groups is not None:
        stack.clear(groups)


@inline
def advance(factors, custom, vector, starts, groups, settings, parameters, lags, discount, π, μ, place):
    """Take the older starts past an action of probabilities π and μ. False if a custom step gave no coefficient.

    By a rule's three factors, or by its custom step. `place` is the number of the state and action, by which a rule may have
    its own parameters, or which a custom step is given.
    """
    if discount == 0.0:
        clear(vector, starts, groups)
        return True
    if custom is not None:
        drop_starts(starts, settings.horizon, settings.forget)
        return advance_custom(starts, custom, discount, π, μ, settings.lam, place)
    if factors is not None:
        decay, ratio, cap = factors(π, μ, π / μ, parameters, place if len(parameters) > 1 else 0)
        if vector is not None:
            advance_vector(vector, discount * decay * ratio)
        elif groups is not None and stack.in_use(groups):
            if discount * decay == 0.0 or ratio == 0.0 or cap == 0.0:
                clear(vector, starts, groups)
            else:
                stack.advance(groups, discount * decay, ratio, cap, settings.log_forget_w, settings.log_forget_x)
        elif starts is not None:
            drop_starts(starts, settings.horizon, settings.forget)
            advance_starts(starts, discount * decay, ratio, cap, settings.recursive, lags)
    return True


@inline
def enter(vector, starts, groups, carry, weights, numbers, s, pair):
    """A start enters with β = 1: its gradient has `numbers[s]` at `weights`. A custom step begins with `carry`."""
    if vector is not None:
        enter_vector(vector, weights, numbers, s)
    elif starts is not None:
        if groups is not None:
            span, x, w, _, _, _, starts_weights, starts_numbers, _ = starts
            if not stack.in_use(groups) and span[0].last - span[0].first == stack.SHORT:
                stack.gather(groups, x, w, starts_weights, starts_numbers, span[0].first, span[0].last)
            if stack.in_use(groups):
                stack.enter(groups, weights, numbers, s)
                return
        enter_starts(starts, carry, weights, numbers, s, pair)


@inline
def add_to(to, scale, N, by_visits, vector, starts, groups):
    """to += scale · z, each weight's number divided by its visits N if `by_visits`."""
    if vector is not None:
        used, z = vector
        add_slots(to, scale, N, by_visits, used.weights, used.counts[0], z)
    elif groups is not None and stack.in_use(groups):
        top = stack.top(groups)
        if top >= 0:
            used, C = groups.used, groups.C
            add_slots(to, scale, N, by_visits, used.weights, used.counts[0], C[top])
    elif starts is not None:
        add_starts(to, scale, N, by_visits, starts)


@inline
def enter_vector(vector, weights, numbers, s):
    """z ← z + ∇q."""
    used, z = vector
    counts = used.counts
    for j in range(len(weights)):
        before = counts[0]
        i = take_slot(used, weights[j])
        z[i] = numbers[s, j] + (z[i] if i < before else 0.0)


@inline_fma
def advance_vector(vector, c):
    """z ← c z, c = γ decay ratio."""
    used, z = vector
    counts = used.counts
    if c == 0.0:
        clear_slots(used)
        return
    for i in range(counts[0]):
        x = c * z[i]
        z[i] = x if abs(x) > TINY else 0.0
    if is_crowded(used):
        m = 0
        for i in range(counts[0]):
            if z[i] == 0.0:
                move_slot(used, i, -1)
            else:
                move_slot(used, i, m)
                z[m] = z[i]
                m += 1
        set_number(used, m)


@inline
def enter_starts(starts, first_carry, active, values, s, pair):
    """Add a start to the live ones."""
    spans, x, w, wβ, began, pairs, weights, numbers, carry = starts
    span = spans[0]
    span.step += 1
    v = span.last
    span.last = v + 1
    for j in range(len(active)):
        weights[v, j], numbers[v, j] = active[j], values[s, j]
    for j in range(len(first_carry)):
        carry[v, j] = first_carry[j]
    x[v], w[v], wβ[v] = 1.0, 1.0, 1.0
    began[v], pairs[v] = span.step, pair


@inline
def drop_starts(starts, horizon, forget):
    """Drop the oldest starts that have reached their horizon or whose weight is negligible."""
    spans, x, w, wβ, began, pair, weights, numbers, carry = starts
    span = spans[0]
    first, last, now = span.first, span.last, span.step + 1
    while first < last and (now - began[first] >= horizon or not w[first] > forget or not w[first] * x[first] > FORGET):
        first += 1
    if first == last:
        span.first, span.last = 0, 0
    elif last + 1 >= len(w) and 2 * first > last:  # move them to the beginning of the arrays
        for v in range(first, last):
            h = v - first
            for j in range(weights.shape[1]):
                weights[h, j], numbers[h, j] = weights[v, j], numbers[v, j]
            for j in range(carry.shape[1]):
                carry[h, j] = carry[v, j]
            x[h], w[h], wβ[h] = x[v], w[v], wβ[v]
            began[h], pair[h] = began[v], pair[v]
        span.first, span.last = 0, last - first
    else:
        span.first = first


@inline_fma
def advance_starts(starts, d, ratio, cap, recursive, lags):
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


@no_inline
def advance_custom(starts, custom, discount, π, μ, lam, place):
    """One call of a custom step for each live start; False if a β is negative or not finite."""
    spans, _, w, wβ, began, pair, _, _, carry = starts
    span = spans[0]
    for v in range(span.first, span.last):
        lag = float(span.step + 1 - began[v])
        β = custom(carry, v, π, μ, lam, lag, pair[v], place)
        if not (β >= 0.0 and β < np.inf):
            return False
        w[v] *= discount
        wβ[v] = w[v] * β
    return True


@inline_fma
def add_starts(to, scale, N, by_visits, starts):
    """to += scale · Σ wβ ∇q of the live starts."""
    spans, _, _, wβ, _, _, weights, numbers, _ = starts
    for v in range(np.uintp(spans[0].first), np.uintp(spans[0].last)):
        c = scale * wβ[v]
        for j in range(weights.shape[1]):
            i = np.uintp(weights[v, j])
            to[i] += c * numbers[v, j] * (1.0 / N[i] if by_visits else 1.0)


@inline_fma
def add_slots(to, scale, N, by_visits, weights, n, row):
    """to += scale · row, which has one number for each of n slots."""
    for i in range(np.uintp(n)):
        w = np.uintp(weights[i])
        to[w] += (scale * (1.0 / N[w]) if by_visits else scale) * row[i]


@no_inline
def copy(vector, starts, groups):
    """z as pairs of a weight and a number; a weight may come several times."""
    if vector is not None:
        used, z = vector
        return copy_slots(used.weights, used.counts[0], z)
    if groups is not None and stack.in_use(groups):
        used, C, top = groups.used, groups.C, stack.top(groups)
        return copy_slots(used.weights, used.counts[0] if top >= 0 else 0, C[max(top, 0)])
    if starts is not None:
        return copy_starts(starts)
    return Sparse(np.empty(0, np.int64), np.empty(0))


@inline
def copy_slots(weights, n, row):
    """The same for a row with one number for each of n slots."""
    return Sparse(weights[:n].copy(), row[:n].copy())


@inline
def copy_starts(starts):
    """The same of the live starts."""
    spans, _, _, wβ, _, _, weights, numbers, _ = starts
    first, last, k = spans[0].first, spans[0].last, weights.shape[1]
    copied, products = np.empty((last - first) * k, np.int64), np.empty((last - first) * k)
    for v in range(first, last):
        for j in range(k):
            i = (v - first) * k + j
            copied[i], products[i] = weights[v, j], wβ[v] * numbers[v, j]
    return Sparse(copied, products)
