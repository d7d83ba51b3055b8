"""What a learner does with one step: the paper's Algorithm 1 on θ, or on sums that are added to θ later, or a step of its own.

action values    z ← γβ-rule(z) + ∇q(s, a),   θ ← θ + α δ z
state values     z ← γβ-rule(z) + ∇v(s),   θ ← θ + α ρ δ z        the rule meets the action before s, not that in s

With a buffer, the step is put into it, and now and then sequences of steps are drawn from it, and corrected at the present Q.
With None, the one sequence to learn from is the step itself, which continues its episode.
"""

from __future__ import annotations

import numpy as np

from offtrace.learners.acting import at_present, best_of, choose, probability, value
from offtrace.learners.arrays import give_up_slots, is_crowded, move_slot, number, set_number, take_slot
from offtrace.learners.compiling import contracted, part, seldom
from offtrace.learners.eligibility import Sparse, advance, clear, copy, enter
from offtrace.learners.methods.base import Store, Vectors
from offtrace.learners.random import LEARNING, uniform

LEARNED, NOT_FINITE, BAD_COEFFICIENT = range(3)
"""What may come of a step: all is well, δ is not finite, or a custom step gave no coefficient."""


@contracted
def action_values(θ, features, s, q):
    """q(s, ·), which is written to `q`; on state values there is none."""
    if features.states:
        return
    A = features.A
    for j in range(features.tile.shape[1]):
        i, x = features.tile[s, j] * A, features.value[s, j]
        for a in range(A):
            q[a] = x * θ[i + a] + (q[a] if j > 0 else 0.0)


@contracted
def state_value(θ, features, s):
    """v(s)."""
    v = 0.0
    for j in range(features.tile.shape[1]):
        v += features.value[s, j] * θ[features.tile[s, j]]
    return v


@part
def expected(plan, behavior, target, lane, streams, s, q):
    """Σ_a π(a|s) q(s, a) of the policy in δ, or the value of the next action, which is chosen here."""
    if plan.sampled:
        if lane.chosen < 0:
            μ = at_present(behavior, lane.episode, lane.step)
            lane.chosen = choose(uniform(streams, LEARNING), μ, behavior.table, s, q)
        return q[lane.chosen]
    v = value(at_present(target, lane.episode, lane.step), target.table, s, q)
    if plan.share < 1.0:
        μ = at_present(behavior, lane.episode, lane.step)
        v = plan.share * v + (1.0 - plan.share) * value(μ, behavior.table, s, q)
    return v


@part
def set_weights(tile, weights, s, a, A):
    """The weights of (s, a), or those of s with A = 0."""
    for j in range(len(weights)):
        weights[j] = tile[s, j] * A + a if A else tile[s, j]


@part
def met(states, tells_pair, lane, s, pair, π, μ):
    """The action that the older starts meet: this one, or on state values the one before. Its π and μ, and where it is."""
    if states:
        return lane.π_before, lane.μ_before, s if tells_pair else lane.pair_before
    return π, μ, pair


@part
def state_ratio(bound, share, π, μ):
    """What δ carries on state values: min(ρ̄, ρ) of the policy that is evaluated."""
    return min(bound, share * (π / μ) + (1.0 - share))


@part
def count_visits(weights, N, sizes):
    """Count a visit of the active weights, whose step sizes are 1 / visits."""
    for w in weights:
        N[w] += 1.0
        sizes[w] = 1.0 / N[w]


@part
def list_weights(weights, summed):
    """The weights for which a sum may not be 0."""
    for w in weights:
        take_slot(summed, w)


@contracted
def take_back(to, size, sizes, sized, weights, values, s):
    """The newest start is not credited with what was added for all of them: to −= size · ∇q."""
    for j in range(len(weights)):
        w = weights[j]
        to[w] -= size * values[s, j] * (sizes[w] if sized else 1.0)


@seldom
def add_sums(settings, m):
    """θ ← θ + α U, and U is 0 again."""
    for i in range(number(m.summed)):
        w = m.summed.weights[i]
        m.θ[w] += m.lane[0].alpha * m.changed[w] * (m.sizes[w] if settings.by_visits else 1.0)
        m.changed[w] = 0.0
    give_up_slots(m.summed)


