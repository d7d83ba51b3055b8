"""Records, named fields that Python and compiled code read and write by the same names; and lists of the weights in use.

Each weight in use has a slot, so that a vector that is 0 elsewhere is short and stands together.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from offtrace.learners.compiling import inside

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Records = NDArray[np.record]


def record(**fields: type) -> np.dtype[np.record]:
    """The type of a record with these fields: `np.zeros(n, record(step=np.int64))[0].step` is a number that can be set."""
    return cast("np.dtype[np.record]", np.dtype((np.record, np.dtype(list(fields.items()), align=True))))


FEW = 64
"""With fewer weights in use, nobody looks for those that need not be."""


class Slots(NamedTuple):
    """A list of weights, and where each stands in it."""

    weights: Integers
    """[room]: the weight in each slot; `number` of them are in use."""
    places: Integers
    """[size]: the slot of a weight; −1 if it has none."""
    counts: Integers
    """[2]: how many slots are in use, and how many may be before those that need not be are looked for."""


def slots(size: int, room: int) -> Slots:
    """No weight is in use, and there is room for so many."""
    return Slots(np.zeros(room, np.int64), np.full(size, -1, np.int64), np.array([0, FEW]))


@inside
def number(used):
    """How many weights are in use."""
    return used.counts[0]


@inside
def take_slot(used, weight):
    """The slot of a weight, the next one if it has none yet."""
    i = used.places[weight]
    if i < 0:
        i = used.counts[0]
        used.counts[0] = i + 1
        used.places[weight] = i
        used.weights[i] = weight
    return i


@inside
def give_up_slots(used):
    """No weight is in use any more."""
    for i in range(used.counts[0]):
        used.places[used.weights[i]] = -1
    used.counts[0] = 0
    used.counts[1] = FEW


@inside
def is_crowded(used):
    """Whether there are twice as many as when unused ones were last looked for."""
    return used.counts[0] > used.counts[1]


@inside
def move_slot(used, old, new):
    """The weight of the slot `old` moves to `new`, which is not after it; to −1: it gives its slot up."""
    weight = used.weights[old]
    used.places[weight] = new
    if new >= 0:
        used.weights[new] = weight


@inside
def set_number(used, number):
    """After slots were moved: so many are in use."""
    used.counts[0] = number
    used.counts[1] = max(FEW, 2 * number)
