"""The loop of `loop.run` with the environment outside: one learner in n copies of it, called back for every step.

Each copy is a *lane*, with an eligibility vector and an episode of its own; all lanes share θ. In a round, every lane that
is in an episode acts, the environment steps once, and the lanes learn one after another. A lane whose episode has ended
waits until the environment says where a new one begins: nothing is learned from that. The loop and the environment talk
through a box.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offtrace.learners.core.acting import at_present, best_of, choose, set_level
from offtrace.learners.core.compiling import plain, seldom
from offtrace.learners.core.eligibility.kept import has_room
from offtrace.learners.core.learning import add_up, compute_values, state_value
from offtrace.learners.core.loop import (
    BAD,
    DONE,
    GO_ON,
    OVER,
    PAUSED,
    ROOM,
    act,
    all_finite,
    begin,
    begin_lane,
    conclude,
    finish,
    note,
)
from offtrace.learners.core.loop_settings import REPLAY
from offtrace.learners.core.pointed import of_lane
from offtrace.learners.core.random_numbers import LOOKING, uniform
from offtrace.learners.core.record_arrays import Floats, Integers
from offtrace.learners.core.tiles import into_tiles

# A step of an environment takes so long that it does not matter whether these are inlined; to the compiler it does.
acts = seldom(plain(act))


@seldom
def observes(
    features, plan, factors, custom, step, learns, replay, otherwise, behavior, target, settings, m, kept, out,
    r, after, terminated, truncated,
):  # fmt: skip
    """`loop.observe`, which leaves all learning to the functions that it is given."""
    bad = 0
    if note(m, out, m.lane.state, m.lane.action, r, after, terminated, truncated, settings):
        if not replay(plan, factors, custom, learns, features, settings, behavior, target, m, kept):
            bad = 2
    elif settings.update != REPLAY:
        bad = otherwise(
            plan, factors, custom, step, learns, features, settings, behavior, target, m, kept, r, after, terminated
        )
    return conclude(features, settings, m, out, r, after, terminated, truncated, bad)


FAILED = 7
"""Why the loop came back, besides its other reasons: the environment did not answer."""
NEW, BEGIN, STEP, LOOK_BEGIN, LOOK_STEP = range(5)
"""What is asked of the environment: a fresh one for a new learner; episodes for all lanes whose `action` is −1; a step;
and the same two for evaluation episodes, which have the last place of the box."""
GOES_ON, TERMINATED, TRUNCATED = range(3)


class Box(NamedTuple):
    """What the loop and the environment tell each other: arrays over n lanes and one place for evaluation episodes."""

    action: Integers
    """−1 where a lane has none."""
    reward: Floats
    ended: Integers
    """GOES_ON, TERMINATED or TRUNCATED."""
    state: Integers
    """Where the action led, also at an episode's end. What it is with tiles stands in x."""
    start: Integers
    """Where a new episode begins, 0 with tiles; −1 while it is not known."""
    x: Floats
    """[n + 1, d]: the observation."""
    x_start: Floats
    """[n + 1, d]: that of `start`."""
    p: Floats
    """[n + 1, 2, A]: the probabilities of behaviour and target there, where these are functions of observations."""
    p_start: Floats
    """[n + 1, 2, A]: those at `start`."""
    rows: Integers
    """[n + 2]: how many observations a lane has made; at the end, how many of them are remembered."""
    resets: Integers
    """[1]: 1 if lanes begin anew when they are told to; 0 if the environment does it by itself."""


@seldom
def see(box, tiles, features, behavior, target, j, state, x, p):
    """The number of an observation: that of a state, or of a row of features that is filled here. −1 if it is NaN.

    So are the rows of policies that are functions of observations.
    """
    if not len(tiles.low):
        return state
    for i in range(len(x)):
        if np.isnan(x[i]):
            return -1
    n = box.rows[-1]
    row = j * n + box.rows[j] % n
    box.rows[j] += 1
    into_tiles(tiles, x, features.tile[row])
    for a in range(p.shape[1]):
        if len(behavior.table):
            behavior.table[row, a] = p[0, a]
        if len(target.table):
            target.table[row, a] = p[1, a]
    return row


