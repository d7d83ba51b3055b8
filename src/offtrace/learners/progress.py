"""Where a learner begins, what is noted while it learns, and what is left of it: nothing here changes what it learns."""

from __future__ import annotations

import numpy as np

from offtrace.learners.arrays import give_up_slots, number
from offtrace.learners.compiling import part
from offtrace.learners.eligibility import clear
from offtrace.learners.learning import action_values, state_value
from offtrace.learners.random import LEARNING, normal, start


@part
def begin(settings, m, seed):
    """A new learner. `begin_lane` does the rest, for each lane."""
    start(seed, m.streams)
    p = m.progress[0]
    p.begun, p.step, p.episode, p.mark, p.evaluation_state = 1, 0, 0, 0, -1
    p.returns, p.finished = 0.0, 0.0
    for w in range(len(m.N)):
        m.N[w] = 0.0
    for w in range(len(m.θ)):
        for i in range(len(m.further)):
            m.further[i, w] = 0.0
        m.θ[w] = settings.first[w]
        if settings.spread > 0.0:
            m.θ[w] += settings.spread * normal(m.streams, LEARNING)


@part
def begin_lane(m, e):
    """A lane of a new learner."""
    lane = m.lane[0]
    lane.state, lane.age, lane.chosen = -1, 0, -1
    lane.head, lane.filled, lane.since = 0, 0, 0
    lane.discount, lane.gain, lane.total, lane.bootstrap = 0.0, 0.0, 0.0, 0.0
    for i in range(number(m.summed)):
        m.changed[m.summed.weights[i]] = 0.0
    give_up_slots(m.summed)
    clear(e.vector, e.starts, e.groups)


@part
def mark(features, settings, m, out):
    """One point of the curve."""
    progress = m.progress[0]
    n, i = progress.seed, progress.mark
    if len(settings.truth):
        out.error[n, i] = error(features, settings, m)
    out.returns[n, i] = progress.returns / progress.finished if progress.finished else np.nan
    out.at[n, i] = progress.step
    if out.snapshots.shape[1]:
        for w in range(len(m.θ)):
            out.snapshots[n, i, w] = m.θ[w]
    progress.returns, progress.finished = 0.0, 0.0
    progress.mark = i + 1


@part
def error(features, settings, m):
    """The root mean square of Q − truth, or of V − truth."""
    total, each = 0.0, 1 if features.states else features.A
    for s in settings.judged:
        action_values(m.θ, features, s, m.q)
        for a in range(each):
            found = state_value(m.θ, features, s) if features.states else m.q[a]
            total += (found - settings.truth[s, a]) ** 2
    total = np.sqrt(total / (len(settings.judged) * each))
    return total if total >= 0.0 else np.inf


@part
def finish(settings, m, out):
    """Keep what came of a learner."""
    progress = m.progress[0]
    n = progress.seed
    is_finite = True
    for w in range(len(m.θ)):
        is_finite = is_finite and np.isfinite(m.θ[w])
    if not is_finite:
        for i in range(progress.mark, len(settings.marks)):
            out.error[n, i], out.returns[n, i], out.at[n, i] = np.inf, np.nan, progress.step
    for w in range(len(m.θ)):
        out.θ[n, w] = m.θ[w] if is_finite else np.nan
    out.steps[n], out.episodes[n], out.evaluation_stop[n] = progress.step, progress.episode, progress.evaluations
    progress.seed += 1
    progress.begun = 0
