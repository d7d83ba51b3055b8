"""The eligibility vector z_t = Σ_k (γ_k ··· γ_{t-1}) β_{k:t} ∇q_k of one learner, in one of three forms:

    Vector    per-decision rules      z ← γ_{t-1} decay_t ratio_t z + ∇q_t                O(weights in use) a step
    Starts    all other rules         every live start with its own β                      O(live starts)
    Groups    recursive caps          a stack of groups of starts that share β             O(weights in use), amortised

All have the same functions, and a compiled loop has those of the form that it is given. While an episode is short, single starts
are cheaper than the stack: `Groups` begin with `Starts`, and gather them when there are more than SHORT.

Nothing that could still matter is dropped: a start goes when γ^n β has sunk below 10⁻³⁰ (or when its discounts and decays
alone are below 10⁻¹⁸ and a cap keeps β from making up for it). Under μ the product of ratios is a martingale, so by Ville's
inequality the chance that such a start ever comes back to 10⁻¹⁸ of an update is at most 10⁻¹².
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from offtrace.learners import groups as stack
from offtrace.learners.arrays import (
    Floats,
    Integers,
    Records,
    Slots,
    by_form,
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


class CustomStarts(Starts):
    """The same for a custom step."""


class Groups(NamedTuple):
    """Single starts while an episode is short, and the stack that they are gathered into."""

    starts: Starts
    stack: stack.Stack


Eligibility: TypeAlias = Vector | Starts | CustomStarts | Groups


def eligibility(numbers: dict[str, float], size: int, k: int, carry: int) -> Eligibility:
    """The vector 0 over `size` weights, of which k are active at a time; `numbers` are those of `rule_settings`."""
    if numbers["per_decision"]:
        return Vector(slots(size, size), np.zeros(size))
    if numbers["custom"] or numbers["history"]:
        return CustomStarts(*_starts(64, k, carry))
    if not numbers["grouped"]:
        return _starts(64, k, carry)
    room = stack.SHORT + 3
    return Groups(_starts(2 * stack.SHORT + 2, k, carry), stack.empty(size, min(size, room * k), room))


def _starts(room: int, k: int, carry: int) -> Starts:
    x, w, wβ = np.zeros((3, room))
    began, pair = np.zeros((2, room), np.int64)
    weights, numbers = np.zeros((room, k), np.int64), np.zeros((room, k))
    return Starts(np.zeros(1, SPAN), x, w, wβ, began, pair, weights, numbers, np.zeros((room, carry)))


def grown(e: Eligibility, k: int) -> Eligibility:
    """The same with twice the room where it might not suffice for one more step, with k active weights."""
    if has_room(e, k):
        return e
    if isinstance(e, Groups):
        return e._replace(stack=stack.grown(e.stack))
    assert isinstance(e, Starts)
    new = _starts(2 * len(e.w), e.weights.shape[1], e.carry.shape[1])
    for a, b in zip(e, new, strict=True):
        b[: len(a)] = a
    return type(e)(*new)


@inline
def _enough(e, k):
    return True


@inline
def _starts_fit(starts, k):
    return starts.span[0].last < len(starts.w)


@inline
def _groups_fit(groups, k):
    return stack.has_room(groups.stack, k)


has_room = by_form(_enough, _starts_fit, _starts_fit, _groups_fit)
"""has_room(e, k): whether one more step fits for certain, with k active weights."""


@inline
def _clear_vector(vector):
    clear_slots(vector.used)


@inline
def _clear_starts(starts):
    span = starts.span[0]
    span.first, span.last, span.step = 0, 0, 0


@no_inline
def _clear_groups(groups):
    _clear_starts(groups.starts)
    stack.clear(groups.stack)


clear = by_form(_clear_vector, _clear_starts, _clear_starts, _clear_groups)
"""clear(e): an episode begins."""


@inline
def _factors(rule, task, π, μ, place):
    """The rule's decay, ratio and cap."""
    return rule(π, μ, π / μ, task.parameters, place if len(task.parameters) > 1 else 0)


@inline_fma
def _advance_vector(vector, rule, task, discount, π, μ, place):
    """z ← γ decay ratio z."""
    used, z = vector
    if discount == 0.0:
        clear_slots(used)
        return True
    decay, ratio, _ = _factors(rule, task, π, μ, place)
    c = discount * decay * ratio
    if c == 0.0:
        clear_slots(used)
        return True
    for i in range(used.counts[0]):
        x = c * z[i]
        z[i] = x if abs(x) > TINY else 0.0
    if is_crowded(used):
        m = 0
        for i in range(used.counts[0]):
            if z[i] == 0.0:
                move_slot(used, i, -1)
            else:
                move_slot(used, i, m)
                z[m] = z[i]
                m += 1
        set_number(used, m)
    return True


@inline
def _advance_starts(starts, rule, task, discount, π, μ, place):
    settings = task.settings[0]
    if discount == 0.0:
        _clear_starts(starts)
        return True
    drop_starts(starts, settings.horizon, settings.forget)
    decay, ratio, cap = _factors(rule, task, π, μ, place)
    multiply_starts(starts, discount * decay, ratio, cap, settings.recursive, task.lags)
    return True


@no_inline
def _advance_custom(starts, rule, task, discount, π, μ, place):
    """One call of a custom step for each live start."""
    settings, span, w, wβ = task.settings[0], starts.span[0], starts.w, starts.wβ
    if discount == 0.0:
        _clear_starts(starts)
        return True
    drop_starts(starts, settings.horizon, settings.forget)
    for v in range(span.first, span.last):
        lag = float(span.step + 1 - starts.began[v])
        β = rule(starts.carry, v, π, μ, settings.lam, lag, starts.pair[v], place)
        if not (β >= 0.0 and β < np.inf):
            return False
        w[v] *= discount
        wβ[v] = w[v] * β
    return True


