"""How learners are compiled, and the arrays that compiled code reads and writes.

Numba counts references to an array each time it is taken out of a tuple or passed to a function, which takes longer than a step
of a learner. So a loop makes a `view` of each array that it is given, by `numba.carray`, for which nothing is counted. Whoever
calls a loop keeps its arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numba import njit, types
from numba.extending import overload, register_jitable
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Records = NDArray[np.record]
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
carray, jitable = cast(Any, numba).carray, cast(Any, register_jitable)


def inline(function: F) -> F:
    """A function that is copied into the compiled function that calls it. Python may call it too; then it is not compiled."""
    return jitable(error_model="numpy", forceinline=True)(function)


def inline_fma(function: F) -> F:
    """The same, where a·b + c may be rounded only once (a fused multiply-add)."""
    return jitable(error_model="numpy", forceinline=True, fastmath={"contract"})(function)


def no_inline(function: F) -> F:
    """A function that compiled code calls rarely: it is not copied."""
    return jitable(error_model="numpy")(function)


@cache
def newest_file() -> int:
    """When a file of the learners was changed last.

    A loop takes this number from its closure, and Numba's cache compares it: it would see only changes of the loop's own file.
    """
    return max(file.stat().st_mtime_ns for file in Path(__file__).parent.rglob("*.py"))


def view(given: T) -> T:
    """In compiled code the same array without an owner, or a tuple of these. In Python it is what was given."""
    return given


@cache
def _address() -> Any:
    """A compiled function from a pointer of any type to its address, made when a loop is compiled: that takes half a second."""
    return njit(types.voidptr(types.voidptr), forceinline=True)(lambda pointer: pointer)


@overload(view, jit_options={"forceinline": True})
def _view(given):
    if isinstance(given, types.Array) and given.layout == "C":
        address = _address()
        return lambda given: carray(address(given.ctypes), given.shape, given.dtype)
    make = getattr(given, "instance_class", None)
    if make is not None:
        return lambda given: make(*_views(given))
    return lambda given: given


def _views(given: Any) -> Any:
    """`view` of each part of a tuple."""


@overload(_views, jit_options={"forceinline": True})
def _each_view(given):
    match len(given):
        case 1:
            return lambda given: (view(given[0]),)
        case 2:
            return lambda given: (view(given[0]), view(given[1]))
        case 3:
            return lambda given: (view(given[0]), view(given[1]), view(given[2]))
        case _:  # three at a time, since each function takes time to compile
            return lambda given: (view(given[0]), view(given[1]), view(given[2]), *_views(given[3:]))


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
def move_slot(used, old, new, keep):
    """Move the weight of the slot `old` to `new`, which is not after it, or remove it."""
    weights, places, _ = used
    weight = weights[old]
    places[weight] = new if keep else -1
    if keep:
        weights[new] = weight


@inline
def set_number(used, number):
    """Set how many slots are in use, after slots were moved."""
    counts = used.counts
    counts[0], counts[1] = number, max(FEW, 2 * number)
