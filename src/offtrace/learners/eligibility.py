"""The eligibility vector z_t = Σ_k (γ_k ··· γ_{t-1}) β_{k:t} ∇q_k of one learner, in one of three forms:

    vector    per-decision rules      z ← γ_{t-1} decay_t ratio_t z + ∇q_t                O(weights in use) a step
    starts    all other rules         every live start with its own β                      O(live starts)
    groups    recursive caps          a stack of groups of starts that share β             O(weights in use), amortised

While an episode is short, single starts are cheaper than the stack: a recursive cap begins with `starts`, and gathers them into
`groups` when there are more than SHORT. What a rule does not need is None, and is not compiled.

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
    give_up_slots,
    is_crowded,
    move_slot,
    number,
    record,
    set_number,
    slots,
    take_slot,
)
from offtrace.learners.compiling import contracted, inside, part

TINY = 1e-40
"""What is smaller than this in a vector becomes 0: it would only sink on, to where arithmetic is slow."""
FORGET = 1e-30
"""A start whose weight is smaller than this is dropped."""

SPAN = record(
    first=np.int64,  # the live starts are first … last − 1
    last=np.int64,
    step=np.int64,  # steps of this episode
    gathered=np.int64,  # whether the starts have been gathered into groups
)


class Sparse(NamedTuple):
    """A vector with one number for each weight, nearly all of them 0. A weight that is named twice has the sum."""

    weights: Integers
    numbers: Floats


class Vector(NamedTuple):
    """z itself."""

    used: Slots
    z: Floats
    """[1, size]: the number in each slot."""


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
    """[room]: the id of the start's state and action."""
    weights: Integers
    """[room, k]: the weights of its ∇q."""
    numbers: Floats
    """[room, k]: the numbers of its ∇q."""
    carry: Floats
    """[room, c]: what a custom step keeps."""


class Eligibility(NamedTuple):
    """The eligibility vector, in the form that a rule needs."""

    vector: Vector | None
    starts: Starts | None
    groups: stack.Groups | None


def eligibility(*, per_decision: bool, grouped: bool, size: int, k: int, carry: int, room: int = 64) -> Eligibility:
    """The vector 0 over `size` weights, of which k are active at a time. A custom step keeps `carry` numbers."""
    if per_decision:
        return Eligibility(Vector(slots(size, size), np.zeros((1, size))), None, None)
    if not grouped:
        return Eligibility(None, _starts(room, k, carry), None)
    return Eligibility(
        None,
        _starts(2 * stack.SHORT + 2, k, carry),
        stack.groups(size, min(size, (stack.SHORT + 3) * k), stack.SHORT + 3),
    )


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


@part
def starts_are_full(starts):
    """Whether there is no room for one more."""
    return starts.span[0].last == len(starts.w)


@inside
def has_room(starts, groups, k):
    """Whether one more step fits for certain, with k active weights."""
    if groups is not None:
        return stack.has_room(groups, k)
    if starts is not None:
        return not starts_are_full(starts)
    return True


@inside
def clear(vector, starts, groups):
    """Forget everything: an episode begins."""
    if vector is not None:
        give_up_slots(vector.used)
    if starts is not None:
        span = starts.span[0]
        span.first, span.last, span.step = 0, 0, 0
    if groups is not None:
        stack.clear(groups)


@inside
def enter(vector, starts, groups, first, weights, numbers, s, pair):
    """A start enters with β = 1: its gradient has `numbers[s]` at `weights`. A custom step begins with what `first` says."""
    k = len(weights)
    if vector is not None:
        for j in range(k):
            before = number(vector.used)
            i = take_slot(vector.used, weights[j])
            vector.z[0, i] = numbers[s, j] + (vector.z[0, i] if i < before else 0.0)
    elif starts is not None:
        enter_starts(starts, groups, first, weights, numbers, s, pair)


