"""One compiled loop: a learner acts in an MDP, learns, and is evaluated; seed after seed, until a budget of steps is spent.

A step, with all policies in the Q of this moment:

    a ~ μ(·|s),   s' and r from the MDP,   v = Σ_a' π(a'|s') Q(s', a')         (0 where the episode has ended)
    z ← γβ-rule(z) + ∇q(s, a),     δ = r + γv − q(s, a),     θ ← θ + α δ z        (the paper's Algorithm 1, π in δ)

"offline" sums δz over the episode and adds it at the end; "replay" stores the step and corrects drawn sequences in the same
way; a method with a step of its own does that in place of θ ← θ + α δ z. States have features: q(s, a) =
Σ_j value_j θ[tile_j · A + a], for a table the one tile s with value 1. State values: see `learning`.

What a learner does not need (a form of the eligibility vector, a buffer, a step of the method's own, a given trajectory) is
None in the loop's arguments: Numba leaves out what is done with it, so that each loop is compiled for what it needs.
"""

from __future__ import annotations

import numpy as np

from offtrace.learners.acting import at_present, best_of, choose, level, probability, probability_of
from offtrace.learners.compiling import borrowed, inside, part, seldom
from offtrace.learners.eligibility import add_to, advance, enter, has_room
from offtrace.learners.learning import (
    BAD_COEFFICIENT,
    LEARNED,
    NOT_FINITE,
    action_values,
    add_sums,
    bounds,
    count_visits,
    expected,
    list_weights,
    met,
    own_step,
    sequences,
    set_weights,
    state_ratio,
    state_value,
    step_at,
    take_back,
)
from offtrace.learners.memory import OFFLINE, ONLINE
from offtrace.learners.progress import begin, begin_lane, finish, mark
from offtrace.learners.random import EVALUATION, LEARNING, pick, uniform

DONE, PAUSED, ROOM, BAD, GO_ON, ENDED, OVER = range(7)
"""Why the loop came back: all seeds are done, the budget is spent, arrays must grow, a custom β is no number. And what a step
has led to: nothing in particular, an episode's end, the end of the learner."""


def run(world, task, factors, custom, m, e, buffer, own, out, budget):
    """Continue until all seeds are done, or for so many steps: DONE, PAUSED, ROOM or BAD."""
    world = borrowed(world)
    task = borrowed(task)
    m = borrowed(m)
    e = borrowed(e)
    out = borrowed(out)
    settings, progress, lane = task.settings, m.progress[0], m.lane[0]
    while True:
        if not progress.begun:
            if progress.seed == len(out.seeds):
                return DONE
            begin(settings, m, out.seeds[progress.seed])
            begin_lane(m, e)
        if budget == 0:
            return PAUSED
        if not has_room(e.starts, e.groups, len(m.weights)) or progress.evaluations == len(out.evaluation_step):
            return ROOM
        budget -= 1
        choose_action(task, m, where_it_is(world.recorded, world, m))
        see_what_follows(world.recorded, world, task, m)
        status = observe(task, factors, custom, m, e, buffer, own, out)
        if status == BAD:
            return BAD
        if lane.state < 0 and settings.evaluate_every and progress.episode % settings.evaluate_every == 0:
            out.evaluation_step[progress.evaluations] = progress.step
            out.evaluation_return[progress.evaluations] = evaluation(world, task, m)
            progress.evaluations += 1
        if status == OVER:
            finish(settings, m, out)


@inside
def where_it_is(recorded, world, m):
    """The state in which the lane acts now; −1 − s if an episode begins in s."""
    s, progress = m.lane[0].state, m.progress[0]
    if recorded is not None:
        m.lane[0].chosen = recorded[progress.step].action
        return recorded[progress.step].state if s >= 0 else -1 - recorded[progress.step].state
    return s if s >= 0 else -1 - pick(m.streams, LEARNING, world.start, 0, len(world.start))


