"""What a learner does with one step: the paper's Algorithm 1 on θ, or on sums that are added to θ later."""

from __future__ import annotations

import numpy as np

from offtrace.learners.core.acting import best_of, probability, value
from offtrace.learners.core.compiling import contracted, inlined, merged, seldom
from offtrace.learners.core.eligibility.vector import apply, carry_on, enter
from offtrace.learners.core.memory import ONLINE, REPLAY
from offtrace.learners.core.random_numbers import LIVING, uniform
from offtrace.learners.methods.base import Sparse


@contracted
def compute_values(θ, features, s, room):
    """q(s, ·) into `room`, unless θ itself holds it."""
    if features.table:
        return
    A = features.A
    for a in range(A):
        room[a] = 0.0
    for j in range(features.tile.shape[1]):
        i, v = features.tile[s, j] * A, features.value[s, j]
        for a in range(A):
            room[a] += v * θ[i + a]


@inlined
def expected(plan, features, m, μ, π, s):
    """Σ_a π(a|s) Q(s, a), of the policy in δ."""
    compute_values(m.θ, features, s, m.q[1])
    q = m.θ[s * features.A : (s + 1) * features.A] if features.table else m.q[1]
    best, _, ties, total = best_of(q)
    v = value(π, s, q, best, ties, total)
    if plan.share < 1.0:
        v = plan.share * v + (1.0 - plan.share) * value(μ, s, q, best, ties, total)
    return v


@merged
def learn(plan, factors, custom, features, settings, m, kept, discount, s, a, δ, π, μ):
    """Take the eligibility vector to this step and, unless the method has a step of its own, add α δ z to θ, or δ z to U.

    False if a custom step gave no coefficient.
    """
    A, pair, k = features.A, s * features.A + a, len(m.weights)
    ok = carry_on(plan, factors, custom, kept, discount, π, μ, pair)
    for j in range(k):
        m.weights[j] = features.tile[s, j] * A + a
    if plan.history:
        plan.first[0], plan.first[1] = π, μ
    enter(plan.way, kept, m.weights, features.value[s], plan.first, pair)
    if plan.own_step:
        return ok
    if settings.by_visits:
        for w in m.weights:
            m.N[w] += 1.0
            m.sizes[w] = 1.0 / m.N[w]
    if settings.update == ONLINE:
        apply(plan.way, kept, m.lane.alpha * δ, m.sizes, m.θ)
        return ok
    for w in m.weights:
        if not m.is_touched[w]:
            m.is_touched[w] = True
            m.touched[m.lane.touched] = w
            m.lane.touched += 1
    apply(plan.way, kept, δ, m.sizes[:0], m.U)
    return ok


@inlined
def own_step(plan, step, features, settings, m, kept, π, π_a, δ, r, after, terminated):
    """The method's own step, after `learn` has brought the eligibility vector here and `expected` has q(s', ·) in m.q[1]."""
    t, lane, A, k = m.transition, m.lane, features.A, len(m.weights)
    t.state, t.action, t.next_state, t.terminated = lane.state, lane.action, after, terminated
    t.reward, t.delta, t.gamma, t.discount = r, δ, settings.gamma, lane.discount
    t.alpha, t.pi, t.mu = lane.alpha, π_a, lane.mu
    n = 0
    if not terminated:
        n = k * A
        q = m.θ[after * A : (after + 1) * A] if features.table else m.q[1]
        best, _, ties, _ = best_of(q)
        for b in range(A):
            p = probability(π, after, q, best, ties, b)
            for j in range(k):
                m.ahead[b * k + j] = features.tile[after, j] * A + b
                m.ahead_numbers[b * k + j] = p * features.value[after, j]
    slots = kept.counts.slots
    e = Sparse(kept.weight_of[:slots], kept.z[:slots])
    φ, φ_next = Sparse(m.weights, features.value[lane.state]), Sparse(m.ahead[:n], m.ahead_numbers[:n])
    step(t, m.θ, m.further, plan.numbers, e, φ, φ_next)


@seldom
def add_up(settings, m):
    """θ ← θ + α U, and U is 0 again."""
    for n in range(m.lane.touched):
        w = m.touched[n]
        m.θ[w] += m.lane.alpha * m.U[w] * (m.sizes[w] if settings.by_visits else 1.0)
        m.U[w] = 0.0
        m.is_touched[w] = False
    m.lane.touched = 0


@inlined
def remember(m, s, a, after, r, μ, terminated, truncated):
    """Put a step into the ring, over the oldest."""
    new = m.buffer[m.lane.head]
    new.state, new.action, new.next_state, new.reward, new.mu = s, a, after, r, μ
    new.terminated, new.truncated = terminated, truncated
    m.lane.head = (m.lane.head + 1) % len(m.buffer)
    m.lane.filled = min(m.lane.filled + 1, len(m.buffer))


@inlined
def drawn(settings, m):
    """The first step of a sequence from the ring, counted from the oldest, and the step after its last one."""
    filled = m.lane.filled
    first = min(int(uniform(m.streams, LIVING) * filled), filled - 1)
    return first, min(filled, first + settings.length)


@merged
def learn_from(plan, factors, custom, step, features, settings, m, kept, μ, π, r, after, terminated):
    """Learn from the step just taken or, with replay, from drawn sequences, each corrected by its Δ at the present Q.

    True, or False if a custom step gave no coefficient. Both are one loop, since compiling what it calls takes long.
    """
    γ, replayed, left = settings.gamma, settings.update == REPLAY, settings.batch
    s, a, value_sa, μ_a, discount = m.lane.state, m.lane.action, m.lane.value, m.lane.mu, m.lane.discount
    π_a = m.lane.greedy if plan.greedy else m.lane.pi
    n, stop = drawn(settings, m) if replayed else (0, 1)
    if replayed:
        discount = 0.0
    while True:
        if replayed:
            old = m.buffer[(m.lane.head - m.lane.filled + n) % len(m.buffer)]
            s, a, μ_a, r, after, terminated = (
                old.state,
                old.action,
                old.mu,
                old.reward,
                old.next_state,
                old.terminated != 0,
            )
            n = stop if old.terminated or old.truncated else n + 1
            compute_values(m.θ, features, s, m.q[0])
            q = m.θ[s * features.A : (s + 1) * features.A] if features.table else m.q[0]
            best, _, ties, _ = best_of(q)
            value_sa, π_a = q[a], probability(π, s, q, best, ties, a)
            if plan.greedy:
                π_a = 1.0 if q[a] == best else 0.0
        v = 0.0 if terminated else expected(plan, features, m, μ, π, after)
        δ = r + γ * v - value_sa
        if not np.isfinite(δ):
            m.θ[0] = np.nan  # so that all see it
            return True
        if not learn(plan, factors, custom, features, settings, m, kept, discount, s, a, δ, π_a, μ_a):
            return False
        if plan.own_step:
            own_step(plan, step, features, settings, m, kept, π, π_a, δ, r, after, terminated)
        if not replayed:
            return True
        discount = γ
        if n == stop:
            add_up(settings, m)
            left -= 1
            if left == 0:
                return True
            n, stop = drawn(settings, m)
            discount = 0.0
