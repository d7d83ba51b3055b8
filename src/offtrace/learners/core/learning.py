"""What a learner does with one step: the paper's Algorithm 1 on θ, or on sums that are added to θ later."""

from __future__ import annotations

from offtrace.learners.core.acting import best_of, value
from offtrace.learners.core.compiling import contracted, inlined, merged, seldom
from offtrace.learners.core.eligibility.vector import apply, carry_on, enter
from offtrace.learners.core.loop_settings import ONLINE


@contracted
def compute_values(θ, features, s, room):
    """q(s, ·) into `room`, unless θ itself holds it, or holds no values of actions."""
    if features.table or features.states:
        return
    A = features.A
    for a in range(A):
        room[a] = 0.0
    for j in range(features.tile.shape[1]):
        i, v = features.tile[s, j] * A, features.value[s, j]
        for a in range(A):
            room[a] += v * θ[i + a]


@contracted
def state_value(θ, features, s):
    """v(s)."""
    v = 0.0
    for j in range(features.tile.shape[1]):
        v += features.value[s, j] * θ[features.tile[s, j]]
    return v


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
    """Take the eligibility vector to this step and add α δ z to θ, or δ z to U. False if a custom step gave no coefficient."""
    A, pair, k = features.A, s * features.A + a, len(m.weights)
    ok = carry_on(plan, factors, custom, kept, discount, π, μ, pair, pair)
    for j in range(k):
        m.weights[j] = features.tile[s, j] * A + a
    if plan.history:
        plan.first[0], plan.first[1] = π, μ
    enter(plan, kept, m.weights, features.value[s], pair)
    if settings.by_visits:
        count_visit(m)
    if settings.update == ONLINE:
        apply(plan.way, kept, m.lane.alpha * δ, m.sizes, m.θ)
        return ok
    touch(m)
    apply(plan.way, kept, δ, m.sizes[:0], m.U)
    return ok


@inlined
def count_visit(m):
    """Count a visit of the active weights, whose step sizes are 1 / visits."""
    for w in m.weights:
        m.N[w] += 1.0
        m.sizes[w] = 1.0 / m.N[w]


@inlined
def touch(m):
    """List the weights of this step."""
    for w in m.weights:
        if not m.is_touched[w]:
            m.is_touched[w] = True
            m.touched[m.lane.touched] = w
            m.lane.touched += 1


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
