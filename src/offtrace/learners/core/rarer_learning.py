"""What only some learners do with a step: replay, state values, returns without corrections, and methods' own steps.

It is compiled by itself, where a learner needs it, and given to loops as a pointer.
"""

from __future__ import annotations

import numpy as np

from offtrace.learners.core.acting import at_present, best_of, choose, probability, value
from offtrace.learners.core.compiling import inlined, merged, seldom
from offtrace.learners.core.eligibility.kept import LINEAR, clear
from offtrace.learners.core.eligibility.vector import apply, copy, enter, pass_on
from offtrace.learners.core.learning import add_up, compute_values, count_visit, expected, learn, state_value, touch
from offtrace.learners.core.loop_settings import ONLINE
from offtrace.learners.core.random_numbers import LIVING, uniform
from offtrace.learners.methods.base import Sparse, Store, Vectors


@seldom
def next_value(plan, features, m, μ, π, s):
    """What δ bootstraps from in s: v(s), the value of the next action, or the mean over π.

    The next action is chosen here, before anything is learned from this step.
    """
    if features.states:
        return state_value(m.θ, features, s)
    if not plan.sampled:
        return expected(plan, features, m, μ, π, s)
    compute_values(m.θ, features, s, m.q[1])
    q = m.θ[s * features.A : (s + 1) * features.A] if features.table else m.q[1]
    if m.lane.chosen < 0:
        best, arg, ties, _ = best_of(q)
        m.lane.chosen = choose(uniform(m.streams, LIVING), μ, s, q, best, arg, ties)
    return q[m.lane.chosen]


@inlined
def state_ratio(plan, π, μ):
    """What δ carries on state values: min(ρ̄, ρ) of the policy that is evaluated."""
    return min(plan.bound, plan.share * (π / μ) + (1.0 - plan.share))


@merged
def own_step(plan, step, factors, features, settings, m, kept, μ, π, π_a, δ, v, r, after, terminated):
    """The method's own step, after `learn` has brought the eligibility vector here and `expected` has q(s', ·) in m.q[1]."""
    t, lane, A = m.transition, m.lane, features.A
    t.state, t.action, t.next_state, t.terminated = lane.state, lane.action, after, terminated
    t.reward, t.delta, t.gamma, t.discount = r, δ, settings.gamma, lane.discount
    t.alpha, t.pi, t.mu, t.rho = lane.alpha, π_a, lane.mu, π_a / lane.mu
    t.ratio = state_ratio(plan, π_a, lane.mu) if features.states else 1.0
    t.value, t.next_value = lane.value, v
    if plan.expects:
        s = lane.state
        compute_values(m.θ, features, s, m.q[0])
        q = m.θ[s * A : (s + 1) * A] if features.table else m.q[0]
        best, _, ties, total = best_of(q)
        t.expected = value(π, s, q, best, ties, total)
    if plan.traces or len(m.scalars):
        renew(plan, m)
    n = 0 if terminated else look_ahead(plan, factors, features, m, μ, π, after)
    copied = features.states or plan.way != LINEAR
    if copied and not features.states:
        m.copied[0] = copy(plan.way, kept, 0)
    slots = m.copied[0] if copied else kept.counts.slots
    at, z = (kept.copied_weights[0], kept.copied_numbers[0]) if copied else (kept.weight_of, kept.z)
    on = Sparse(m.ahead[: n if plan.passes_on else 0], m.ahead_on[: n if plan.passes_on else 0])
    if features.states:
        on = Sparse(kept.copied_weights[1, : m.copied[1]], kept.copied_numbers[1, : m.copied[1]])
    e, φ = Sparse(at[:slots], z[:slots]), Sparse(m.weights, features.value[lane.state])
    vectors = Vectors(e, on, φ, Sparse(m.ahead[:n], m.ahead_numbers[:n]))
    step(t, Store(m.θ, m.further, m.traces, m.touched[: lane.touched], m.scalars, plan.numbers), vectors)


