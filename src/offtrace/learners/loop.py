"""One compiled loop: a learner acts, learns, and is evaluated, until it is done or a budget of steps is spent.

A step, with all policies in the Q of this moment:

    a ~ μ(·|s),   s' and r from the MDP,   v = Σ_a' π(a'|s') Q(s', a')         (0 where the episode has ended)
    z ← γβ-rule(z) + ∇q(s, a),     δ = r + γv − q(s, a),     θ ← θ + α δ z        (the paper's Algorithm 1, π in δ)

State values: z ← γβ-rule(z) + ∇v(s), θ ← θ + α ρ δ z, where the rule reads the previous action, not that in s. "offline" sums
δz over the episode and adds it at the end; "replay" stores the step and corrects drawn sequences in the same way; a method that
defines a `step` does that in place of θ ← θ + α δ z. States have features: q(s, a) = Σ_j value_j θ[tile_j · A + a], for a
table the one tile s with value 1.

What a learner does not need (a form of the eligibility vector, a custom step, a step of the method's own, a given trajectory) is
None in the loop's arguments: so each loop is compiled for what it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from offtrace._shared.compile_cache import cached_njit
from offtrace.learners.acting import (
    action_values,
    at_present,
    choose,
    choose_action,
    expected_value,
    probability_of,
    set_active,
    state_value,
    value_of,
)
from offtrace.learners.arrays import clear_slots, inline, inline_fma, newest_file, no_inline, take_slot, view
from offtrace.learners.eligibility import add_z, advance, enter, has_room
from offtrace.learners.own_steps import own_step
from offtrace.learners.random import EVALUATION as EVALUATION_STREAM
from offtrace.learners.random import LEARNING, pick, uniform
from offtrace.learners.state import EVALUATION, OFFLINE, ONLINE, REPLAY, TARGET

ALL, ACT, LEARN, EVALUATE = range(4)
"""What the loop does: whole steps in an MDP; or, for an environment in Python, one part of a step."""


@cache
def loop() -> Callable[..., int]:
    """The loop, which is compiled when it is first called with arguments of new types."""
    changed = newest_file()

    @cached_njit(nogil=True, error_model="numpy")
    def learn(world, task, rule, custom, memory, lane, z, curve, method, stage):
        _ = changed
        # the arrays, without counting references to them
        task, memory, lane, curve = view(task), view(memory), view(lane), view(curve)
        entries, rows, recorded = view(world)
        vector, starts, stack = view(z)
        all_settings, tile, value, schedules, _, target, _, _, _ = task
        all_progress, streams, θ, _, N, q, q_next, active, carry = memory
        lanes, buffer, sums, summed = lane
        settings, progress, at = all_settings[0], all_progress[0], lanes[0]
        A, on_states, online = len(q), settings.on_states, settings.update == ONLINE
        if stage == EVALUATE:
            return evaluation_action(task, memory)
        while (
            progress.budget > 0
            and has_room(vector, starts, stack, len(active))
            and progress.evaluations < len(curve.evaluations)
        ):
            # a ~ μ(·|s), s' and r
            step = buffer[at.head]
            if stage != LEARN:
                begin_episode(entries, rows, recorded, progress, at, streams)
                choose_action(task, memory, at, step)
                if stage == ACT:
                    return step.action
                take_step(entries, rows, recorded, settings, progress, at, streams, A, step)
            else:  # other lanes may have learned since
                at.value = value_of(θ, tile, value, step.state, step.action, q, on_states)
            for _ in range(store_step(settings, progress, at, step, len(buffer))):
                first, last = sequence(settings, at, streams)
                for i in range(first, last):
                    now = buffer[(at.head - at.filled + i) % len(buffer)]
                    s, a, pair = now.state, now.action, now.state * A + now.action
                    π, old, discount = at.greedy if settings.greedy else at.pi, at.value, at.discount
                    if settings.update == REPLAY:  # π and q are the current ones
                        old = value_of(θ, tile, value, s, a, q, on_states)
                        π_now = at_present(schedules[TARGET], at.episode, at.step)
                        π = probability_of(π_now, target, s, q, a, settings.greedy)
                        discount = settings.gamma if i > first else 0.0

                    # δ = r + γ v(s') − q(s, a)
                    v = 0.0
                    if on_states and not now.terminated:
                        v = state_value(θ, tile, value, now.next_state)
                    elif not now.terminated:
                        action_values(θ, tile, value, now.next_state, q_next)
                        v = expected_value(task, memory, at, now.next_state, q_next)
                    δ = now.reward + settings.gamma * v - old
                    if not np.isfinite(δ):
                        θ[0], progress.done = np.nan, 1
                        break
                    set_active(active, tile, s, a, A, on_states)
                    if settings.history:
                        carry[0], carry[1] = (np.nan, np.nan) if on_states else (π, now.mu)
                    ratio = 1.0
                    if on_states:  # min(ρ̄, ρ) of the policy that is evaluated
                        ratio = min(settings.bound, settings.share * (π / now.mu) + (1.0 - settings.share))

                    if method is None:
                        # z ← γβ-rule(z) + ∇q(s, a); on state values the rule reads the previous action
                        π_read, μ_read, place = π, now.mu, pair
                        if on_states:
                            π_read, μ_read, place = at.previous_pi, at.previous_mu, at.previous_pair
                            at.previous_pi, at.previous_mu, at.previous_pair = π, now.mu, pair
                            if settings.custom:
                                place = s
                        is_valid = advance(vector, starts, stack, rule, custom, task, discount, π_read, μ_read, place)
                        enter(vector, starts, stack, carry, active, value, s, s if on_states else pair)

                        # θ ← θ + α δ z; in an uncorrected return the older starts have δ' = r + γ v(s') − v(s)
                        shift = old - at.bootstrap if settings.uncorrected and discount > 0.0 else 0.0
                        at.bootstrap = v
                        for w in active:
                            if settings.by_visits:
                                N[w] += 1.0
                            if not online:
                                take_slot(summed, w)
                        size, by_visits = at.alpha if online else 1.0, online and settings.by_visits != 0
                        add_z(vector, starts, stack, sums, size * (δ * ratio + shift), N, by_visits)
                        if shift != 0.0:
                            take_back(sums, size * shift, N, by_visits, active, value, s)
                    else:
                        values = now, discount, δ, v, π, ratio
                        is_valid = own_step(vector, starts, stack, rule, custom, task, memory, at, values, method)
                    if not is_valid:
                        progress.bad = 1
                        return 0
                    if now.terminated or now.truncated:
                        break
                if progress.done:
                    break
                if settings.update == REPLAY:
                    add_sums(settings.by_visits, at.alpha, θ, N, sums, summed)
            finish_step(settings, progress, at, step)
            if settings.update == OFFLINE and (at.begins or progress.done):
                add_sums(settings.by_visits, at.alpha, θ, N, sums, summed)
            counted = progress.episode if settings.episodes else progress.step
            if progress.mark < len(curve.marks) and curve.marks[progress.mark] == counted:
                mark(settings.on_states, tile, value, progress, θ, q, curve)
            if at.begins and settings.evaluate_every and progress.episode % settings.evaluate_every == 0:
                evaluation_episode(entries, rows, task, memory, curve)
            if progress.done:
                break
        return 0

    return learn


@inline_fma
def take_back(to, size, N, by_visits, active, value, s):
    """The newest start does not count in what was added for all of them: to −= size · ∇q."""
    for j in range(len(active)):
        w = active[j]
        to[w] -= size * value[s, j] * (1.0 / N[w] if by_visits else 1.0)


@inline
def begin_episode(entries, rows, recorded, progress, at, streams):
    """Where an episode begins, if one does. Environments in Python set it themselves."""
    if recorded is not None:
        step = recorded[progress.step]
        at.state, at.chosen = step.state, step.action
    elif entries is not None and at.begins:
        start = len(rows) - 2
        at.state = entries[pick(streams, LEARNING, entries, rows[start], rows[start + 1])].to


@inline
def take_step(entries, rows, recorded, settings, progress, at, streams, A, step):
    """s', r, and whether the episode ends there."""
    if recorded is not None:
        given = recorded[progress.step]
        step.next_state, step.reward = given.next_state, given.reward
        step.terminated, step.truncated = given.terminated, given.truncated
        if progress.step + 1 < len(recorded) and not (given.terminated or given.truncated):
            at.chosen = recorded[progress.step + 1].action
    elif entries is not None:
        row = step.state * A + step.action
        entry = entries[pick(streams, LEARNING, entries, rows[row], rows[row + 1])]
        step.next_state, step.reward, step.terminated = entry.to, entry.reward, entry.ends
        step.truncated = at.age + 1 == settings.limit and not entry.ends


