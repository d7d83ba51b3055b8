"""The loop of `loop.run` with the environment outside: one learner in n copies of it, called back for every step.

Each copy is a *lane*, with an eligibility vector and an episode of its own; all lanes share θ. In a round, every lane that
is in an episode acts, the environment steps once, and the lanes learn one after another. A lane whose episode has ended
waits until the environment says where a new one begins: nothing is learned from that. The loop and the environment talk
through a box.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from offtrace.learners.core.compiling import inlined, seldom
from offtrace.learners.core.eligibility import Kept, clear, has_room
from offtrace.learners.core.loop import (
    ACTION,
    AGE,
    BAD,
    BEGUN,
    DONE,
    FINISHED,
    GO_ON,
    LOOK_STATE,
    LOOKS,
    MARK,
    OVER,
    PAUSED,
    RETURNS,
    ROOM,
    SEED,
    STATE,
    VALUE,
    E,
    Memory,
    T,
    act,
    add_up,
    all_finite,
    begin,
    compute_values,
    finish,
    observe,
)
from offtrace.learners.core.random_numbers import LOOKING, uniform
from offtrace.learners.policies import at_present, best_of, choose, set_level
from offtrace.learners.tile_coding import into_tiles

# A step of an environment takes so long that it does not matter whether these are inlined; to the compiler it does.
acts, observes = seldom(act.py_func), seldom(observe.py_func)

FAILED = 7
"""Why the loop came back, besides its other reasons: the environment did not answer."""
NEW, BEGIN, STEP, LOOK_BEGIN, LOOK_STEP = range(5)
"""What is asked of the environment: a fresh one for a new learner; episodes for all lanes whose `action` is −1; a step;
and the same two for evaluation episodes, which have the last place of the box."""
GOES_ON, TERMINATED, TRUNCATED = range(3)


class Box(NamedTuple):
    """What the loop and the environment tell each other: arrays over n lanes and one place for evaluation episodes."""

    action: np.ndarray
    """−1 where a lane has none."""
    reward: np.ndarray
    ended: np.ndarray
    """GOES_ON, TERMINATED or TRUNCATED."""
    state: np.ndarray
    """Where the action led, also at an episode's end. What it is with tiles stands in x."""
    start: np.ndarray
    """Where a new episode begins, 0 with tiles; −1 while it is not known."""
    x: np.ndarray
    """[n + 1, d]: the observation."""
    x_start: np.ndarray
    """[n + 1, d]: that of `start`."""
    rows: np.ndarray
    """[n + 2]: how many observations a lane has made; at the end, how many of them are remembered."""
    resets: np.ndarray
    """[1]: 1 if lanes begin anew when they are told to; 0 if the environment does it by itself."""


@inlined
def lane(ms, j):
    """The memory of lane j, of arrays of all of them."""
    return Memory(
        ms.i[j],
        ms.f[j],
        ms.streams,
        ms.θ,
        ms.U[j],
        ms.dirty[j],
        ms.is_dirty[j],
        ms.sizes,
        ms.N,
        ms.now[j],
        ms.q,
        ms.weights,
        ms.buffer[j],
        ms.moves[j],
        ms.w,
    )


@inlined
def kept_of(ks, j):
    """The eligibility of lane j."""
    return Kept(
        ks.n[j],
        ks.age[j],
        ks.slot_of[j],
        ks.weight_of[j],
        ks.seen[j],
        ks.moved[j],
        ks.z[j],
        ks.x[j],
        ks.below_x[j],
        ks.below_G[j],
        ks.born[j],
        ks.fresh[j],
        ks.G[j],
        ks.C[j],
        ks.at[j],
        ks.by[j],
        ks.weights[j],
        ks.numbers[j],
        ks.product[j],
        ks.w[j],
        ks.wβ[j],
        ks.carry[j],
        ks.began[j],
        ks.pair[j],
    )


@inlined
def hand_over(ms, j, to):
    """What all lanes count together."""
    if j != to:
        for c in (SEED, BEGUN, T, E, MARK, LOOK_STATE, LOOKS):
            ms.i[to, c] = ms.i[j, c]
        for c in (RETURNS, FINISHED):
            ms.f[to, c] = ms.f[j, c]


@inlined
def see(box, tiles, features, j, state, x):
    """The number of an observation: that of a state, or of a row of features that is filled here. −1 if it is NaN."""
    if not len(tiles.low):
        return state
    for i in range(len(x)):
        if np.isnan(x[i]):
            return -1
    n = box.rows[-1]
    row = j * n + box.rows[j] % n
    box.rows[j] += 1
    into_tiles(tiles, x, features.tile[row])
    return row