@merged
def look_ahead(plan, factors, features, m, μ, π, after):
    """The features of s' into m.ahead: of the state, of the next action, or the mean over π; how many there are.

    With `passes_on`, also Σ_a μ(a|s') c(s', a) φ(s', a), c being what the trace keeps of an older start.
    """
    A, k = features.A, len(m.weights)
    if features.states or plan.sampled:
        for j in range(k):
            m.ahead_numbers[j] = features.value[after, j]
            m.ahead[j] = features.tile[after, j] if features.states else features.tile[after, j] * A + m.lane.chosen
        return k
    q = m.θ[after * A : (after + 1) * A] if features.table else m.q[1]
    best, _, ties, _ = best_of(q)
    for b in range(A):
        p = probability(π, after, q, best, ties, b)
        for j in range(k):
            m.ahead[b * k + j] = features.tile[after, j] * A + b
            m.ahead_numbers[b * k + j] = p * features.value[after, j]
        if plan.passes_on:
            p_μ, c = probability(μ, after, q, best, ties, b), 0.0
            if p_μ > 0.0:
                decay, ratio, _ = factors(
                    p, p_μ, p / p_μ, plan.parameters[after * A + b if len(plan.parameters) > 1 else 0]
                )
                c = p_μ * decay * ratio
            for j in range(k):
                m.ahead_on[b * k + j] = c * features.value[after, j]
    return k * A


@seldom
def renew(plan, m):
    """List the weights of this step. Where an episode begins, the method's own vectors and numbers are 0 again."""
    lane = m.lane
    if lane.discount == 0.0:
        for n in range(lane.touched):
            for i in range(plan.traces):
                m.traces[i, m.touched[n]] = 0.0
            m.is_touched[m.touched[n]] = False
        for i in range(len(m.scalars)):
            m.scalars[i] = 0.0
        lane.touched, lane.tidy = 0, 64
    if not plan.traces:
        return
    if lane.touched > lane.tidy:  # as `eligibility.kept.tidy` does it
        kept = 0
        for n in range(lane.touched):
            w, used = m.touched[n], False
            for i in range(plan.traces):
                used = used or m.traces[i, w] != 0.0
            m.is_touched[w] = used
            m.touched[kept] = w
            kept += used
        lane.touched, lane.tidy = kept, max(64, 2 * kept)
    touch(m)


def learns_of(digest):
    """What `replay` and `otherwise` do with δ where Algorithm 1 is not all, by itself. For `digest` see `loop.run_of`."""

    def learns(plan, factors, custom, features, settings, m, kept, discount, s, a, after, δ, shift, π, μ):
        """`learn` for what is not in a hurry: state values, returns without corrections, and methods with a step of their own.

        On state values the newest start meets the action too: all are passed on at once, after they have been used. `shift` is
        added to δ for all starts but the newest.
        """
        _ = digest
        A, k, ok, pair = features.A, len(m.weights), True, s
        if features.states:
            if discount == 0.0:
                clear(kept)
            δ *= state_ratio(plan, π, μ)
        else:
            pair = s * A + a
            ok = pass_on(plan, factors, custom, kept, discount, π, μ, pair, pair)
        for j in range(k):
            m.weights[j] = features.tile[s, j] if features.states else features.tile[s, j] * A + a
        if plan.history:
            plan.first[0], plan.first[1] = (np.nan, np.nan) if features.states else (π, μ)
        enter(plan, kept, m.weights, features.value[s], pair)
        if plan.own_step:
            if features.states:  # else `own_step` does it
                m.copied[0] = copy(plan.way, kept, 0)
        else:
            if settings.by_visits:
                count_visit(m)
            online = settings.update == ONLINE
            if not online:
                touch(m)
            size, sizes, to = (m.lane.alpha, m.sizes, m.θ) if online else (1.0, m.sizes[:0], m.U)
            apply(plan.way, kept, size * (δ + shift), sizes, to)
            if shift != 0.0:
                for j in range(k):
                    w = m.weights[j]
                    to[w] -= size * shift * features.value[s, j] * (sizes[w] if len(sizes) else 1.0)
        if features.states:
            ok = pass_on(plan, factors, custom, kept, settings.gamma, π, μ, after, s * A + a)
            if plan.own_step:
                m.copied[1] = copy(plan.way, kept, 1)
        return ok

    return learns


