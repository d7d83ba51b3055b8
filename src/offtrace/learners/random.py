"""Random numbers for compiled loops: SplitMix64 (Steele, Lea, Flood 2014), one 64-bit state for each stream.

A learner has two streams that start far apart: one for its own steps, one for its evaluation episodes, so that evaluating a
learner does not change it. Both depend on its seed alone, never on the others that run.
"""

from __future__ import annotations

import numpy as np

from offtrace._shared.compile_cache import cached_njit
from offtrace.learners.arrays import inline

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
R30, R27, R31, R11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
UNIT = 2.0**-53

LEARNING, EVALUATION = 0, 1
"""The two streams."""


@inline
def mixed(z: np.uint64) -> np.uint64:
    """The finaliser: a bijection of 64 bits in which every bit of the input moves half of those of the output."""
    z = (z ^ (z >> R30)) * FIRST
    z = (z ^ (z >> R27)) * SECOND
    return z ^ (z >> R31)


@inline
def uniform(streams, i):
    """The next number of stream i, in [0, 1)."""
    streams[i] += GOLDEN
    return np.float64(mixed(streams[i]) >> R11) * UNIT


@inline
def normal(streams, i):
    """A standard normal number, by Box and Muller."""
    radius = np.sqrt(-2.0 * np.log(1.0 - uniform(streams, i)))
    return radius * np.cos(2.0 * np.pi * uniform(streams, i))


@inline
def pick(streams, i, entries, low, high):
    """An index j in [low, high): the first with entries[j].cumulated > u. A single candidate takes no number."""
    high -= 1
    if low == high:
        return low
    u = uniform(streams, i)
    while low < high:
        middle = (low + high) // 2
        if entries[middle].cumulated > u:
            high = middle
        else:
            low = middle + 1
    return low


@cached_njit(nogil=True, error_model="numpy")
def begin(seed: np.uint64, spread: float, streams: np.ndarray, θ: np.ndarray) -> None:
    """Set all streams to where this seed begins, and add noise of standard deviation `spread` to θ."""
    for i in range(len(streams)):
        streams[i] = mixed(mixed(np.uint64(seed) + GOLDEN) + np.uint64(i) * GOLDEN)
    if spread > 0.0:
        for w in range(len(θ)):
            θ[w] += spread * normal(streams, LEARNING)
