"""One compiled loop: a learner acts in an MDP, learns, and is looked at; seed after seed, until a budget of steps is spent.

A step, with all policies in the Q of this moment:

    a ~ μ(·|s),   s' and r from the MDP,   v = Σ_a' π(a'|s') Q(s', a')         (0 where the episode has ended)
    z ← γβ-rule(z) + ∇q(s, a),     δ = r + γv − q(s, a),     θ ← θ + α δ z        (the paper's Algorithm 1, π in δ)

"offline" sums δz over the episode and adds it at the end; "replay" stores the step and corrects drawn sequences in the same
way; a method with a step of its own does that in place of θ ← θ + α δ z. States have features: q(s, a) =
Σ_j value_j θ[tile_j · A + a], for a table the one tile s with value 1.

On state values v(s) = Σ_j value_j θ[tile_j], the start's own action acts and δ carries a ratio:

    z ← z + ∇v(s),     θ ← θ + α ρ δ z,     z ← γβ-rule(z) with the action just taken

The rule, the method's own step and what only some learners do come as pointers to compiled functions: one loop serves all of
them, and what is not needed is not compiled. It also follows a recorded
trajectory, whose steps then stand in the place of the MDP's.
"""

from __future__ import annotations

import numpy as np

from offtrace.learners.core import random_numbers
from offtrace.learners.core.acting import at_present, best_of, choose, level, probability, set_level
from offtrace.learners.core.compiling import inlined, merged, seldom
from offtrace.learners.core.eligibility.kept import clear, has_room
from offtrace.learners.core.learning import (
    add_up,
    compute_values,
    expected,
    learn,
    remember,
    state_value,
)
from offtrace.learners.core.loop_settings import OFFLINE, REPLAY
from offtrace.learners.core.pointed import of_lane
from offtrace.learners.core.random_numbers import LIVING, LOOKING, normal, pick, uniform

DONE, PAUSED, ROOM, BAD, GO_ON, ENDED, OVER = range(7)
"""Why the loop came back: all seeds are done, the budget is spent, arrays must grow, a custom β is no number. And what a step
has led to: nothing in particular, an episode's end, the end of the learner."""


@inlined
def leave(world, streams, stream, s, a, A):
    """(s', r) of one step in the MDP."""
    z = s * A + a
    j = pick(streams, stream, world.P, world.indptr[z], world.indptr[z + 1])
    return world.to[j], world.of_entry[j] if len(world.of_entry) else world.R[z]


@inlined
def look(world, features, settings, policy, m):
    """The return of an evaluation episode; one that has hit the limit goes on the next time from where it was."""
    set_level(policy, features.A, m.progress.episode - 1, m.progress.step, m.looking)
    π = at_present(m.looking, policy)
    s, total, gain = m.progress.look_state, 0.0, 1.0
    if s < 0:
        s = pick(m.streams, LOOKING, world.start, 0, len(world.start))
    for _ in range(settings.look_limit):
        compute_values(m.θ, features, s, m.q[0])
        q = m.θ[s * features.A : (s + 1) * features.A] if features.table else m.q[0]
        best, arg, ties, _ = best_of(q)
        a = choose(uniform(m.streams, LOOKING), π, s, q, best, arg, ties)
        s, r = leave(world, m.streams, LOOKING, s, a, features.A)
        total += gain * r
        gain *= settings.gamma
        if world.ends[s]:
            s = -1
            break
    m.progress.look_state = s
    return total


@seldom
def begin(settings, m, seed):
    """A new learner. `begin_lane` does the rest, for each lane."""
    random_numbers.start(seed, m.streams)
    p = m.progress
    p.begun, p.step, p.episode, p.mark, p.look_state = 1, 0, 0, 0, -1
    p.returns, p.finished = 0.0, 0.0
    for w in range(len(m.N)):
        m.N[w] = 0.0
    for i in range(len(m.further)):
        for w in range(len(m.θ)):
            m.further[i, w] = 0.0
    for w in range(len(m.θ)):
        m.θ[w] = settings.first[w]
        if settings.spread > 0.0:
            m.θ[w] += settings.spread * normal(m.streams, LIVING)


@seldom
def begin_lane(m, kept):
    """A lane of a new learner."""
    lane = m.lane
    lane.state, lane.action, lane.age, lane.touched = -1, 0, 0, 0
    lane.head, lane.filled, lane.since, lane.chosen, lane.tidy = 0, 0, 0, -1, 64
    lane.discount, lane.gain, lane.total, lane.alpha = 0.0, 0.0, 0.0, 0.0
    lane.pi, lane.mu, lane.value, lane.ahead, lane.greedy = 0.0, 0.0, 0.0, 0.0, 0.0
    for w in range(len(m.U)):
        m.U[w] = 0.0
    for w in range(len(m.is_touched)):
        m.is_touched[w] = False
    for i in range(len(m.traces)):
        for w in range(len(m.θ)):
            m.traces[i, w] = 0.0
    clear(kept)