@part
def own_step(own, task, factors, custom, m, e, discount, step):
    """The eligibility vector, before and after the action, and the method's own step. False if there is no coefficient."""
    δ, v, π, ratio = step
    features, plan, now, lane, t = task.features, task.plan, m.now[0], m.lane[0], own.transition[0]
    t.state, t.action, t.next_state, t.terminated = now.state, now.action, now.next_state, now.terminated
    t.reward, t.delta, t.gamma, t.discount = now.reward, δ, task.settings.gamma, lane.discount
    t.alpha, t.pi, t.mu, t.rho = lane.alpha, π, now.mu, π / now.mu
    t.ratio, t.value, t.next_value = ratio, lane.value, v
    if plan.expects:
        target = task.policies.target
        action_values(m.θ, features, now.state, m.q)
        t.expected = value(at_present(target, lane.episode, lane.step), target.table, now.state, m.q)
    renew(own, m.weights, lane.discount)
    has_coefficients, s, pair = True, now.state, now.state * features.A + now.action
    if not features.states:
        has_coefficients = advance(
            factors, custom, e.vector, e.starts, e.groups, plan.numbers, discount, π, now.mu, pair
        )
    elif discount == 0.0:
        clear(e.vector, e.starts, e.groups)
    enter(e.vector, e.starts, e.groups, plan.first, m.weights, features.value, s, s if features.states else pair)
    z = copy(e.vector, e.starts, e.groups)
    on, ahead = look_ahead(factors, plan, features, task.policies, m)
    if features.states:
        place = now.next_state if plan.tells_pair else pair
        has_coefficients = advance(
            factors, custom, e.vector, e.starts, e.groups, plan.numbers, t.gamma, π, now.mu, place
        )
        on = copy(e.vector, e.starts, e.groups)
    φ = Sparse(m.weights, features.value[now.state])
    active = own.used.weights[: number(own.used)]
    own.step(t, Store(m.θ, m.further, own.traces, active, own.scalars, own.numbers), Vectors(z, on, φ, ahead))
    return has_coefficients


@seldom
def renew(own, weights, discount):
    """List the weights of this step. Where an episode begins, the method's own vectors and numbers are 0 again."""
    used, traces = own.used, own.traces
    if discount == 0.0:
        for i in range(number(used)):
            for n in range(len(traces)):
                traces[n, used.weights[i]] = 0.0
        give_up_slots(used)
        for n in range(len(own.scalars)):
            own.scalars[n] = 0.0
    if is_crowded(used):
        m = 0
        for i in range(number(used)):
            is_used = False
            for n in range(len(traces)):
                is_used = is_used or traces[n, used.weights[i]] != 0.0
            move_slot(used, i, m if is_used else -1)
            m += is_used
        set_number(used, m)
    if len(traces):
        for w in weights:
            take_slot(used, w)


@seldom
def look_ahead(factors, plan, features, policies, m):
    """Σ_a μ(a|s') c(s', a) φ(s', a), c being what the trace keeps of an older start, if the method `passes_on`;

    and the features of s': of the state, of the next action, or the mean over π. They are empty at an end.
    """
    now, lane, A, k, s = m.now[0], m.lane[0], features.A, len(m.weights), m.now[0].next_state
    behavior, target = policies.behavior, policies.target
    one = features.states or plan.sampled
    n = 0 if now.terminated else k if one else k * A
    on = Sparse(np.empty(n if plan.passes_on else 0, np.int64), np.empty(n if plan.passes_on else 0))
    ahead = Sparse(np.empty(n, np.int64), np.empty(n))
    if n == 0:
        return on, ahead
    if one:
        for j in range(k):
            i = features.tile[s, j]
            ahead.weights[j] = i if features.states else i * A + lane.chosen
            ahead.numbers[j] = features.value[s, j]
        return on, ahead
    q = m.q_next
    best, _, ties, _ = best_of(q)
    μ = at_present(behavior, lane.episode, lane.step)
    π = at_present(target, lane.episode, lane.step)
    for b in range(A):
        p, c = probability(π, target.table, s, q, best, ties, b), 0.0
        if plan.passes_on and factors is not None:
            p_μ = probability(μ, behavior.table, s, q, best, ties, b)
            if p_μ > 0.0:
                row = s * A + b if len(plan.numbers.parameters) > 1 else 0
                decay, ratio, _ = factors(p, p_μ, p / p_μ, plan.numbers.parameters, row)
                c = p_μ * decay * ratio
        for j in range(k):
            i = b * k + j
            ahead.weights[i] = features.tile[s, j] * A + b
            ahead.numbers[i] = p * features.value[s, j]
            if plan.passes_on:
                on.weights[i], on.numbers[i] = ahead.weights[i], c * features.value[s, j]
    return on, ahead


@part
def sequences(buffer, settings, lane, now):
    """How many sequences are to be learned from now. The step is put into the ring, over the oldest."""
    if buffer is not None:
        buffer[lane.head] = now[0]
        lane.head = (lane.head + 1) % len(buffer)
        lane.filled = min(lane.filled + 1, len(buffer))
        lane.since += 1
        if lane.since < settings[0]:
            return 0
        lane.since = 0
        return settings[1]
    return 1


@part
def bounds(buffer, length, lane, streams):
    """Where a sequence begins in the buffer, the oldest step being 0, and where it ends at the latest."""
    if buffer is not None:
        first = min(int(uniform(streams, LEARNING) * lane.filled), lane.filled - 1)
        return first, min(lane.filled, first + length)
    return 0, 1


@part
def step_at(buffer, lane, now, i):
    """Step i of the buffer, or that of the lane."""
    if buffer is not None:
        return buffer[(lane.head - lane.filled + i) % len(buffer)]
    return now[0]
