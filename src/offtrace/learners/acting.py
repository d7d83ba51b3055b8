"""Policies in compiled code: the value of a schedule, probabilities and values in the current Q, and a choice by one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from offtrace.learners.arrays import Floats, inline, inline_fma, no_inline, record
from offtrace.learners.random import LEARNING, uniform
from offtrace.learners.state import BEHAVIOR, STEP_SIZE, TARGET

CONSTANT, LINEAR, HARMONIC, EXPONENTIAL = range(4)
"""Forms of schedules."""
TABLE, GREEDY, SOFTMAX = range(3)
"""Kinds of policies."""


class CodedPolicy(NamedTuple):
    """A policy as numbers, with the schedule of its ε or temperature; or a schedule by itself."""

    kind: int
    explore: int
    """For so many episodes at first, it is uniform."""
    form: int
    a: float
    """What a, b and c are depends on the form of the schedule."""
    b: float
    c: float
    by_step: bool
    """Whether the schedule counts steps, not episodes."""
    table: Floats = np.empty((0, 0))
    """[S, A]; empty unless `kind` is TABLE."""
    function: Callable[[np.ndarray], ArrayLike] | None = None
    """The probabilities [A] of an observation, of a TABLE where states have no numbers."""


POLICY = record(
    kind=np.int64, explore=np.int64, form=np.int64, a=np.float64, b=np.float64, c=np.float64, by_step=np.int64
)
"""The numbers of a CodedPolicy, in an array that compiled code reads."""


@no_inline
def level(schedule: CodedPolicy, episode: int, step: int) -> float:
    """The value of a schedule."""
    form, a, b, c = schedule.form, schedule.a, schedule.b, schedule.c
    k = step if schedule.by_step else episode
    if form == LINEAR:
        return b if k >= c else a + (b - a) * k / c
    if form == HARMONIC:
        return a / (1.0 + k / b)
    if form == EXPONENTIAL:
        return max(c, a * b**k)
    return a


@inline
def at_present(policy, episode, step):
    """The kind of a policy, and its ε or temperature, in this episode and step. While it explores it is ε-greedy with ε = 1."""
    if episode < policy.explore:
        return GREEDY, 1.0
    return policy.kind, level(policy, episode, step)


@no_inline
def best_of(q):
    """The largest value, the last action that has it, how many have it, and the sum of all."""
    if len(q) == 4:  # the moves of a grid, summed in pairs
        total = (q[0] + q[1]) + (q[2] + q[3])
    else:
        total = q[0]
        for a in range(1, len(q)):
            total += q[a]
    best, arg, ties = q[0], 0, 1
    for a in range(1, len(q)):
        if q[a] > best:
            best, arg, ties = q[a], a, 1
        elif q[a] == best:
            arg, ties = a, ties + 1
    return best, arg, ties, total


@inline
def probability(now, table, s, q, best, ties, a):
    """π(a|s) of a policy `at_present`, for the q of all actions."""
    kind, ε = now
    if kind == GREEDY:
        return ε / len(q) + ((1.0 - ε) / ties if q[a] == best else 0.0)
    if kind == TABLE:
        return table[s, a]
    return softmax(ε, q, best, ties, a)


@inline
def probability_of(now, table, s, q, a, greedy):
    """The same for one action; `greedy`: of the greedy policy, among whose actions all that are best are."""
    best, _, ties, _ = best_of(q)
    if greedy:
        return 1.0 if q[a] == best else 0.0
    return probability(now, table, s, q, best, ties, a)


@no_inline
def softmax(temperature, q, best, ties, a):
    """The probability of action a; with temperature 0, that of the greedy policy."""
    if temperature == 0.0:
        return 1.0 / ties if q[a] == best else 0.0
    total = 0.0
    for b in range(len(q)):
        total += np.exp((q[b] - best) / temperature)
    return np.exp((q[a] - best) / temperature) / total


@no_inline
def mean(now, table, s, q):
    """Σ_a π(a|s) q(a)."""
    kind, ε = now
    best, _, ties, total = best_of(q)
    if kind == GREEDY:
        return ε / len(q) * total + (1.0 - ε) * best
    v = 0.0
    for a in range(len(q)):
        v += probability(now, table, s, q, best, ties, a) * q[a]
    return v


@no_inline
def choose(u, now, table, s, q):
    """An action, from one number u in [0, 1)."""
    kind, ε = now
    A = len(q)
    best, arg, ties, _ = best_of(q)
    if kind == GREEDY:
        if u < ε:
            return min(int(u * (A / ε)), A - 1)
        if ties == 1:
            return arg
        nth = min(int((u - ε) / (1.0 - ε) * ties), ties - 1)
        for a in range(A):
            if q[a] == best:
                if nth == 0:
                    return a
                nth -= 1
    last = 0
    for a in range(A):
        p = probability(now, table, s, q, best, ties, a)
        if p > 0.0:
            last = a
            if u < p:
                return a
            u -= p
    return last


@inline_fma
def action_values(θ, tile, value, s, q):
    """Write q(s, ·) to `q`."""
    A = len(q)
    for j in range(tile.shape[1]):
        i, x = tile[s, j] * A, value[s, j]
        for a in range(A):
            q[a] = x * θ[i + a] + (q[a] if j > 0 else 0.0)


@inline_fma
def state_value(θ, tile, value, s):
    """v(s)."""
    v = 0.0
    for j in range(tile.shape[1]):
        v += value[s, j] * θ[tile[s, j]]
    return v


@inline
def value_of(θ, tile, value, s, a, q, on_states):
    """q(s, a), or v(s); q(s, ·) is written to `q`."""
    if on_states:
        return state_value(θ, tile, value, s)
    action_values(θ, tile, value, s, q)
    return q[a]


@inline
def set_active(active, tile, s, a, A, on_states):
    """The weights of (s, a), or of s."""
    for j in range(len(active)):
        active[j] = tile[s, j] if on_states else tile[s, j] * A + a


@inline
def choose_action(task, memory, at, step):
    """a ~ μ(·|s). The lane stores π(a|s), q(s, a) or v(s) and α; the step stores s, a and μ(a|s).

    On state values the policies are tables, which do not depend on q.
    """
    progress, settings, q = memory.progress[0], task.settings[0], memory.q
    s, at.step = at.state, progress.step
    if at.begins:
        at.begins, at.age, at.episode = 0, 0, progress.episode
        at.gain, at.total, at.discount = 1.0, 0.0, 0.0
    μ = at_present(task.schedules[BEHAVIOR], at.episode, at.step)
    π = at_present(task.schedules[TARGET], at.episode, at.step)
    at.alpha = level(task.schedules[STEP_SIZE], at.episode, at.step)
    if not settings.on_states:
        action_values(memory.θ, task.tile, task.value, s, q)
    best, _, ties, _ = best_of(q)
    a = at.chosen
    if a < 0:
        a = choose(uniform(memory.streams, LEARNING), μ, task.behavior, s, q)
    at.chosen = -1
    step.state, step.action = s, a
    step.mu = probability(μ, task.behavior, s, q, best, ties, a)
    at.pi = probability(π, task.target, s, q, best, ties, a)
    at.value, at.greedy = q[a], 1.0 if q[a] == best else 0.0
    if settings.on_states:
        at.value = state_value(memory.θ, task.tile, task.value, s)


@inline
def expected_value(task, memory, at, s, q):
    """Σ_a π(a|s) q(s, a) of the policy in δ, or the value of the next action, which is chosen here."""
    settings = task.settings[0]
    if settings.sampled:
        if at.chosen < 0:
            μ = at_present(task.schedules[BEHAVIOR], at.episode, at.step)
            at.chosen = choose(uniform(memory.streams, LEARNING), μ, task.behavior, s, q)
        return q[at.chosen]
    v = mean(at_present(task.schedules[TARGET], at.episode, at.step), task.target, s, q)
    if settings.share < 1.0:
        μ = at_present(task.schedules[BEHAVIOR], at.episode, at.step)
        v = settings.share * v + (1.0 - settings.share) * mean(μ, task.behavior, s, q)
    return v