@seldom
def mark(features, settings, m, out):
    """One point of the curve."""
    n, i, total = m.progress.seed, m.progress.mark, 0.0
    if len(settings.truth) and features.states:
        for s in settings.judged:
            total += (state_value(m.θ, features, s) - settings.truth[s, 0]) ** 2
        total = np.sqrt(total / len(settings.judged))
        out.error[n, i] = total if total >= 0.0 else np.inf
    elif len(settings.truth):
        for s in settings.judged:
            compute_values(m.θ, features, s, m.q[0])
            q = m.θ[s * features.A : (s + 1) * features.A] if features.table else m.q[0]
            for a in range(features.A):
                total += (q[a] - settings.truth[s, a]) ** 2
        total = np.sqrt(total / (len(settings.judged) * features.A))
        out.error[n, i] = total if total >= 0.0 else np.inf
    out.returns[n, i] = m.progress.returns / m.progress.finished if m.progress.finished else np.nan
    out.at[n, i] = m.progress.step
    if out.snapshots.shape[1]:
        for w in range(len(m.θ)):
            out.snapshots[n, i, w] = m.θ[w]
    m.progress.returns, m.progress.finished = 0.0, 0.0
    m.progress.mark = i + 1


@inlined
def set_levels(behavior, target, settings, A, m):
    """Set the policies and the step size to those of this episode and step."""
    set_level(behavior, A, m.progress.episode, m.progress.step, m.behavior)
    set_level(target, A, m.progress.episode, m.progress.step, m.target)
    m.lane.alpha = level(settings.alpha, m.progress.episode, m.progress.step)


@merged
def act(features, behavior, target, settings, m, s, begins):
    """Choose an action in s, and remember s, a, μ(a|s), π(a|s), q(s, a) or v(s), and whether a is greedy.

    `begins`: an episode begins in s. On state values the policies are tables, which do not look at q.
    """
    if begins:
        m.lane.age = 0
        m.lane.gain, m.lane.total, m.lane.discount = 1.0, 0.0, 0.0
    if begins or behavior.level.by_step or target.level.by_step or settings.alpha.by_step:
        set_levels(behavior, target, settings, features.A, m)
    μ, π = at_present(m.behavior, behavior), at_present(m.target, target)
    compute_values(m.θ, features, s, m.q[0])
    q = m.θ[s * features.A : (s + 1) * features.A] if features.table else m.q[0]
    best, arg, ties, _ = best_of(q)
    a = m.lane.chosen
    if a < 0:
        a = choose(uniform(m.streams, LIVING), μ, s, q, best, arg, ties)
    else:
        m.lane.chosen = -1
    m.lane.state, m.lane.action = s, a
    m.lane.mu, m.lane.pi = probability(μ, s, q, best, ties, a), probability(π, s, q, best, ties, a)
    m.lane.value, m.lane.greedy = q[a], 1.0 if q[a] == best else 0.0
    if features.states:
        m.lane.value = state_value(m.θ, features, s)
    return a


@merged
def note(m, out, s, a, r, after, terminated, truncated, settings):
    """Count a step, and remember it where there is a buffer. Whether sequences are to be drawn from that now."""
    out.largest[m.progress.seed] = max(out.largest[m.progress.seed], abs(r))
    m.progress.step += 1
    m.lane.age += 1
    if settings.update != REPLAY:
        return False
    remember(m, s, a, after, r, m.lane.mu, terminated, truncated)
    m.lane.since += 1
    if m.lane.since < settings.every:
        return False
    m.lane.since = 0
    return True


@merged
def conclude(features, settings, m, out, r, after, terminated, truncated, bad):
    """What remains of a step when the learner has learned from it, or has not been able to: GO_ON, ENDED, OVER or BAD."""
    if bad == 2:
        return BAD
    if bad == 1:
        m.θ[0] = np.nan  # so that all see it
    over = bad == 1 or (settings.update == REPLAY and np.isnan(m.θ[0]))
    m.lane.discount = settings.gamma
    m.lane.total += m.lane.gain * r
    m.lane.gain *= settings.gamma
    m.lane.state = after
    if terminated or truncated:
        m.lane.state, m.lane.chosen = -1, -1
        m.progress.episode += 1
        m.progress.returns += m.lane.total
        m.progress.finished += 1.0
        if settings.update == OFFLINE:
            add_up(settings, m)
    if m.progress.step == settings.steps or (settings.episodes > 0 and m.progress.episode == settings.episodes):
        over = True
        if settings.update == OFFLINE:
            add_up(settings, m)
    clock = m.progress.episode if settings.episodes else m.progress.step
    if m.progress.mark < len(settings.marks) and clock == settings.marks[m.progress.mark]:
        mark(features, settings, m, out)
    return OVER if over else ENDED if terminated or truncated else GO_ON


