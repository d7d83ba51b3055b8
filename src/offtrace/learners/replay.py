"""Sequences of steps to learn from, and sums that are added to θ later.

Without replay, the buffer has one step, that which was just taken, and the one sequence is that step, which continues its
episode. With replay, the step goes into a ring, over the oldest one, and now and then sequences of steps are drawn from it.
"""

from __future__ import annotations

from offtrace.learners.arrays import clear_slots, inline, no_inline
from offtrace.learners.random import LEARNING, uniform
from offtrace.learners.state import REPLAY


@inline
def store(settings, at, capacity):
    """Store the step at the head of the buffer: how many sequences are to be learned from now."""
    at.head = (at.head + 1) % capacity
    at.filled = min(at.filled + 1, capacity)
    at.since += 1
    if settings.update != REPLAY:
        return 1
    if at.since < settings.every:
        return 0
    at.since = 0
    return settings.batch


@inline
def sequence(settings, at, streams):
    """Where a sequence begins in the buffer, 0 being the oldest step, and where it ends at the latest."""
    if settings.update != REPLAY:
        return 0, 1
    first = min(int(uniform(streams, LEARNING) * at.filled), at.filled - 1)
    return first, min(at.filled, first + settings.length)


@no_inline
def add_sums(by_visits, alpha, θ, N, sums, summed):
    """θ ← θ + α U, and U is 0 again."""
    weights, _, counts = summed
    for i in range(counts[0]):
        w = weights[i]
        θ[w] += alpha * sums[w] * (1.0 / N[w] if by_visits else 1.0)
        sums[w] = 0.0
    clear_slots(summed)
