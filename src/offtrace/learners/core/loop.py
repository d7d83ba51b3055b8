"""One compiled loop: a learner acts in an MDP, learns, and is looked at; seed after seed, until a budget of steps is spent.

A step, with all policies in the Q of this moment:

    a ~ μ(·|s),   s' and r from the MDP,   v = Σ_a' π(a'|s') Q(s', a')         (0 where the episode has ended)
    z ← γβ-rule(z) + ∇q(s, a),     δ = r + γv − q(s, a),     θ ← θ + α δ z        (the paper's Algorithm 1, π in δ)

"offline" sums δz over the episode and adds it at the end; "replay" stores the step and corrects drawn sequences in the same
way. States have features: q(s, a) = Σ_j value_j θ[tile_j · A + a], for a table the one tile s with value 1.

Everything is kept in arrays between calls, so that a run can be cut anywhere, saved and gone on with. The rule comes as a
pointer to a compiled function: one loop serves all of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from offtrace.learners.core import random_numbers
from offtrace.learners.core.compiling import contracted, inlined, merged, seldom
from offtrace.learners.core.eligibility import (
    GATHERED,
    LINEAR,
    advance_groups,
    advance_linear,
    advance_products,
    advance_steps,
    apply,
    clear,
    drop_visits,
    enter,
    has_room,
)
from offtrace.learners.core.random_numbers import LIVING, LOOKING, normal, pick, uniform
from offtrace.learners.methods.gq import correct
from offtrace.learners.policies import at_present, best_of, choose, level, probability, set_level, value

ONLINE, OFFLINE, REPLAY = 0, 1, 2
DONE, PAUSED, ROOM, BAD, GO_ON, ENDED, OVER = range(7)
"""Why the loop came back: all seeds are done, the budget is spent, arrays must grow, a custom β is no number. And what a step
has led to: nothing in particular, an episode's end, the end of the learner."""


class World(NamedTuple):
    """The MDP. P, start are cumulated over each row; an empty `of_entry` means rewards R(s, a)."""

    P: np.ndarray
    indptr: np.ndarray
    to: np.ndarray
    start: np.ndarray
    ends: np.ndarray
    R: np.ndarray
    of_entry: np.ndarray


class Features(NamedTuple):
    """q(s, a) = Σ_j value[s, j] θ[tile[s, j] · A + a]."""

    A: int
    table: bool
    """Whether tile[s] is s and value[s] is 1, so that θ holds q(s, ·) as it stands."""
    tile: np.ndarray
    value: np.ndarray


class Plan(NamedTuple):
    """The trace."""

    way: int
    custom: bool
    recursive: bool
    share: float
    """The policy of δ is share·π + (1 − share)·μ: see `Trace.target_share`."""
    greedy: bool
    """Whether the rule reads π of the greedy policy: see `Rule.needs_greedy`."""
    reach: int
    """The horizon."""
    forget: float
    """A start that has less weight than this, of discounts and decays, is dropped."""
    log_forget: tuple[float, float]
    lags: np.ndarray
    parameters: np.ndarray
    """[1, n], or [pairs, n] where they differ from pair to pair."""
    lam: float
    """Of a custom step, or of GQ."""
    first: np.ndarray
    """What the rule keeps of a new start."""
    history: bool
    """What it keeps of it is π and μ there."""
    second: float
    """GQ's step size of w; 0 for all others."""


class Settings(NamedTuple):
    """What to do, and for how long."""

    update: int
    steps: int
    """0: no end."""
    episodes: int
    """0: no end."""
    limit: int
    """Of an episode; 0: none."""
    gamma: float
    alpha: np.ndarray
    """The coded schedule of α."""
    by_visits: bool
    """α / N(s, a)."""
    first: np.ndarray
    """[size] of the first θ."""
    spread: float
    """The standard deviation of what is added to it."""
    marks: np.ndarray
    """When the curve has its points, in steps or, if the end is in episodes, in those."""
    truth: np.ndarray
    """[S, A]; empty if it is not known."""
    judged: np.ndarray
    """The states over which the error is taken."""
    look_every: int
    """An evaluation episode after each so many episodes; 0: never."""
    look_limit: int
    every: int
    """Sequences are drawn each so many steps."""
    batch: int
    length: int


