"""Policies in compiled code: the level of a schedule, probabilities and values in the current Q, and a choice by one number."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offtrace.learners.core.compiling import inlined, leaf, seldom
from offtrace.learners.core.record_arrays import Floats, record

CONSTANT, LINEAR, HARMONIC, EXPONENTIAL = range(4)
"""Kinds of schedules."""
TABLE, GREEDY, SOFTMAX = range(3)
"""Kinds of policies."""


class Levels(NamedTuple):
    """A schedule as compiled loops see it: what a, b and c are depends on its kind."""

    kind: int
    a: float
    b: float
    c: float
    by_step: bool
    """Whether it counts steps, not episodes."""


class Coded(NamedTuple):
    """A policy as compiled loops see it."""

    kind: int
    level: Levels
    """The coded schedule of ε or of the temperature."""
    explore: int
    """For so many episodes at first, it is uniform."""
    table: Floats
    """[S, A]; empty unless `kind` is TABLE."""


@leaf
def level(coded: Levels, episode: int, step: int) -> float:
    """The value of a coded schedule."""
    kind, a, b, c = coded.kind, coded.a, coded.b, coded.c
    k = step if coded.by_step else episode
    if kind == LINEAR:
        return b if k >= c else a + (b - a) * k / c
    if kind == HARMONIC:
        return a / (1.0 + k / b)
    if kind == EXPONENTIAL:
        return max(c, a * b**k)
    return a


NOW = record(
    kind=np.int64,
    level=np.float64,  # ε, or the temperature
    share=np.float64,  # ε / A
    nth=np.float64,  # A / ε
)
"""A policy at one moment, with what is needed of ε and 1/ε at every step."""


class Now(NamedTuple):
    """A record NOW in registers, with the policy's table: the policy of this episode and step."""

    kind: int
    level: float
    share: float
    nth: float
    table: Floats


@inlined
def set_level(coded, A, episode, step, now):
    """Set a record NOW to the policy of this episode and step. While it explores it is ε-greedy with ε = 1."""
    now.kind, now.level = coded.kind, level(coded.level, episode, step)
    if episode < coded.explore:
        now.kind, now.level = GREEDY, 1.0
    now.share, now.nth = now.level / A, A / now.level if now.level > 0.0 else 0.0


@inlined
def at_present(now, coded):
    """Return what `set_level` has set in the record NOW, in registers."""
    return Now(now.kind, now.level, now.share, now.nth, coded.table)


@inlined
def best_of(q):
    """The largest value, the last action that has it, how many have it, and the sum of all."""
    if len(q) == 4:  # the moves of a grid: without a loop, where there is no tie
        left, right = max(q[0], q[1]), max(q[2], q[3])
        best = max(left, right)
        if max(min(left, right), min(q[0], q[1]) if left > right else min(q[2], q[3])) < best:
            arg = (0 if q[0] > q[1] else 1) if left > right else (2 if q[2] > q[3] else 3)
            return best, arg, 1, (q[0] + q[1]) + (q[2] + q[3])
    best, total = q[0], q[0]
    for a in range(1, len(q)):
        total += q[a]
        best = max(best, q[a])
    arg, ties = 0, 0
    for a in range(len(q)):
        equal = q[a] == best
        arg = a if equal else arg
        ties += equal
    return best, arg, ties, total


@inlined
def probability(π, s, q, best, ties, a):
    """π(a|s) for the q of all actions."""
    if π.kind == GREEDY:
        if ties == 1:
            return π.share + (1.0 - π.level if q[a] == best else 0.0)
        return π.share + ((1.0 - π.level) / ties if q[a] == best else 0.0)
    if π.kind == TABLE:
        return π.table[s, a]
    return softmax(π.level, q, best, ties, a)


@seldom
def softmax(temperature, q, best, ties, a):
    """The probability of action a; with temperature 0, that of the greedy policy."""
    if temperature == 0.0:
        return 1.0 / ties if q[a] == best else 0.0
    total = 0.0
    for b in range(len(q)):
        total += np.exp((q[b] - best) / temperature)
    return np.exp((q[a] - best) / temperature) / total


@inlined
def value(π, s, q, best, ties, total):
    """Σ_a π(a|s) q(a)."""
    if π.kind == GREEDY:
        return π.share * total + (1.0 - π.level) * best
    v = 0.0
    for a in range(len(q)):
        v += probability(π, s, q, best, ties, a) * q[a]
    return v


@inlined
def choose(u, π, s, q, best, arg, ties):
    """An action, from one number u in [0, 1)."""
    A = len(q)
    if π.kind == GREEDY:
        if u < π.level:
            return min(int(u * π.nth), A - 1)
        if ties == 1:
            return arg
        nth = min(int((u - π.level) / (1.0 - π.level) * ties), ties - 1)
        for a in range(A):
            if q[a] == best:
                if nth == 0:
                    return a
                nth -= 1
    last = 0
    for a in range(A):
        p = probability(π, s, q, best, ties, a)
        if p > 0.0:
            last = a
            if u < p:
                return a
            u -= p
    return last
