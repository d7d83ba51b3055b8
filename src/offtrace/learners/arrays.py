"""Records, named fields that Python and compiled code read and write by the same names, and lists of the weights in use."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from offtrace.learners.compiling import inline

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Records = NDArray[np.record]


def record(**fields: type) -> np.dtype[np.record]:
    """The type of a record with these fields: `np.zeros(n, record(step=np.int64))[0].step` is a number that can be set."""
    return cast("np.dtype[np.record]", np.dtype((np.record, np.dtype(list(fields.items()), align=True))))


FEW = 64
"""With fewer weights in use, unused ones are not removed."""


class Slots(NamedTuple):
    """The weights in use, each with a slot: a vector that is 0 elsewhere has one number for each slot."""

    weights: Integers
    """[room]: the weight in each slot."""
    places: Integers
    """[size]: the slot of each weight; −1 if it has none."""
    counts: Integers
    """[2]: how many slots are in use, and above which number unused ones should be removed."""


def slots(size: int, room: int) -> Slots:
    """No weight is in use; there is room for `room` of the `size` weights."""
    return Slots(np.zeros(room, np.int64), np.full(size, -1, np.int64), np.array([0, FEW]))


@inline
def take_slot(used, weight):
    """The slot of a weight, the next free one if it has none yet."""
    weights, places, counts = used
    i = places[weight]
    if i < 0:
        i = counts[0]
        counts[0] = i + 1
        places[weight] = i
        weights[i] = weight
    return i


@inline
def clear_slots(used):
    """No weight is in use any more."""
    weights, places, counts = used
    for i in range(counts[0]):
        places[weights[i]] = -1
    counts[0] = 0
    counts[1] = FEW


@inline
def is_crowded(used):
    """Whether twice as many slots are in use as after unused ones were last removed."""
    counts = used.counts
    return counts[0] > counts[1]


@inline
def move_slot(used, old, new):
    """Move the weight of the slot `old` to `new`, which is not after it; with −1, remove it."""
    weights, places, _ = used
    weight = weights[old]
    places[weight] = new
    if new >= 0:
        weights[new] = weight


@inline
def set_number(used, number):
    """Set how many slots are in use, after slots were moved."""
    counts = used.counts
    counts[0] = number
    counts[1] = max(FEW, 2 * number)
