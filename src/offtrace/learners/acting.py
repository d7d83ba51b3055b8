"""Policies in compiled code: the level of a schedule, probabilities and values in the current Q, and a choice by one number."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offtrace.learners.arrays import Floats
from offtrace.learners.compiling import inside, seldom

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


class Policies(NamedTuple):
    """The policies of a learner."""

    behavior: Coded
    target: Coded
    evaluation: Coded


@seldom
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


@inside
def at_present(policy, episode, step):
    """The kind of a policy, and its ε or temperature, in this episode and step. While it explores it is ε-greedy with ε = 1."""
    if episode < policy.explore:
        return GREEDY, 1.0
    return policy.kind, level(policy.level, episode, step)


@inside
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


@inside
def probability(now, table, s, q, best, ties, a):
    """π(a|s) of a policy `at_present`, for the q of all actions."""
    kind, ε = now
    if kind == GREEDY:
        return ε / len(q) + ((1.0 - ε) / ties if q[a] == best else 0.0)
    if kind == TABLE:
        return table[s, a]
    return softmax(ε, q, best, ties, a)


@inside
def probability_of(now, table, s, q, a, greedy):
    """The same for one action; `greedy`: of the greedy policy, among whose actions all that are best are."""
    best, _, ties, _ = best_of(q)
    if greedy:
        return 1.0 if q[a] == best else 0.0
    return probability(now, table, s, q, best, ties, a)


@seldom
def softmax(temperature, q, best, ties, a):
    """The probability of action a; with temperature 0, that of the greedy policy."""
    if temperature == 0.0:
        return 1.0 / ties if q[a] == best else 0.0
    total = 0.0
    for b in range(len(q)):
        total += np.exp((q[b] - best) / temperature)
    return np.exp((q[a] - best) / temperature) / total


@inside
def value(now, table, s, q):
    """Σ_a π(a|s) q(a)."""
    kind, ε = now
    best, _, ties, total = best_of(q)
    if kind == GREEDY:
        return ε / len(q) * total + (1.0 - ε) * best
    v = 0.0
    for a in range(len(q)):
        v += probability(now, table, s, q, best, ties, a) * q[a]
    return v


@inside
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
