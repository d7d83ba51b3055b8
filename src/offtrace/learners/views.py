"""The arrays that a loop is given, as views that nobody owns.

Numba counts references to an array each time it is taken out of a tuple or passed to a function, which takes longer than a step
of a learner. `numba.carray` makes an array of an address, for which it counts nothing. Whoever calls a loop keeps its arrays.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from numba import carray, njit, types
from numba.extending import overload

from offtrace.learners.arrays import Slots
from offtrace.learners.compiling import inline
from offtrace.learners.eligibility import Starts, Vector
from offtrace.learners.groups import Groups

T = TypeVar("T")


def view(given: T) -> T:
    """In compiled code, the same array, owned by nobody. Anything else, and in Python an array too, is itself."""
    return given


@njit(types.voidptr(types.voidptr), forceinline=True)
def _address(pointer: Any) -> Any:
    return pointer


@overload(view, jit_options={"forceinline": True})
def _view(given):
    if isinstance(given, types.Array):
        return lambda given: carray(_address(given.ctypes), given.shape, given.dtype)
    return lambda given: given


@inline
def slots_view(t):
    """Slots: `view` of each array."""
    return Slots(view(t.weights), view(t.places), view(t.counts))


@inline
def vector_view(t):
    """Vector: `view` of each array."""
    if t is None:
        return t
    return Vector(slots_view(t.used), view(t.z))


@inline
def starts_view(t):
    """Starts: `view` of each array."""
    if t is None:
        return t
    a, b, c, d, e, f, g, h, i = t
    return Starts(view(a), view(b), view(c), view(d), view(e), view(f), view(g), view(h), view(i))


@inline
def groups_view(t):
    """Groups: `view` of each array."""
    if t is None:
        return t
    a, used, b, c, d, e, f, g, h, i = t
    return Groups(view(a), slots_view(used), view(b), view(c), view(d), view(e), view(f), view(g), view(h), view(i))