class Memory(NamedTuple):
    """One learner."""

    i: np.ndarray
    """Integers: see below."""
    f: np.ndarray
    """Numbers: see below."""
    streams: np.ndarray
    """[2]: random numbers."""
    θ: np.ndarray
    """[size]: the weights."""
    U: np.ndarray
    """[size]: what an episode has added up (offline, replay)."""
    dirty: np.ndarray
    """[size]: which of them, in the order of their first visit."""
    is_dirty: np.ndarray
    """[size]: whether they are among those."""
    sizes: np.ndarray
    """[size]: 1 / N, if step sizes are by visits; else empty."""
    N: np.ndarray
    """[size]: visits."""
    now: np.ndarray
    """[3, 4]: the policies of this moment: behaviour, target, evaluation."""
    q: np.ndarray
    """[2, A]: room for the values of s and s'."""
    weights: np.ndarray
    """[k]: room for the weights of (s, a)."""
    buffer: np.ndarray
    """[capacity, 4]: reward, μ, and 1 where the episode terminated, 1 where it was truncated."""
    moves: np.ndarray
    """[capacity, 3]: state, action, next state."""
    w: np.ndarray
    """[size]: GQ's second weights; empty for all others."""


# Memory.i
SEED, BEGUN, STATE, AGE, T, E, MARK, LOOK_STATE, LOOKS, DIRTY, HEAD, FILLED, ACTION, SINCE = range(14)
# Memory.f
DISCOUNT, GAIN, RETURN, RETURNS, FINISHED, ALPHA, PI, MU, VALUE, GREEDILY = range(10)


def memory(size: int, A: int, k: int, by_visits: bool, update: int, capacity: int, second: bool) -> Memory:
    """Empty."""
    some = 0 if update == ONLINE else size
    ring = capacity if update == REPLAY else 0
    return Memory(
        i=np.zeros(14, np.int64),
        f=np.zeros(10),
        streams=np.zeros(2, np.uint64),
        θ=np.zeros(size),
        U=np.zeros(some),
        dirty=np.zeros(some, np.int64),
        is_dirty=np.zeros(some, np.bool_),
        sizes=np.ones(size if by_visits else 0),
        N=np.zeros(size if by_visits else 0),
        now=np.zeros((3, 4)),
        q=np.zeros((2, A)),
        weights=np.zeros(k, np.int64),
        buffer=np.zeros((ring, 4)),
        moves=np.zeros((ring, 3), np.int64),
        w=np.zeros(size if second else 0),
    )


class Out(NamedTuple):
    """What comes of a block of seeds."""

    seeds: np.ndarray
    """[n] unsigned."""
    θ: np.ndarray
    """[n, size]: NaN where a learner diverged."""
    steps: np.ndarray
    """[n]: how many steps each took."""
    episodes: np.ndarray
    """[n]: how many episodes each finished."""
    largest: np.ndarray
    """[n]: the largest |reward| that each has seen."""
    error: np.ndarray
    """[n, points]: root mean square of Q − truth."""
    returns: np.ndarray
    """[n, points]: mean return of the training episodes that ended since the last point; NaN where none did."""
    at: np.ndarray
    """[n, points]: the steps taken until then."""
    look_step: np.ndarray
    """[room]: when the evaluation episodes of all seeds, one after another, took place."""
    look_return: np.ndarray
    """[room]: their returns."""
    look_stop: np.ndarray
    """[n]: where those of each seed end."""


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


@merged
def carry_on(plan, factors, custom, kept, discount, π, μ, pair):
    """Take the older starts from the last step to this one. False if a custom step gave no coefficient."""
    if discount == 0.0:
        clear(kept)
        return True
    ρ = π / μ
    if plan.custom:
        drop_visits(kept, plan.reach, plan.forget)
        return advance_steps(kept, custom, discount, π, μ, ρ, plan.lam, pair)
    decay, ratio, cap = factors(π, μ, ρ, plan.parameters[pair if len(plan.parameters) > 1 else 0])
    if plan.way == LINEAR:
        advance_linear(kept, discount, decay, ratio)
    elif kept.n[GATHERED]:
        advance_groups(kept, discount, decay, ratio, cap, plan.log_forget)
    else:
        drop_visits(kept, plan.reach, plan.forget)
        advance_products(kept, discount, decay, ratio, cap, plan.recursive, plan.lags)
    return True