@seldom
def look(turn, box, tiles, features, behavior, target, settings, policy, m):
    """Return the return of an evaluation episode, as `loop.look` does; NaN if the environment did not answer."""
    last = len(box.action) - 1
    set_level(policy, features.A, m.progress.episode - 1, m.progress.step, m.looking)
    π = at_present(m.looking, policy)
    s, total, gain = m.progress.look_state, 0.0, 1.0
    if s < 0:
        if turn(LOOK_BEGIN) != 0:
            return np.nan
        s = see(
            box, tiles, features, behavior, target, last, box.start[last], box.x_start[last], box.p_start[last]
        )  # fmt: skip
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
        s = see(box, tiles, features, behavior, target, last, box.state[last], box.x[last], box.p[last])
    m.progress.look_state = s
    return total


@seldom
def start_lanes(settings, ms, ks, box, seed):
    """A new learner in all lanes."""
    begin(settings, of_lane(ms, 0), seed)
    for j in range(len(box.action) - 1):
        begin_lane(of_lane(ms, j), of_lane(ks, j))
        box.start[j] = -1


@seldom
def ask_for_episodes(turn, box, ms):
    """Let the lanes that wait for an episode begin one. False if the environment did not answer."""
    waiting = False
    for j in range(len(box.action) - 1):
        waits = of_lane(ms, j).lane.state < 0 and box.start[j] < 0
        box.action[j] = -1 if waits else 0
        waiting |= waits
    return not waiting or turn(BEGIN) == 0


def live_of(digest):
    """The loop. It closes over a digest of the code, as `loop.run_of` does."""

    def live(
        turn,
        box,
        tiles,
        features,
        plan,
        factors,
        custom,
        step,
        learns,
        replay,
        otherwise,
        behavior,
        target,
        looking,
        settings,
        ms,
        ks,
        out,
        budget,
    ):
        """Go on until all seeds are done, or for so many steps: DONE, PAUSED, ROOM, BAD or FAILED."""
        _ = digest
        n, first = len(box.action) - 1, of_lane(ms, 0)
        progress = first.progress
        while True:
            if not progress.begun:
                if progress.seed == len(out.seeds):
                    return DONE
                start_lanes(settings, ms, ks, box, out.seeds[progress.seed])
                if turn(NEW) != 0:
                    return FAILED
            if budget <= 0:
                return PAUSED
            for j in range(n):
                if not has_room(plan.way, of_lane(ks, j)):
                    return ROOM
            if progress.looks + n > len(out.look_step):
                return ROOM
            if box.resets[0] and not ask_for_episodes(turn, box, ms):
                return FAILED
            for j in range(n):
                s = of_lane(ms, j).lane.state
                begins = s < 0
                box.action[j] = -1
                if begins:
                    if box.start[j] < 0:
                        continue
                    s = see(
                        box, tiles, features, behavior, target, j, box.start[j], box.x_start[j], box.p_start[j]
                    )  # fmt: skip
                    box.start[j] = -1
                    if s < 0:
                        return FAILED
                budget -= 1
                box.action[j] = acts(features, behavior, target, settings, of_lane(ms, j), s, begins)
            if turn(STEP) != 0:
                return FAILED
            for j in range(n):
                if box.action[j] < 0:
                    continue
                after = see(box, tiles, features, behavior, target, j, box.state[j], box.x[j], box.p[j])
                if after < 0:
                    return FAILED
                m = of_lane(ms, j)
                if n > 1:  # others have learned since
                    s, a = m.lane.state, m.lane.action
                    compute_values(m.θ, features, s, m.q[0])
                    if features.states:
                        m.lane.value = state_value(m.θ, features, s)
                    else:
                        m.lane.value = m.θ[s * features.A + a] if features.table else m.q[0, a]
                terminated = box.ended[j] == TERMINATED
                truncated = box.ended[j] == TRUNCATED or (m.lane.age + 1 == settings.limit and not terminated)
                status = observes(
                    features, plan, factors, custom, step, learns, replay, otherwise, behavior, target, settings, m,
                    of_lane(ks, j), out, box.reward[j], after, terminated, truncated,
                )  # fmt: skip
                if status == BAD:
                    return BAD
                if (
                    status != GO_ON
                    and m.lane.state < 0
                    and settings.look_every
                    and progress.episode % settings.look_every == 0
                ):
                    gain = look(turn, box, tiles, features, behavior, target, settings, looking, m)
                    if np.isnan(gain):
                        return FAILED
                    out.look_step[progress.looks] = progress.step
                    out.look_return[progress.looks] = gain
                    progress.looks += 1
                if status == OVER:
                    for other in range(n):
                        if len(first.U) and other != j:
                            add_up(settings, of_lane(ms, other))
                    finish(settings, first, out, not all_finite(first.θ))
                    break

    return live