@inline
def _advance_groups(groups, rule, task, discount, π, μ, place):
    """Starts one by one, or the stack."""
    settings = task.settings[0]
    if discount == 0.0:
        _clear_groups(groups)
        return True
    if not stack.in_use(groups.stack):
        return _advance_starts(groups.starts, rule, task, discount, π, μ, place)
    decay, ratio, cap = _factors(rule, task, π, μ, place)
    if discount * decay == 0.0 or ratio == 0.0 or cap == 0.0:
        _clear_groups(groups)
    else:
        stack.advance(groups.stack, discount * decay, ratio, cap, settings.log_forget_w, settings.log_forget_x)
    return True


advance = by_form(_advance_vector, _advance_starts, _advance_custom, _advance_groups)
"""advance(e, rule, task, discount, π, μ, place): take the older starts past an action of probabilities π and μ.

`rule` is its three factors, or a custom step. `place` is the number of the state and action, by which a rule may have its own
parameters, or which a custom step is given. False if a custom step gave no coefficient.
"""


@inline
def _coefficient(vector, rule, task, π, μ, place):
    decay, ratio, _ = _factors(rule, task, π, μ, place)
    return μ * decay * ratio


@inline
def _no_coefficient(e, rule, task, π, μ, place):
    return 0.0


coefficient = by_form(_coefficient, _no_coefficient, _no_coefficient, _no_coefficient)
"""coefficient(e, rule, task, π, μ, place): μ decay ratio of a per-decision rule."""


@inline
def _enter_vector(vector, carry, weights, numbers, s, pair):
    """z ← z + ∇q."""
    used, z = vector
    for j in range(len(weights)):
        before = used.counts[0]
        i = take_slot(used, weights[j])
        z[i] = numbers[s, j] + (z[i] if i < before else 0.0)


@inline
def _enter_starts(starts, carry, weights, numbers, s, pair):
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
def _enter_groups(groups, carry, weights, numbers, s, pair):
    starts, live = groups.starts, groups.starts.span[0]
    if not stack.in_use(groups.stack) and live.last - live.first == stack.SHORT:
        stack.gather(groups.stack, starts.x, starts.w, starts.weights, starts.numbers, live.first, live.last)
    if stack.in_use(groups.stack):
        stack.enter(groups.stack, weights, numbers, s)
    else:
        _enter_starts(starts, carry, weights, numbers, s, pair)


enter = by_form(_enter_vector, _enter_starts, _enter_starts, _enter_groups)
"""enter(e, carry, weights, numbers, s, pair): a start with β = 1, whose gradient has `numbers[s]` at `weights`."""


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


@inline_fma
def _add_slots(to, scale, N, by_visits, weights, n, row):
    """to += scale · row, which has one number for each of n slots."""
    for i in range(np.uintp(n)):
        w = np.uintp(weights[i])
        to[w] += (scale * (1.0 / N[w]) if by_visits else scale) * row[i]


@inline
def _add_vector(vector, to, scale, N, by_visits):
    _add_slots(to, scale, N, by_visits, vector.used.weights, vector.used.counts[0], vector.z)


@inline_fma
def _add_starts(starts, to, scale, N, by_visits):
    spans, _, _, wβ, _, _, weights, numbers, _ = starts
    for v in range(np.uintp(spans[0].first), np.uintp(spans[0].last)):
        c = scale * wβ[v]
        for j in range(weights.shape[1]):
            i = np.uintp(weights[v, j])
            to[i] += c * numbers[v, j] * (1.0 / N[i] if by_visits else 1.0)


@inline
def _add_groups(groups, to, scale, N, by_visits):
    if not stack.in_use(groups.stack):
        _add_starts(groups.starts, to, scale, N, by_visits)
        return
    used, top = groups.stack.used, stack.top(groups.stack)
    if top >= 0:
        _add_slots(to, scale, N, by_visits, used.weights, used.counts[0], groups.stack.C[top])


add_z = by_form(_add_vector, _add_starts, _add_starts, _add_groups, fma=True)
"""add_z(e, to, scale, N, by_visits): to += scale · z, each weight's number divided by its visits N if `by_visits`."""


@inline
def _copy_slots(weights, n, row):
    return Sparse(weights[:n].copy(), row[:n].copy())


@inline
def _copy_vector(vector):
    return _copy_slots(vector.used.weights, vector.used.counts[0], vector.z)


@no_inline
def _copy_starts(starts):
    spans, _, _, wβ, _, _, weights, numbers, _ = starts
    first, last, k = spans[0].first, spans[0].last, weights.shape[1]
    copied, products = np.empty((last - first) * k, np.int64), np.empty((last - first) * k)
    for v in range(first, last):
        for j in range(k):
            i = (v - first) * k + j
            copied[i], products[i] = weights[v, j], wβ[v] * numbers[v, j]
    return Sparse(copied, products)


@no_inline
def _copy_groups(groups):
    if not stack.in_use(groups.stack):
        return _copy_starts(groups.starts)
    used, C, top = groups.stack.used, groups.stack.C, stack.top(groups.stack)
    return _copy_slots(used.weights, used.counts[0] if top >= 0 else 0, C[max(top, 0)])


copy = by_form(_copy_vector, _copy_starts, _copy_starts, _copy_groups)
"""copy(e): z as `Sparse`; a weight may come several times."""
