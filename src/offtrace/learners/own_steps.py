"""A learning method's own step, instead of θ ← θ + α δ z: its record and its vectors are put together here."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offtrace.learners.acting import action_values, at_present, best_of, mean, probability
from offtrace.learners.arrays import (
    Floats,
    Records,
    Slots,
    clear_slots,
    is_crowded,
    move_slot,
    no_inline,
    set_number,
    take_slot,
)
from offtrace.learners.eligibility import Sparse, advance, clear, copy, enter, factors_of
from offtrace.learners.methods.base import Store, Vectors
from offtrace.learners.state import BEHAVIOR, TARGET


class Own(NamedTuple):
    """What a lane stores for a method that defines its step."""

    step: object
    """The compiled `Method.step`."""
    transition: Records
    """[1]: a record TRANSITION."""
    traces: Floats
    """[n, size]: see `Method.traces`."""
    used: Slots
    """The weights for which `traces` may not be 0."""
    scalars: Floats
    """[n]: see `Method.scalars`."""
    numbers: Floats
    """See `Method.numbers`."""


@no_inline
def own_step(vector, starts, stack, rule, custom, task, memory, at, values, method):
    """The eligibility vector, before and after the action, and the method's own step. False if there is no coefficient."""
    now, discount, δ, v, π, ratio = values
    step, transition, traces, used, scalars, numbers = method
    settings, active, q, t = task.settings[0], memory.active, memory.q, transition[0]
    t.state, t.action, t.next_state, t.terminated = now.state, now.action, now.next_state, now.terminated
    t.reward, t.delta, t.gamma, t.discount = now.reward, δ, settings.gamma, discount
    t.alpha, t.pi, t.mu, t.rho = at.alpha, π, now.mu, π / now.mu
    t.ratio, t.value, t.next_value = ratio, at.value, v
    if settings.expects:
        action_values(memory.θ, task.tile, task.value, now.state, q)
        t.expected = mean(at_present(task.schedules[TARGET], at.episode, at.step), task.target, now.state, q)
    valid, s, pair = True, now.state, now.state * len(q) + now.action
    update_active(used, traces, scalars, active, discount)
    if not settings.on_states:
        valid = advance(vector, starts, stack, rule, custom, task, discount, π, now.mu, pair)
    elif discount == 0.0:
        clear(vector, starts, stack)
    enter(vector, starts, stack, memory.carry, active, task.value, s, s if settings.on_states else pair)
    z = copy(vector, starts, stack)
    on, ahead = look_ahead(vector, rule, task, memory, at, now)
    if settings.on_states:
        place = now.next_state if settings.custom else pair
        valid = advance(vector, starts, stack, rule, custom, task, t.gamma, π, now.mu, place)
        on = copy(vector, starts, stack)
    listed = used.weights[: used.counts[0]]
    φ = Sparse(active, task.value[s])
    step(t, Store(memory.θ, memory.further, traces, listed, scalars, numbers), Vectors(z, on, φ, ahead))
    return valid


@no_inline
def update_active(used, traces, scalars, active, discount):
    """List the weights of this step. Where an episode begins, the method's own vectors and numbers are 0 again."""
    if discount == 0.0:
        for i in range(used.counts[0]):
            for n in range(len(traces)):
                traces[n, used.weights[i]] = 0.0
        clear_slots(used)
        for n in range(len(scalars)):
            scalars[n] = 0.0
    if is_crowded(used):
        m = 0
        for i in range(used.counts[0]):
            keep = False
            for n in range(len(traces)):
                keep = keep or traces[n, used.weights[i]] != 0.0
            move_slot(used, i, m, keep)
            m += keep
        set_number(used, m)
    if len(traces):
        for w in active:
            take_slot(used, w)


@no_inline
def look_ahead(vector, rule, task, memory, at, now):
    """Σ_a μ(a|s') c(s', a) φ(s', a), c being the trace's coefficient, if the method `passes_on`;

    and the features of s': of the state, of the next action, or the mean over π. They are empty at an end.
    """
    all_settings, tile, value, schedules, behavior, target, _, _, _ = task
    settings, q = all_settings[0], memory.q_next
    A, k, s = len(q), tile.shape[1], now.next_state
    one = settings.on_states or settings.sampled
    n = 0 if now.terminated else k if one else k * A
    passed = n if settings.passes_on else 0
    on, ahead = Sparse(np.empty(passed, np.int64), np.empty(passed)), Sparse(np.empty(n, np.int64), np.empty(n))
    (on_weights, on_numbers), (weights, numbers) = on, ahead
    if n == 0:
        return on, ahead
    if one:
        for j in range(k):
            weights[j] = tile[s, j] if settings.on_states else tile[s, j] * A + at.chosen
            numbers[j] = value[s, j]
        return on, ahead
    best, _, ties, _ = best_of(q)
    μ = at_present(schedules[BEHAVIOR], at.episode, at.step)
    π = at_present(schedules[TARGET], at.episode, at.step)
    for b in range(A):
        p, c = probability(π, target, s, q, best, ties, b), 0.0
        if vector is not None:  # a method that `passes_on` has a per-decision rule
            p_μ = probability(μ, behavior, s, q, best, ties, b)
            if settings.passes_on and p_μ > 0.0:
                decay, ratio, _ = factors_of(rule, task, p, p_μ, s * A + b)
                c = p_μ * decay * ratio
        for j in range(k):
            i = b * k + j
            weights[i], numbers[i] = tile[s, j] * A + b, p * value[s, j]
            if settings.passes_on:
                on_weights[i], on_numbers[i] = weights[i], c * value[s, j]
    return on, ahead