@part
def choose_action(task, m, place):
    """a ~ μ(·|s); remember s, a, μ(a|s), π(a|s), q(s, a) or v(s), and whether a is greedy. `place` is as `where_it_is` has it.

    On state values the policies are tables, which do not look at q.
    """
    features, lane, now, q = task.features, m.lane[0], m.now[0], m.q
    s = place if place >= 0 else -1 - place
    lane.step = m.progress[0].step
    if place < 0:
        lane.age, lane.episode = 0, m.progress[0].episode
        lane.gain, lane.total, lane.discount = 1.0, 0.0, 0.0
    behavior, target = task.policies.behavior, task.policies.target
    μ, π = at_present(behavior, lane.episode, lane.step), at_present(target, lane.episode, lane.step)
    lane.alpha = level(task.settings.alpha, lane.episode, lane.step)
    action_values(m.θ, features, s, q)
    best, _, ties, _ = best_of(q)
    a = lane.chosen
    if a < 0:
        a = choose(uniform(m.streams, LEARNING), μ, behavior.table, s, q)
    lane.state, lane.chosen = s, -1
    now.state, now.action = s, a
    now.mu = probability(μ, behavior.table, s, q, best, ties, a)
    lane.pi = probability(π, target.table, s, q, best, ties, a)
    lane.value, lane.greedy = q[a], 1.0 if q[a] == best else 0.0
    if features.states:
        lane.value = state_value(m.θ, features, s)
    return a


@inside
def see_what_follows(recorded, world, task, m):
    """s', r, and whether the episode ends there."""
    now, lane, step = m.now[0], m.lane[0], m.progress[0].step
    if recorded is not None:
        given = recorded[step]
        now.next_state, now.reward = given.next_state, given.reward
        now.terminated, now.truncated = given.terminated, given.truncated
        if step + 1 < len(recorded) and not (now.terminated or now.truncated):
            lane.chosen = recorded[step + 1].action
    else:
        now.next_state, now.reward = transition(world, m.streams, LEARNING, now.state, now.action, task.features.A)
        now.terminated = world.ends[now.next_state]
        now.truncated = lane.age + 1 == task.settings.limit and not now.terminated


@inside
def transition(world, streams, stream, s, a, A):
    """(s', r) of one step in the MDP."""
    row = s * A + a
    j = pick(streams, stream, world.P, world.indptr[row], world.indptr[row + 1])
    return world.to[j], world.of_entry[j] if len(world.of_entry) else world.R[row]


