"""The eligibility vector z as a whole: take it one step on, let a start enter, add it to the weights."""

from __future__ import annotations

import numpy as np

from offtrace.learners.core.compiling import contracted, inlined, merged, plain, seldom
from offtrace.learners.core.eligibility.kept import GROUPS, LINEAR, SHORT, TINY, VISITS, clear, slot, tidy
from offtrace.learners.core.eligibility.visits import advance_products, advance_steps, drop_visits


@inlined
def enter(plan, kept, weights, numbers, pair):
    """Start t enters with β = 1: its gradient has `numbers` at `weights`."""
    way, first = plan.way, plan.first
    kept.counts.step += 1
    if way == LINEAR:
        for j in range(len(weights)):
            kept.z[slot(kept, weights[j])] += numbers[j]
        return
    if way == GROUPS and (kept.counts.gathered or kept.counts.last - kept.counts.first == SHORT):
        plan.enter_groups(kept, weights, numbers)
        return
    v = kept.counts.last
    kept.counts.last = v + 1
    for j in range(len(weights)):
        kept.weights[v, j], kept.numbers[v, j] = weights[j], numbers[j]
    for j in range(len(first)):
        kept.carry[v, j] = first[j]
    kept.product[v], kept.w[v], kept.wβ[v], kept.began[v], kept.pair[v] = 1.0, 1.0, 1.0, kept.counts.step, pair


@contracted
def apply(way, kept, scale, sizes, to):
    """to += scale · sizes · z, `sizes` elementwise if there are any."""
    if way == VISITS or (way == GROUPS and not kept.counts.gathered):
        if kept.weights.shape[1] == 1 and not len(sizes):  # a table
            for v in range(
                np.uintp(kept.counts.first), np.uintp(kept.counts.last)
            ):  # unsigned: nothing counts from the end
                to[np.uintp(kept.weights[v, 0])] += scale * kept.wβ[v] * kept.numbers[v, 0]
            return
        for v in range(kept.counts.first, kept.counts.last):
            c = scale * kept.wβ[v]
            for j in range(kept.weights.shape[1]):
                i = kept.weights[v, j]
                to[i] += c * kept.numbers[v, j] * (sizes[i] if len(sizes) else 1.0)
        return
    z = kept.z if way == LINEAR else kept.C[kept.counts.top - 1]
    if len(sizes):
        for i in range(kept.counts.slots):
            to[kept.weight_of[i]] += scale * sizes[kept.weight_of[i]] * z[i]
    else:
        for i in range(np.uintp(kept.counts.slots)):
            to[np.uintp(kept.weight_of[i])] += scale * z[i]


@contracted
def advance_linear(kept, discount, decay, ratio):
    """z ← γ decay ratio z."""
    c = discount * decay * ratio
    if c == 0.0:
        clear(kept)
        return
    for i in range(np.uintp(kept.counts.slots)):
        z = c * kept.z[i]
        kept.z[i] = z if abs(z) > TINY else 0.0
    if kept.counts.slots > kept.counts.tidy:
        tidy(LINEAR, kept, (0.0, 0.0))


@seldom
def copy(way, kept, row):
    """Write z into row 0 or 1 of the copies, and return how many numbers it has. A weight may be named several times."""
    weights, numbers, n = kept.copied_weights[row], kept.copied_numbers[row], 0
    if way == VISITS or (way == GROUPS and not kept.counts.gathered):
        for v in range(kept.counts.first, kept.counts.last):
            for j in range(kept.weights.shape[1]):
                weights[n], numbers[n] = kept.weights[v, j], kept.wβ[v] * kept.numbers[v, j]
                n += 1
        return n
    if way == GROUPS and kept.counts.top == kept.counts.bottom:
        return 0
    z = kept.z if way == LINEAR else kept.C[kept.counts.top - 1]
    for i in range(kept.counts.slots):
        weights[i], numbers[i] = kept.weight_of[i], z[i]
    return kept.counts.slots


@merged
def carry_on(plan, factors, custom, kept, discount, π, μ, pair, at):
    """Take the older starts past an action of probabilities π and μ. False if a custom step gave no coefficient.

    `pair` is where they come to, for custom steps; `at` is the number of the state and action, for numbers by pair.
    """
    if discount == 0.0:
        clear(kept)
        return True
    ρ = π / μ
    if plan.custom:
        drop_visits(kept, plan.reach, plan.forget)
        return advance_steps(kept, custom, discount, π, μ, ρ, plan.lam, pair)
    decay, ratio, cap = factors(π, μ, ρ, plan.parameters[at if len(plan.parameters) > 1 else 0])
    if plan.way == LINEAR:
        advance_linear(kept, discount, decay, ratio)
    elif kept.counts.gathered:
        plan.advance_groups(kept, discount, decay, ratio, cap, plan.log_forget)
    else:
        drop_visits(kept, plan.reach, plan.forget)
        advance_products(kept, discount, decay, ratio, cap, plan.recursive, plan.lags)
    return True


pass_on = seldom(plain(carry_on))
"""The same, not inlined: for state values, where the older starts and the newest meet the action of the step."""
