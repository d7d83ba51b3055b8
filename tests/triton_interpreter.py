"""Triton's interpreter, without the work that makes it slow.

It wraps all of `triton.language` anew whenever one kernel's function calls another, hundreds of times in a launch, and makes a
table of all dtypes at each look into it. Here the one is done once in a launch for each module, the other once. It scans one
element at a time; here all rows take a step of the scan at once. It makes the type of a block, of many small objects, for each
block that an operation takes or returns; here there is one object for each type. Operations are in `triton_operations`.

The kernels are the same, and so is each number that they compute.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import triton.runtime.interpreter as interpreter
from triton.language import core

from triton_operations import remember_operations


def patch_once_in_a_launch() -> None:
    """Import time is when it happens: this must be done once."""
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched: set[int] = set()

    def patch_unless_done(fn: Any) -> Any:
        if id(fn.__globals__) in patched:
            return interpreter._LangPatchScope()
        patched.add(id(fn.__globals__))
        return patch(fn)

    def launch_afresh(self: Any, *arguments: Any, **named: Any) -> None:
        patched.clear()
        try:
            launch(self, *arguments, **named)
        finally:
            patched.clear()

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_unless_done, launch_afresh
    find = interpreter._get_np_dtype
    of_name = functools.cache(lambda name: find(interpreter.tl.dtype(name)))

    def find_by_name(kind: Any) -> Any:
        scalar = kind.scalar
        return find(scalar) if scalar.is_ptr() else of_name(scalar.name)

    interpreter._get_np_dtype = find_by_name


def scan_rows_at_once(self: Any, input: Any) -> list[Any]:
    """In place of `ScanOps.generic_scan`: the same combinations, in the same order along the axis."""
    kinds = [argument.dtype for argument in input]
    made = [np.moveaxis(argument.handle.data, self.axis, 0).copy() for argument in input]
    for i in range(1, len(made[0])):
        before, now = ([self.to_tensor(m[j], kind) for m, kind in zip(made, kinds, strict=True)] for j in (i - 1, i))
        combined = self.combine_fn.fn(*before, *now)
        for m, c in zip(made, combined if isinstance(combined, tuple) else (combined,), strict=True):
            m[i] = c.handle.data.reshape(m[i].shape)
    return [self.to_tensor(np.moveaxis(m, 0, self.axis), kind) for m, kind in zip(made, kinds, strict=True)]


def make_types_once() -> None:
    """One object for the type of all blocks of one shape, and one for what all tensors of a type say of themselves."""
    make_type, make_tensor, equal = core.block_type.__init__, core.tensor.__init__, core.dtype.__eq__
    types: dict[Any, Any] = {}

    def key_of(element: Any, shape: Any) -> Any:
        return element.name, *(getattr(size, "value", size) for size in shape)

    def find_type(cls: Any, element_ty: Any, shape: Any) -> Any:
        return types.get(key_of(element_ty, shape)) or object.__new__(cls)

    def fill_type(self: Any, element_ty: Any, shape: Any) -> None:
        if not hasattr(self, "element_ty"):
            make_type(self, element_ty, shape)
            types[key_of(element_ty, shape)] = self

    def fill_tensor(self: Any, handle: Any, type: Any) -> None:
        known = type.__dict__.get("of_tensors")
        if known is None:
            make_tensor(self, handle, type)
            type.of_tensors = {name: value for name, value in self.__dict__.items() if name != "handle"}
        else:
            self.__dict__.update(known)
            self.handle = handle

    core.dtype.__eq__ = lambda self, other: self is other or equal(self, other)
    core.block_type.__new__ = staticmethod(find_type)  # pyright: ignore[reportAttributeAccessIssue]
    core.block_type.__init__, core.tensor.__init__ = fill_type, fill_tensor


patch_once_in_a_launch()
make_types_once()
interpreter.ScanOps.generic_scan = scan_rows_at_once
remember_operations()