@inline
def store_step(settings, progress, at, step, capacity):
    """Count the step, and store it at the head of the buffer: how many sequences are to be learned from now."""
    progress.budget -= 1
    progress.step += 1
    progress.largest = max(progress.largest, abs(step.reward))
    at.age += 1
    at.head = (at.head + 1) % capacity
    at.filled = min(at.filled + 1, capacity)
    at.since += 1
    if settings.update != REPLAY:
        return 1
    if at.since < settings.every:
        return 0
    at.since = 0
    return settings.batch


@inline
def sequence(settings, at, streams):
    """Where a sequence begins in the buffer, 0 being the oldest step, and where it ends at the latest."""
    if settings.update != REPLAY:
        return 0, 1
    first = min(int(uniform(streams, LEARNING) * at.filled), at.filled - 1)
    return first, min(at.filled, first + settings.length)


@no_inline
def add_sums(by_visits, alpha, θ, N, sums, summed):
    """θ ← θ + α U, and U is 0 again."""
    weights, _, counts = summed
    for i in range(counts[0]):
        w = weights[i]
        θ[w] += alpha * sums[w] * (1.0 / N[w] if by_visits else 1.0)
        sums[w] = 0.0
    clear_slots(summed)


@inline
def finish_step(settings, progress, at, step):
    """Where the lane goes next, the return of its episode, and whether the learner is done."""
    at.discount = settings.gamma
    at.total += at.gain * step.reward
    at.gain *= settings.gamma
    at.state = step.next_state
    if step.terminated or step.truncated:
        at.begins, at.chosen = 1, -1
        progress.episode += 1
        progress.returns += at.total
        progress.finished += 1.0
    if progress.step == settings.steps or (settings.episodes > 0 and progress.episode == settings.episodes):
        progress.done = 1