@part
def observe(task, factors, custom, m, e, buffer, own, out):
    """Learn from the step that the lane has taken: GO_ON, ENDED, OVER or BAD."""
    features, settings, plan, target, A = task.features, task.settings, task.plan, task.policies.target, task.features.A
    lane, progress, states = m.lane[0], m.progress[0], task.features.states
    out.largest[progress.seed] = max(out.largest[progress.seed], abs(m.now[0].reward))
    progress.step += 1
    lane.age += 1
    found = LEARNED
    for _ in range(sequences(buffer, (settings.every, settings.batch), lane, m.now)):
        first, last = bounds(buffer, settings.length, lane, m.streams)
        for i in range(first, last):
            now = step_at(buffer, lane, m.now, i)
            s, a, pair = now.state, now.action, now.state if states else now.state * A + now.action
            π, q, discount = lane.greedy if plan.greedy else lane.pi, lane.value, lane.discount
            if buffer is not None:  # both are those of now
                action_values(m.θ, features, s, m.q)
                π = probability_of(at_present(target, lane.episode, lane.step), target.table, s, m.q, a, plan.greedy)
                q, discount = state_value(m.θ, features, s) if states else m.q[a], settings.gamma if i > first else 0.0

            # δ = r + γ v(s') − q(s, a)
            v = 0.0
            if states and not now.terminated:
                v = state_value(m.θ, features, now.next_state)
            elif not now.terminated:
                action_values(m.θ, features, now.next_state, m.q_next)
                v = expected(plan, task.policies.behavior, target, lane, m.streams, now.next_state, m.q_next)
            δ = now.reward + settings.gamma * v - q
            if not np.isfinite(δ):
                found = NOT_FINITE
                break
            shift = q - lane.bootstrap if plan.uncorrected and discount > 0.0 else 0.0
            lane.bootstrap = v

            # z ← γβ-rule(z) + ∇q(s, a),   θ ← θ + α δ z
            set_weights(features.tile, m.weights, s, a, 0 if states else A)
            if plan.history:
                plan.first[0], plan.first[1] = (np.nan, np.nan) if states else (π, now.mu)
            ratio = state_ratio(plan.bound, plan.share, π, now.mu) if states else 1.0
            if own is None:
                π_met, μ_met, place = met(states, plan.tells_pair, lane, s, pair, π, now.mu)
                has_coefficients = advance(
                    factors, custom, e.vector, e.starts, e.groups, plan.numbers, discount, π_met, μ_met, place
                )
                enter(e.vector, e.starts, e.groups, plan.first, m.weights, features.value, s, pair)
                lane.π_before, lane.μ_before, lane.pair_before = π, now.mu, s * A + a
                if settings.by_visits:
                    count_visits(m.weights, m.N, m.sizes)
                size, sized = (lane.alpha, settings.by_visits) if settings.update == ONLINE else (1.0, False)
                if settings.update != ONLINE:
                    list_weights(m.weights, m.summed)
                add_to(m.changed, size * (δ * ratio + shift), m.sizes, sized, e.vector, e.starts, e.groups)
                if shift != 0.0:
                    take_back(m.changed, size * shift, m.sizes, sized, m.weights, features.value, s)
            else:
                has_coefficients = own_step(own, task, factors, custom, m, e, discount, (δ, v, π, ratio))
            if not has_coefficients:
                found = BAD_COEFFICIENT
            if not has_coefficients or now.terminated or now.truncated:
                break
        if found != LEARNED:
            break
        if buffer is not None:
            add_sums(settings, m)
    if found == BAD_COEFFICIENT:
        return BAD
    if found == NOT_FINITE:
        m.θ[0] = np.nan  # so that all see it
    return conclude(features, settings, m, out, found)


@part
def conclude(features, settings, m, out, found):
    """What remains of a step: GO_ON, ENDED, OVER or BAD."""
    lane, progress, now = m.lane[0], m.progress[0], m.now[0]
    lane.discount = settings.gamma
    lane.total += lane.gain * now.reward
    lane.gain *= settings.gamma
    ends = now.terminated or now.truncated
    lane.state = -1 if ends else now.next_state
    if ends:
        lane.chosen = -1
        progress.episode += 1
        progress.returns += lane.total
        progress.finished += 1.0
    over = progress.step == settings.steps or (settings.episodes > 0 and progress.episode == settings.episodes)
    if settings.update == OFFLINE and (ends or over):
        add_sums(settings, m)
    clock = progress.episode if settings.episodes else progress.step
    if progress.mark < len(settings.marks) and clock == settings.marks[progress.mark]:
        mark(features, settings, m, out)
    return OVER if over or found == NOT_FINITE else ENDED if ends else GO_ON


@seldom
def evaluation(world, task, m):
    """The return of an evaluation episode; one that has hit the limit continues the next time from where it was."""
    world, task, m = borrowed((world, task, m))
    features, progress, policy, q = task.features, m.progress[0], task.policies.evaluation, m.q
    π = at_present(policy, progress.episode - 1, progress.step)
    s, total, gain = progress.evaluation_state, 0.0, 1.0
    if s < 0:
        s = pick(m.streams, EVALUATION, world.start, 0, len(world.start))
    for _ in range(task.settings.evaluation_limit):
        action_values(m.θ, features, s, q)
        a = choose(uniform(m.streams, EVALUATION), π, policy.table, s, q)
        s, r = transition(world, m.streams, EVALUATION, s, a, features.A)
        total += gain * r
        gain *= task.settings.gamma
        if world.ends[s]:
            s = -1
            break
    progress.evaluation_state = s
    return total
