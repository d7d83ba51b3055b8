"""Named tuples as compiled loops take them: a pointer to their fields, not the fields themselves.

A loop works with some hundred arrays. Numba passes a tuple by its numbers, seven and more for each array, to every function
that it calls, and compiling that took longer than compiling what the functions do. So the fields stand in rows of 64-bit
words in memory: a number is one word, an array its address and its shape. Compiled code reads `m.θ` there, when it needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numba
import numpy as np
from numba import types
from numba.core.typing.templates import AttributeTemplate, Signature
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
)
from numba.np.arrayobj import make_array, populate_array

from offtrace.learners.core.addressed import Address, Addressed

Given = tuple[Any, ...]
"""A named tuple of numbers, contiguous arrays, records (arrays without dimensions), compiled functions, and other such tuples."""


class Fields(Address):
    """Numba's type of a pointer to the fields of a named tuple."""

    def __init__(self, title: str, names: Sequence[str], kinds: Sequence[types.Type]) -> None:
        self.kinds = dict(zip(names, kinds, strict=True))
        self.places: dict[str, int] = {}
        self.words = 0
        for name, kind in self.kinds.items():
            self.places[name] = self.words
            self.words += _words(kind)
        super().__init__(f"{title}({', '.join(f'{n}: {k}' for n, k in self.kinds.items())})")


class Pointed(Addressed):
    """Named tuples of one kind, one for each lane, laid out for a compiled loop. It keeps their arrays alive."""

    def __init__(self, *given: Given) -> None:
        self.given = given
        form = _form(given[0])
        if form not in _kinds:
            _kinds[form] = _kind(given[0])
        self.kind = cast(Fields, _kinds[form])
        self.rows = np.array([_laid_out(one) for one in given], np.int64)
        self.address = self.rows.ctypes.data


_kinds: dict[object, types.Type] = {}
"""By form: making a type takes as long as thousands of steps."""


def _form(given: object) -> object:
    """Return what tells the Numba type of this value from others."""
    if isinstance(given, np.ndarray):
        if not given.flags.c_contiguous:
            raise ValueError("an array of a learner must be contiguous")
        return given.dtype, given.ndim
    if isinstance(given, Addressed):
        return given.kind
    return (type(given), *map(_form, cast(Given, given))) if isinstance(given, tuple) else type(given)


def _kind(given: object) -> types.Type:
    if isinstance(given, Addressed):
        return given.kind
    if isinstance(given, np.ndarray):
        element = cast(types.Type, numba.from_dtype(given.dtype))
        return types.Array(element, given.ndim, "C") if given.ndim else element
    if isinstance(given, tuple):
        kinds = [_kind(field) for field in cast(Given, given)]
        if hasattr(given, "_fields"):
            return Fields(type(given).__name__, cast(NamedTuple, given)._fields, kinds)
        return types.UniTuple(types.float64, len(kinds))
    if isinstance(given, bool | np.bool_):
        return types.boolean
    return types.int64 if isinstance(given, int | np.integer) else types.float64


def _laid_out(given: object) -> list[int]:
    """The words of a field."""
    if isinstance(given, Addressed):
        return [given.address]
    if isinstance(given, np.ndarray):
        return [given.ctypes.data, *given.shape]
    if isinstance(given, tuple):
        return [word for field in cast(Given, given) for word in _laid_out(field)]
    if isinstance(given, float | np.floating):
        return [int(np.float64(cast(float, given)).view(np.int64))]
    return [int(cast(int, given))]


def _words(kind: types.Type) -> int:
    """How many words a field takes."""
    if isinstance(kind, types.Array):
        return 1 + kind.ndim
    if isinstance(kind, Fields):
        return kind.words
    return len(kind) if isinstance(kind, types.UniTuple) else 1


register_model(Fields)(models.OpaqueModel)


@infer_getattr
class _Attributes(AttributeTemplate):
    key = Fields

    def generic_resolve(self, of: Fields, name: str) -> types.Type | None:
        return of.kinds.get(name)


@lower_getattr_generic(Fields)
def _read(context: Any, builder: Any, of: Fields, at: Any, name: str) -> Any:
    """The value of a field, from its words."""
    kind, place = of.kinds[name], of.places[name]
    if isinstance(kind, Fields):
        return _word_at(context, builder, at, place)
    if isinstance(kind, types.Array):
        pointer = _load(context, builder, at, place, types.CPointer(kind.dtype))
        shape = [_load(context, builder, at, place + 1 + i, types.intp) for i in range(kind.ndim)]
        size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        strides = [context.get_constant(types.intp, size)]
        for n in reversed(shape[1:]):
            strides.insert(0, builder.mul(strides[0], n))
        array = make_array(kind)(context, builder)
        populate_array(array, pointer, shape, strides, size, meminfo=None)
        return array._getvalue()
    if isinstance(kind, types.UniTuple):
        each = [_load(context, builder, at, place + i, kind.dtype) for i in range(len(kind))]
        return context.make_tuple(builder, kind, each)
    if kind == types.boolean:
        word = _load(context, builder, at, place, types.intp)
        return builder.icmp_unsigned("!=", word, context.get_constant(types.intp, 0))
    return _load(context, builder, at, place, kind)


def _word_at(context: Any, builder: Any, at: Any, place: int) -> Any:
    """The address of a word."""
    return builder.gep(at, [context.get_constant(types.intp, 8 * place)])


def _load(context: Any, builder: Any, at: Any, place: int, kind: types.Type) -> Any:
    """A word. It does not change while a loop runs, whatever that writes to its arrays: the compiler need not read it again."""
    word = context.get_value_type(kind)
    found = builder.load(builder.bitcast(_word_at(context, builder, at, place), word.as_pointer()))
    found.set_metadata("invariant.load", builder.module.add_metadata([]))
    return found


def _of_lane(typing: object, rows: Any, j: types.Type) -> tuple[Signature, Any]:
    def lower(context: Any, builder: Any, signature: Signature, arguments: tuple[object, object]) -> Any:
        at, lane = arguments
        size = context.get_constant(types.intp, 8 * rows.words)
        return builder.gep(at, [builder.mul(context.cast(builder, lane, j, types.intp), size)])

    return rows(rows, j), lower


of_lane = cast("Callable[[Any, Any], Any]", intrinsic(_of_lane))
"""In compiled code: of_lane(rows, j) are the fields of lane j."""