@seldom
def look(turn, box, tiles, features, settings, policy, m):
    """As `loop.look`. NaN if the environment did not answer."""
    last = len(box.action) - 1
    set_level(policy, features.A, m.i[E] - 1, m.i[T], m.now[2])
    π = at_present(m.now[2], policy)
    s, total, gain = m.i[LOOK_STATE], 0.0, 1.0
    if s < 0:
        if turn(LOOK_BEGIN) != 0:
            return np.nan
        s = see(box, tiles, features, last, box.start[last], box.x_start[last])
    for _ in range(settings.look_limit):
        if s < 0:
            return np.nan
        compute_values(m.θ, features, s, m.q[0])
        q = m.θ[s * features.A : (s + 1) * features.A] if features.table else m.q[0]
        best, arg, ties, _ = best_of(q)
        box.action[last] = choose(uniform(m.streams, LOOKING), π, s, q, best, arg, ties)
        if turn(LOOK_STEP) != 0:
            return np.nan
        total += gain * box.reward[last]
        gain *= settings.gamma
        if box.ended[last] != GOES_ON:
            s = -1
            break
        s = see(box, tiles, features, last, box.state[last], box.x[last])
    m.i[LOOK_STATE] = s
    return total


@seldom
def start_lanes(settings, ms, ks, box, seed):
    """A new learner in all lanes."""
    begin(settings, lane(ms, 0), seed)
    for j in range(len(ms.i)):
        clear(kept_of(ks, j))
        box.start[j] = -1
        if j > 0:
            ms.i[j, :] = 0
            ms.f[j, :] = 0.0
            ms.i[j, STATE] = -1
            ms.U[j, :] = 0.0
            ms.is_dirty[j, :] = False


def live(
    turn, box, tiles, features, plan, factors, custom, behavior, target, looking, settings, ms, ks, out, budget
) -> Any:
    """Go on until all seeds are done, or for so many steps: DONE, PAUSED, ROOM, BAD or FAILED."""
    n, first = len(ms.i), lane(ms, 0)
    while True:
        if not first.i[BEGUN]:
            if first.i[SEED] == len(out.seeds):
                return DONE
            start_lanes(settings, ms, ks, box, out.seeds[first.i[SEED]])
            if turn(NEW) != 0:
                return FAILED
        if budget <= 0:
            return PAUSED
        for j in range(n):
            if not has_room(plan.way, kept_of(ks, j)):
                return ROOM
        if first.i[LOOKS] + n > len(out.look_step):
            return ROOM
        if box.resets[0]:
            waiting = False
            for j in range(n):
                waits = ms.i[j, STATE] < 0 and box.start[j] < 0
                box.action[j] = -1 if waits else 0
                waiting |= waits
            if waiting and turn(BEGIN) != 0:
                return FAILED
        for j in range(n):
            s, begins = ms.i[j, STATE], ms.i[j, STATE] < 0
            box.action[j] = -1
            if begins:
                if box.start[j] < 0:
                    continue
                s = see(box, tiles, features, j, box.start[j], box.x_start[j])
                box.start[j] = -1
                if s < 0:
                    return FAILED
            budget -= 1
            hand_over(ms, 0, j)
            box.action[j] = acts(features, behavior, target, settings, lane(ms, j), s, begins)
        if turn(STEP) != 0:
            return FAILED
        for j in range(n):
            if box.action[j] < 0:
                continue
            after = see(box, tiles, features, j, box.state[j], box.x[j])
            if after < 0:
                return FAILED
            hand_over(ms, 0, j)
            m = lane(ms, j)
            if n > 1:  # others have learned since
                s, a = m.i[STATE], m.i[ACTION]
                compute_values(m.θ, features, s, m.q[0])
                m.f[VALUE] = m.θ[s * features.A + a] if features.table else m.q[0, a]
            terminated = box.ended[j] == TERMINATED
            truncated = box.ended[j] == TRUNCATED or (m.i[AGE] + 1 == settings.limit and not terminated)
            status = observes(
                features,
                plan,
                factors,
                custom,
                behavior,
                target,
                settings,
                m,
                kept_of(ks, j),
                out,
                box.reward[j],
                after,
                terminated,
                truncated,
            )
            if status == BAD:
                return BAD
            if status != GO_ON and m.i[STATE] < 0 and settings.look_every and m.i[E] % settings.look_every == 0:
                gain = look(turn, box, tiles, features, settings, looking, m)
                if np.isnan(gain):
                    return FAILED
                out.look_step[m.i[LOOKS]] = m.i[T]
                out.look_return[m.i[LOOKS]] = gain
                m.i[LOOKS] += 1
            hand_over(ms, j, 0)
            if status == OVER:
                for other in range(n):
                    if len(first.U) and other != j:
                        add_up(settings, lane(ms, other))
                finish(settings, first, out, not all_finite(first.θ))
                break