def replay_of(digest):
    """What is done now and then with a buffer, by itself: the loop is given a pointer to it. For `digest` see `loop.run_of`."""

    def replay(plan, factors, custom, learns, features, settings, behavior, target, m, kept):
        """Draw sequences, correct each by its Δ at the present Q, and learn from it. False if a custom β is no number."""
        _ = digest
        μ, π = at_present(m.behavior, behavior), at_present(m.target, target)
        filled, capacity = m.lane.filled, len(m.buffer)
        for _ in range(settings.batch):
            first = min(int(uniform(m.streams, LIVING) * filled), filled - 1)
            discount, ahead = 0.0, 0.0
            for n in range(first, min(filled, first + settings.length)):
                old = m.buffer[(m.lane.head - filled + n) % capacity]
                s, a, after = old.state, old.action, old.next_state
                v = 0.0
                if plan.plain and not old.terminated:
                    v = expected(plan, features, m, μ, π, after)
                elif not old.terminated:
                    v = next_value(plan, features, m, μ, π, after)
                compute_values(m.θ, features, s, m.q[0])
                q = m.θ[s * features.A : (s + 1) * features.A] if features.table else m.q[0]
                best, _, ties, _ = best_of(q)
                π_a = probability(π, s, q, best, ties, a)
                if plan.greedy:
                    π_a = 1.0 if q[a] == best else 0.0
                q_a = state_value(m.θ, features, s) if features.states else q[a]
                δ = old.reward + settings.gamma * v - q_a
                if not np.isfinite(δ):
                    m.θ[0] = np.nan  # so that all see it
                    return True
                if plan.plain:
                    ok = learn(plan, factors, custom, features, settings, m, kept, discount, s, a, δ, π_a, old.mu)
                else:
                    shift = q_a - ahead if plan.uncorrected and discount > 0.0 else 0.0
                    ok = learns(
                        plan, factors, custom, features, settings, m, kept, discount, s, a, after, δ, shift, π_a, old.mu
                    )  # fmt: skip
                if not ok:
                    return False
                discount, ahead = settings.gamma, v
                if old.terminated or old.truncated:
                    break
            add_up(settings, m)
        return True

    return replay


def otherwise_of(digest):
    """What `loop.observe` does with a step, by itself: the loop is given a pointer to it. For `digest` see `loop.run_of`.

    The loop needs it where δ, or what comes of it, is not that of the paper's Algorithm 1; a loop that is not in a hurry, always.
    """

    def otherwise(
        plan, factors, custom, step, learns, features, settings, behavior, target, m, kept, r, after, terminated
    ):
        """Learn from a step: 0 if all is well, 1 if δ is not finite, 2 if a custom step gave no coefficient."""
        _ = digest
        lane = m.lane
        μ, π = at_present(m.behavior, behavior), at_present(m.target, target)
        v = 0.0 if terminated else next_value(plan, features, m, μ, π, after)
        π_a = lane.greedy if plan.greedy else lane.pi
        δ = r + settings.gamma * v - lane.value
        if not np.isfinite(δ):
            return 1
        shift = lane.value - lane.ahead if plan.uncorrected and lane.discount > 0.0 else 0.0
        if not learns(
            plan, factors, custom, features, settings, m, kept, lane.discount, lane.state, lane.action, after, δ, shift, π_a,
            lane.mu,
        ):  # fmt: skip
            return 2
        if plan.own_step:
            own_step(plan, step, factors, features, settings, m, kept, μ, π, π_a, δ, v, r, after, terminated)
        lane.ahead = v
        return 0

    return otherwise