@no_inline
def mark(on_states, tile, value, progress, θ, q, curve):
    """One point of the curve: the root mean square of Q − truth, or of V − truth, the mean return, the steps; and θ."""
    _, points, snapshots, truth, judged, _ = curve
    i, each, total = progress.mark, truth.shape[1], 0.0
    if len(truth):
        for s in judged:
            if on_states:
                total += (state_value(θ, tile, value, s) - truth[s, 0]) ** 2
            else:
                action_values(θ, tile, value, s, q)
                for a in range(each):
                    total += (q[a] - truth[s, a]) ** 2
        total = np.sqrt(total / (len(judged) * each))
        points[i, 0] = total if total >= 0.0 else np.inf
    points[i, 1] = progress.returns / progress.finished if progress.finished else np.nan
    points[i, 2] = progress.step
    for w in range(snapshots.shape[1]):
        snapshots[i, w] = θ[w]
    progress.returns, progress.finished, progress.mark = 0.0, 0.0, i + 1


@inline
def evaluation_action(task, memory):
    """An action of the evaluation policy."""
    _, tile, value, schedules, _, _, table, _, _ = task
    all_progress, streams, θ, _, _, q, _, _, _ = memory
    progress = all_progress[0]
    π, s = at_present(schedules[EVALUATION], progress.episode - 1, progress.step), progress.evaluation_state
    action_values(θ, tile, value, s, q)
    return choose(uniform(streams, EVALUATION_STREAM), π, table, s, q)


@no_inline
def evaluation_episode(entries, rows, task, memory, curve):
    """An evaluation episode. One that has hit the limit continues the next time from where it was."""
    if entries is None:
        return  # environments in Python have their own
    all_progress, streams, _, _, _, q, _, _, _ = memory
    settings, progress, evaluations = task.settings[0], all_progress[0], curve.evaluations
    total, gain, start = 0.0, 1.0, len(rows) - 2
    if progress.evaluation_state < 0:
        first = pick(streams, EVALUATION_STREAM, entries, rows[start], rows[start + 1])
        progress.evaluation_state = entries[first].to
    for _ in range(settings.evaluation_limit):
        row = progress.evaluation_state * len(q) + evaluation_action(task, memory)
        entry = entries[pick(streams, EVALUATION_STREAM, entries, rows[row], rows[row + 1])]
        progress.evaluation_state = entry.to
        total += gain * entry.reward
        gain *= settings.gamma
        if entry.ends:
            progress.evaluation_state = -1
            break
    evaluations[progress.evaluations, 0] = progress.step
    evaluations[progress.evaluations, 1] = total
    progress.evaluations += 1