@merged
def learn(plan, factors, custom, features, settings, m, kept, discount, s, a, δ, π, μ):
    """One step of Algorithm 1 on θ, or on U. False if a custom step gave no coefficient."""
    A, pair, k = features.A, s * features.A + a, len(m.weights)
    ok = carry_on(plan, factors, custom, kept, discount, π, μ, pair)
    for j in range(k):
        m.weights[j] = features.tile[s, j] * A + a
    if plan.history:
        plan.first[0], plan.first[1] = π, μ
    enter(plan.way, kept, m.weights, features.value[s], plan.first, pair)
    if settings.by_visits:
        for w in m.weights:
            m.N[w] += 1.0
            m.sizes[w] = 1.0 / m.N[w]
    if settings.update == ONLINE:
        apply(plan.way, kept, m.f[ALPHA] * δ, m.sizes, m.θ)
        return ok
    for w in m.weights:
        if not m.is_dirty[w]:
            m.is_dirty[w] = True
            m.dirty[m.i[DIRTY]] = w
            m.i[DIRTY] += 1
    apply(plan.way, kept, δ, m.sizes[:0], m.U)
    return ok


@seldom
def add_up(settings, m):
    """θ ← θ + α U, and U is 0 again."""
    for n in range(m.i[DIRTY]):
        w = m.dirty[n]
        m.θ[w] += m.f[ALPHA] * m.U[w] * (m.sizes[w] if settings.by_visits else 1.0)
        m.U[w] = 0.0
        m.is_dirty[w] = False
    m.i[DIRTY] = 0


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


@seldom
def replay(plan, factors, custom, features, settings, μ, π, m, kept):
    """Draw sequences, correct each by its Δ at the present Q, and learn from it."""
    filled, capacity = m.i[FILLED], len(m.moves)
    for _ in range(settings.batch):
        first = min(int(uniform(m.streams, LIVING) * filled), filled - 1)
        discount = 0.0
        for n in range(first, min(filled, first + settings.length)):
            at = (m.i[HEAD] - filled + n) % capacity
            s, a, after = m.moves[at]
            r, μ_a, terminated, truncated = m.buffer[at]
            v = 0.0 if terminated else expected(plan, features, m, μ, π, after)
            compute_values(m.θ, features, s, m.q[0])
            q = m.θ[s * features.A : (s + 1) * features.A] if features.table else m.q[0]
            best, _, ties, _ = best_of(q)
            π_a = probability(π, s, q, best, ties, a)
            if plan.greedy:
                π_a = 1.0 if q[a] == best else 0.0
            δ = r + settings.gamma * v - q[a]
            if not np.isfinite(δ):
                m.θ[0] = np.nan  # so that all see it
                return True
            if not learn(plan, factors, custom, features, settings, m, kept, discount, s, a, δ, π_a, μ_a):
                return False
            discount = settings.gamma
            if terminated or truncated:
                break
        add_up(settings, m)
    return True


@inlined
def remember(m, s, a, after, r, μ, terminated, truncated):
    """Into the ring, over the oldest."""
    at = m.i[HEAD]
    m.moves[at, 0], m.moves[at, 1], m.moves[at, 2] = s, a, after
    m.buffer[at, 0], m.buffer[at, 1], m.buffer[at, 2], m.buffer[at, 3] = r, μ, terminated, truncated
    m.i[HEAD] = (at + 1) % len(m.moves)
    m.i[FILLED] = min(m.i[FILLED] + 1, len(m.moves))


@inlined
def leave(world, streams, stream, s, a, A):
    """(s', r) of one step in the MDP."""
    z = s * A + a
    j = pick(streams, stream, world.P, world.indptr[z], world.indptr[z + 1])
    return world.to[j], world.of_entry[j] if len(world.of_entry) else world.R[z]


