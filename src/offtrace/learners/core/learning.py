"""What a learner does with one step: the paper's Algorithm 1 on θ, or on sums that are added to θ later."""

from __future__ import annotations

import numpy as np

from offtrace.learners.core.acting import best_of, probability, value
from offtrace.learners.core.compiling import contracted, inlined, merged, seldom
from offtrace.learners.core.eligibility.vector import apply, carry_on, enter
from offtrace.learners.core.memory import ONLINE
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


@seldom
def replay(plan, factors, custom, features, settings, μ, π, m, kept):
    """Draw sequences, correct each by its Δ at the present Q, and learn from it."""
    filled, capacity = m.lane.filled, len(m.buffer)
    for _ in range(settings.batch):
        first = min(int(uniform(m.streams, LIVING) * filled), filled - 1)
        discount = 0.0
        for n in range(first, min(filled, first + settings.length)):
            old = m.buffer[(m.lane.head - filled + n) % capacity]
            s, a = old.state, old.action
            v = 0.0 if old.terminated else expected(plan, features, m, μ, π, old.next_state)
            compute_values(m.θ, features, s, m.q[0])
            q = m.θ[s * features.A : (s + 1) * features.A] if features.table else m.q[0]
            best, _, ties, _ = best_of(q)
            π_a = probability(π, s, q, best, ties, a)
            if plan.greedy:
                π_a = 1.0 if q[a] == best else 0.0
            δ = old.reward + settings.gamma * v - q[a]
            if not np.isfinite(δ):
                m.θ[0] = np.nan  # so that all see it
                return True
            if not learn(plan, factors, custom, features, settings, m, kept, discount, s, a, δ, π_a, old.mu):
                return False
            discount = settings.gamma
            if old.terminated or old.truncated:
                break
        add_up(settings, m)
    return True