@part
def enter_starts(starts, groups, first, weights, numbers, s, pair):
    """The same for single starts, or groups of starts."""
    span, k = starts.span[0], len(weights)
    span.step += 1
    if groups is not None and (groups.counts[0].gathered or span.last - span.first == stack.SHORT):
        if not groups.counts[0].gathered:
            stack.gather(groups, starts.x, starts.w, starts.weights, starts.numbers, span.first, span.last)
        stack.enter(groups, weights, numbers, s)
        return
    v = span.last
    span.last = v + 1
    for j in range(k):
        starts.weights[v, j], starts.numbers[v, j] = weights[j], numbers[s, j]
    for j in range(len(first)):
        starts.carry[v, j] = first[j]
    starts.x[v], starts.w[v], starts.wβ[v] = 1.0, 1.0, 1.0
    starts.began[v], starts.pair[v] = span.step, pair


@inside
def advance(factors, custom, vector, starts, groups, plan, discount, π, μ, place):
    """Take the older starts past an action of probabilities π and μ. False if a custom step gave no coefficient.

    By a rule's three factors, or by its custom step. `place` is the number of the state and action, by which a rule may have
    its own parameters, or what a custom step is told.
    """
    if discount == 0.0:
        clear(vector, starts, groups)
        return True
    if custom is not None:
        drop_starts(starts, plan.horizon, plan.forget)
        return advance_custom(starts, custom, discount, π, μ, plan.lam, place)
    if factors is not None:
        decay, ratio, cap = factors(π, μ, π / μ, plan.parameters, place if len(plan.parameters) > 1 else 0)
        if vector is not None:
            advance_vector(vector, discount * decay * ratio)
        elif groups is not None and groups.counts[0].gathered:
            if discount * decay == 0.0 or ratio == 0.0 or cap == 0.0:
                clear(vector, starts, groups)
            else:
                stack.advance(groups, discount * decay, ratio, cap, plan.log_forget)
        elif starts is not None:
            drop_starts(starts, plan.horizon, plan.forget)
            advance_starts(starts, discount * decay, ratio, cap, plan.recursive, plan.lags)
    return True


@contracted
def advance_vector(vector, c):
    """z ← c z, c = γ decay ratio."""
    used, z = vector.used, vector.z
    if c == 0.0:
        give_up_slots(used)
        return
    for i in range(number(used)):
        x = c * z[0, i]
        z[0, i] = x if abs(x) > TINY else 0.0
    if is_crowded(used):
        m = 0
        for i in range(number(used)):
            if z[0, i] == 0.0:
                move_slot(used, i, -1)
            else:
                move_slot(used, i, m)
                z[0, m] = z[0, i]
                m += 1
        set_number(used, m)


@part
def drop_starts(starts, horizon, forget):
    """Drop the oldest starts where they have reached their horizon or have nothing more to say."""
    span, w, x = starts.span[0], starts.w, starts.x
    first, last, now = span.first, span.last, span.step + 1
    while first < last and (
        now - starts.began[first] >= horizon or not w[first] > forget or not w[first] * x[first] > FORGET
    ):
        first += 1
    if first == last:
        span.first, span.last = 0, 0
    elif last + 1 >= len(w) and 2 * first > last:  # move them to the beginning of the arrays
        for v in range(first, last):
            h = v - first
            for j in range(starts.weights.shape[1]):
                starts.weights[h, j], starts.numbers[h, j] = starts.weights[v, j], starts.numbers[v, j]
            for j in range(starts.carry.shape[1]):
                starts.carry[h, j] = starts.carry[v, j]
            x[h], w[h], starts.wβ[h] = x[v], w[v], starts.wβ[v]
            starts.began[h], starts.pair[h] = starts.began[v], starts.pair[v]
        span.first, span.last = 0, last - first
    else:
        span.first = first


