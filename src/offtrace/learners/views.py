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
from offtrace.learners.eligibility import Eligibility, Starts, Vector
from offtrace.learners.groups import Groups
from offtrace.learners.state import Curve, Lane, Memory, Task, World

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
def world_views(t):
    """World: `view` of each array."""
    return World(view(t.entries), view(t.rows), view(t.recorded))


@inline
def task_views(t):
    """Task: `view` of each array."""
    a, b, c, d, e, f, g, h, i = t
    return Task(view(a), view(b), view(c), view(d), view(e), view(f), view(g), view(h), view(i))


@inline
def memory_views(t):
    """Memory: `view` of each array."""
    a, b, c, d, e, f, g, h, i = t
    return Memory(view(a), view(b), view(c), view(d), view(e), view(f), view(g), view(h), view(i))


@inline
def lane_views(t):
    """Lane: `view` of each array."""
    return Lane(view(t.lane), view(t.buffer), view(t.sums), slots_views(t.summed))


@inline
def curve_views(t):
    """Curve: `view` of each array."""
    a, b, c, d, e, f = t
    return Curve(view(a), view(b), view(c), view(d), view(e), view(f))


@inline
def slots_views(t):
    """Slots: `view` of each array."""
    return Slots(view(t.weights), view(t.places), view(t.counts))


@inline
def eligibility_views(t):
    """Eligibility: `view` of each array."""
    return Eligibility(vector_views(t.vector), starts_views(t.starts), groups_views(t.groups))


@inline
def vector_views(t):
    """Vector: `view` of each array."""
    if t is None:
        return t
    return Vector(slots_views(t.used), view(t.z))


@inline
def starts_views(t):
    """Starts: `view` of each array."""
    if t is None:
        return t
    a, b, c, d, e, f, g, h, i = t
    return Starts(view(a), view(b), view(c), view(d), view(e), view(f), view(g), view(h), view(i))


@inline
def groups_views(t):
    """Groups: `view` of each array."""
    if t is None:
        return t
    a, used, b, c, d, e, f, g, h, i = t
    return Groups(view(a), slots_views(used), view(b), view(c), view(d), view(e), view(f), view(g), view(h), view(i))