@inlined
def look(world, features, settings, policy, m):
    """The return of an evaluation episode; one that has hit the limit goes on the next time from where it was."""
    set_level(policy, features.A, m.i[E] - 1, m.i[T], m.now[2])
    π = at_present(m.now[2], policy)
    s, total, gain = m.i[LOOK_STATE], 0.0, 1.0
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
    m.i[LOOK_STATE] = s
    return total


@seldom
def begin(settings, m, seed):
    """A new learner."""
    random_numbers.start(seed, m.streams)
    at = m.i[SEED], m.i[LOOKS]
    for i in range(len(m.i)):
        m.i[i] = 0
    for i in range(len(m.f)):
        m.f[i] = 0.0
    m.i[SEED], m.i[LOOKS] = at
    m.i[BEGUN], m.i[STATE], m.i[LOOK_STATE] = 1, -1, -1
    for w in range(len(m.N)):
        m.N[w] = 0.0
    for w in range(len(m.w)):
        m.w[w] = 0.0
    for w in range(len(m.U)):
        m.U[w], m.is_dirty[w] = 0.0, False
    for w in range(len(m.θ)):
        m.θ[w] = settings.first[w]
        if settings.spread > 0.0:
            m.θ[w] += settings.spread * normal(m.streams, LIVING)


@seldom
def mark(features, settings, m, out):
    """One point of the curve."""
    n, i, total = m.i[SEED], m.i[MARK], 0.0
    if len(settings.truth):
        for s in settings.judged:
            compute_values(m.θ, features, s, m.q[0])
            q = m.θ[s * features.A : (s + 1) * features.A] if features.table else m.q[0]
            for a in range(features.A):
                total += (q[a] - settings.truth[s, a]) ** 2
        total = np.sqrt(total / (len(settings.judged) * features.A))
        out.error[n, i] = total if total >= 0.0 else np.inf
    out.returns[n, i] = m.f[RETURNS] / m.f[FINISHED] if m.f[FINISHED] else np.nan
    out.at[n, i] = m.i[T]
    m.f[RETURNS], m.f[FINISHED] = 0.0, 0.0
    m.i[MARK] = i + 1


@inlined
def set_levels(behavior, target, settings, A, m):
    """Policies and step size of this episode and step."""
    set_level(behavior, A, m.i[E], m.i[T], m.now[0])
    set_level(target, A, m.i[E], m.i[T], m.now[1])
    m.f[ALPHA] = level(settings.alpha, m.i[E], m.i[T])


@merged
def act(features, behavior, target, settings, m, s, begins):
    """Choose an action in s, and remember s, a, μ(a|s), π(a|s), q(s, a), and whether a is greedy.

    `begins`: an episode begins in s.
    """
    if begins:
        m.i[AGE] = 0
        m.f[GAIN], m.f[RETURN], m.f[DISCOUNT] = 1.0, 0.0, 0.0
    if begins or behavior.level[4] or target.level[4] or settings.alpha[4]:
        set_levels(behavior, target, settings, features.A, m)
    μ, π = at_present(m.now[0], behavior), at_present(m.now[1], target)
    compute_values(m.θ, features, s, m.q[0])
    q = m.θ[s * features.A : (s + 1) * features.A] if features.table else m.q[0]
    best, arg, ties, _ = best_of(q)
    a = choose(uniform(m.streams, LIVING), μ, s, q, best, arg, ties)
    m.i[STATE], m.i[ACTION] = s, a
    m.f[MU], m.f[PI] = probability(μ, s, q, best, ties, a), probability(π, s, q, best, ties, a)
    m.f[VALUE], m.f[GREEDILY] = q[a], 1.0 if q[a] == best else 0.0
    return a