@merged
def observe(
    features, plan, factors, custom, step, learns, replay, otherwise, behavior, target, settings, m, kept, out,
    r, after, terminated, truncated,
):  # fmt: skip
    """Learn from the action just taken, which led to `after`: GO_ON, ENDED, OVER or BAD."""
    s, a, bad = m.lane.state, m.lane.action, 0
    draw = note(m, out, s, a, r, after, terminated, truncated, settings)
    if settings.update == REPLAY:
        if draw and not replay(plan, factors, custom, learns, features, settings, behavior, target, m, kept):
            bad = 2
    elif plan.plain:
        μ, π = at_present(m.behavior, behavior), at_present(m.target, target)
        v = 0.0 if terminated else expected(plan, features, m, μ, π, after)
        π_a = m.lane.greedy if plan.greedy else m.lane.pi
        δ = r + settings.gamma * v - m.lane.value
        if not np.isfinite(δ):
            bad = 1
        elif not learn(plan, factors, custom, features, settings, m, kept, m.lane.discount, s, a, δ, π_a, m.lane.mu):
            bad = 2
    else:
        bad = otherwise(
            plan, factors, custom, step, learns, features, settings, behavior, target, m, kept, r, after, terminated
        )
    return conclude(features, settings, m, out, r, after, terminated, truncated, bad)


@seldom
def all_finite(θ):
    """Whether no weight is NaN or infinite."""
    for x in θ:  # noqa: SIM110
        if not np.isfinite(x):
            return False
    return True


@seldom
def finish(settings, m, out, diverged):
    """Keep what came of a learner."""
    n = m.progress.seed
    if diverged:
        m.θ[:] = np.nan
        for i in range(m.progress.mark, len(settings.marks)):
            out.error[n, i], out.returns[n, i], out.at[n, i] = np.inf, np.nan, m.progress.step
    for w in range(len(m.θ)):
        out.θ[n, w] = m.θ[w]
    out.steps[n], out.episodes[n], out.look_stop[n] = m.progress.step, m.progress.episode, m.progress.looks
    m.progress.seed += 1
    m.progress.begun = 0


def run_of(digest):
    """The loop. It closes over a digest of the code, by which Numba knows whether what is on disk is this very loop."""

    def run(
        world, features, plan, factors, custom, step, learns, replay, otherwise, behavior, target, looking, settings, ms, ks, out,
        budget,
    ):  # fmt: skip
        """Go on until all seeds are done, or for so many steps: DONE, PAUSED, ROOM or BAD."""
        _ = digest
        m, kept, A = of_lane(ms, 0), of_lane(ks, 0), features.A
        progress, lane = m.progress, m.lane
        while True:
            if not progress.begun:
                if progress.seed == len(out.seeds):
                    return DONE
                begin(settings, m, out.seeds[progress.seed])
                begin_lane(m, kept)
            if budget == 0:
                return PAUSED
            if not has_room(plan.way, kept) or progress.looks == len(out.look_step):
                return ROOM
            budget -= 1
            s, begins = lane.state, lane.state < 0
            if len(world.recorded):
                s, lane.chosen = world.recorded[progress.step].state, world.recorded[progress.step].action
            elif begins:
                s = pick(m.streams, LIVING, world.start, 0, len(world.start))
            a = act(features, behavior, target, settings, m, s, begins)
            if len(world.recorded):
                now = world.recorded[progress.step]
                after, r, terminated, truncated = now.next_state, now.reward, now.terminated != 0, now.truncated != 0
                if progress.step + 1 < len(world.recorded) and not (terminated or truncated):
                    lane.chosen = world.recorded[progress.step + 1].action
            else:
                after, r = leave(world, m.streams, LIVING, s, a, A)
                terminated = world.ends[after]
                truncated = lane.age + 1 == settings.limit and not terminated
            status = observe(
                features, plan, factors, custom, step, learns, replay, otherwise, behavior, target, settings, m, kept, out,
                r, after, terminated, truncated,
            )  # fmt: skip
            if status == GO_ON:
                continue
            if status == BAD:
                return BAD
            if lane.state < 0 and settings.look_every and progress.episode % settings.look_every == 0:
                out.look_step[progress.looks] = progress.step
                out.look_return[progress.looks] = look(world, features, settings, looking, m)
                progress.looks += 1
            if status == OVER:
                finish(settings, m, out, not all_finite(m.θ))

    return run