@contracted
def advance_starts(starts, d, ratio, cap, recursive, lags):
    """x ← ratio·x, clipped if recursive; β = min(cap, x), and its bound by lag where there are some; d = γ decay."""
    span, x, w, wβ = starts.span[0], starts.x, starts.w, starts.wβ
    if d == 0.0 or ratio == 0.0 or (recursive and cap == 0.0):
        span.first, span.last = 0, 0
        return
    for v in range(np.uintp(span.first), np.uintp(span.last)):  # unsigned: nothing counts from the end
        product = min(x[v] * ratio, 1e300)
        β = min(cap, product)
        x[v] = β if recursive else product
        w[v] *= d
        wβ[v] = w[v] * β
    if len(lags):
        for v in range(span.first, span.last):
            bound = lags[min(span.step + 1 - starts.began[v], len(lags)) - 1]
            wβ[v] = w[v] * min(bound, min(cap, x[v]))


@part
def advance_custom(starts, custom, discount, π, μ, lam, pair):
    """One call of a custom step for each live start; False if a β is negative or not finite."""
    span = starts.span[0]
    for v in range(span.first, span.last):
        lag = float(span.step + 1 - starts.began[v])
        β = custom(starts.carry, v, π, μ, lam, lag, starts.pair[v], pair)
        if not (β >= 0.0 and β < np.inf):
            return False
        starts.w[v] *= discount
        starts.wβ[v] = starts.w[v] * β
    return True


@contracted
def add_to(to, scale, sizes, sized, vector, starts, groups):
    """to += scale · z, or scale · sizes · z, elementwise, if it is `sized`."""
    if vector is not None:
        add_slots(to, scale, sizes, sized, vector.used, vector.z, 0)
    elif groups is not None and groups.counts[0].gathered:
        if groups.counts[0].top > groups.counts[0].bottom:
            add_slots(to, scale, sizes, sized, groups.used, groups.C, groups.counts[0].top - 1)
    elif starts is not None:
        weights, numbers, wβ, k = starts.weights, starts.numbers, starts.wβ, starts.weights.shape[1]
        for v in range(np.uintp(starts.span[0].first), np.uintp(starts.span[0].last)):
            c = scale * wβ[v]
            for j in range(k):
                i = np.uintp(weights[v, j])
                to[i] += c * numbers[v, j] * (sizes[i] if sized else 1.0)


@contracted
def add_slots(to, scale, sizes, sized, used, rows, row):
    """The same for the numbers of a row, one for each slot."""
    for i in range(np.uintp(number(used))):
        w = np.uintp(used.weights[i])
        to[w] += (scale * sizes[w] if sized else scale) * rows[row, i]


@inside
def copy(vector, starts, groups):
    """z as pairs of a weight and a number; a weight may come several times."""
    if vector is not None:
        return copy_slots(vector.used, vector.z, 0)
    if groups is not None and groups.counts[0].gathered:
        top, bottom = groups.counts[0].top, groups.counts[0].bottom
        return copy_slots(groups.used, groups.C, top - 1 if top > bottom else -1)
    if starts is not None:
        return copy_starts(starts)
    return Sparse(np.empty(0, np.int64), np.empty(0))


@inside
def copy_starts(starts):
    """The same of the live starts."""
    first, last, k = starts.span[0].first, starts.span[0].last, starts.weights.shape[1]
    weights, numbers = np.empty((last - first) * k, np.int64), np.empty((last - first) * k)
    for v in range(first, last):
        for j in range(k):
            i = (v - first) * k + j
            weights[i], numbers[i] = starts.weights[v, j], starts.wβ[v] * starts.numbers[v, j]
    return Sparse(weights, numbers)


@inside
def copy_slots(used, rows, row):
    """The same for the numbers of a row, one for each slot; row −1 has none."""
    n = number(used) if row >= 0 else 0
    weights, numbers = np.empty(n, np.int64), np.empty(n)
    for i in range(n):
        weights[i], numbers[i] = used.weights[i], rows[row, i]
    return Sparse(weights, numbers)