@merged
def observe(features, plan, factors, custom, behavior, target, settings, m, kept, out, r, after, terminated, truncated):
    """Learn from the action just taken, which led to `after`: GO_ON, ENDED, OVER or BAD."""
    γ, s, a = settings.gamma, m.i[STATE], m.i[ACTION]
    μ, π = at_present(m.now[0], behavior), at_present(m.now[1], target)
    over = False
    out.largest[m.i[SEED]] = max(out.largest[m.i[SEED]], abs(r))
    m.i[T] += 1
    m.i[AGE] += 1
    if settings.update == REPLAY:
        remember(m, s, a, after, r, m.f[MU], terminated, truncated)
        m.i[SINCE] += 1
        if m.i[SINCE] == settings.every:
            m.i[SINCE] = 0
            if not replay(plan, factors, custom, features, settings, μ, π, m, kept):
                return BAD
        over = np.isnan(m.θ[0])
    else:
        v = 0.0 if terminated else expected(plan, features, m, μ, π, after)
        π_a = m.f[GREEDILY] if plan.greedy else m.f[PI]
        δ = r + γ * v - m.f[VALUE]
        if not np.isfinite(δ):
            m.θ[0] = np.nan  # so that all see it
            over = True
        elif not learn(plan, factors, custom, features, settings, m, kept, m.f[DISCOUNT], s, a, δ, π_a, m.f[MU]):
            return BAD
        elif plan.second > 0.0:
            correct(plan, features, γ, m, kept, π, m.f[ALPHA], δ, s, a, after, terminated)
        m.f[DISCOUNT] = γ
    m.f[RETURN] += m.f[GAIN] * r
    m.f[GAIN] *= γ
    m.i[STATE] = after
    if terminated or truncated:
        m.i[STATE] = -1
        m.i[E] += 1
        m.f[RETURNS] += m.f[RETURN]
        m.f[FINISHED] += 1.0
        if settings.update == OFFLINE:
            add_up(settings, m)
    if m.i[T] == settings.steps or (settings.episodes > 0 and m.i[E] == settings.episodes):
        over = True
        if settings.update == OFFLINE:
            add_up(settings, m)
    clock = m.i[E] if settings.episodes else m.i[T]
    if m.i[MARK] < len(settings.marks) and clock == settings.marks[m.i[MARK]]:
        mark(features, settings, m, out)
    return OVER if over else ENDED if terminated or truncated else GO_ON


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
    n = m.i[SEED]
    if diverged:
        m.θ[:] = np.nan
        for i in range(m.i[MARK], len(settings.marks)):
            out.error[n, i], out.returns[n, i], out.at[n, i] = np.inf, np.nan, m.i[T]
    for w in range(len(m.θ)):
        out.θ[n, w] = m.θ[w]
    out.steps[n], out.episodes[n], out.look_stop[n] = m.i[T], m.i[E], m.i[LOOKS]
    m.i[SEED] += 1
    m.i[BEGUN] = 0


def run(world, features, plan, factors, custom, behavior, target, looking, settings, m, kept, out, budget) -> Any:
    """Go on until all seeds are done, or for so many steps: DONE, PAUSED, ROOM or BAD."""
    A = features.A
    while True:
        if not m.i[BEGUN]:
            if m.i[SEED] == len(out.seeds):
                return DONE
            begin(settings, m, out.seeds[m.i[SEED]])
            clear(kept)
        if budget == 0:
            return PAUSED
        if not has_room(plan.way, kept) or m.i[LOOKS] == len(out.look_step):
            return ROOM
        budget -= 1
        s, begins = m.i[STATE], m.i[STATE] < 0
        if begins:
            s = pick(m.streams, LIVING, world.start, 0, len(world.start))
        a = act(features, behavior, target, settings, m, s, begins)
        after, r = leave(world, m.streams, LIVING, s, a, A)
        terminated = world.ends[after]
        truncated = m.i[AGE] + 1 == settings.limit and not terminated
        status = observe(
            features, plan, factors, custom, behavior, target, settings, m, kept, out, r, after, terminated, truncated
        )
        if status == GO_ON:
            continue
        if status == BAD:
            return BAD
        if m.i[STATE] < 0 and settings.look_every and m.i[E] % settings.look_every == 0:
            out.look_step[m.i[LOOKS]] = m.i[T]
            out.look_return[m.i[LOOKS]] = look(world, features, settings, looking, m)
            m.i[LOOKS] += 1
        if status == OVER:
            finish(settings, m, out, not all_finite(m.θ))
