"""Triton's interpreter, without the work that makes it slow.

It wraps all of `triton.language` anew whenever one kernel's function calls another, hundreds of times in a launch, and makes a
table of all dtypes at each look into it. Here the one is done once in a launch for each module, the other once. It scans one
element at a time; here all rows take a step of the scan at once. It asks whether an integer overflows by eight operations of
the language; here NumPy is asked. It makes the type of a block, of many small objects, for each block that an operation takes or
returns, and converts each number that an operation has; here there is one object for each type, and for each number.

The kernels are the same, and so is each number that they compute.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import triton.runtime.interpreter as interpreter
from triton.language import core


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


def refuse_overflow(self: Any, lhs: Any, rhs: Any, binary_op: Any) -> None:
    """In place of `TritonSemantic.binary_op_sanitize_overflow_impl`."""
    kind = lhs.type.scalar
    if kind.int_bitwidth >= 64:
        return
    in_numpy = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[binary_op.__name__]
    wide = in_numpy(lhs.handle.data, rhs.handle.data, dtype=np.int64)
    fits = kind.get_int_min_value() <= wide.min() and wide.max() <= kind.get_int_max_value()
    assert fits, f"int{kind.int_bitwidth} overflow in {binary_op.__name__}"


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


def check_types_once() -> None:
    """Two tensors of one type, and a tensor with a number that it has met before, are what they must be already."""
    check = interpreter.TritonSemantic.binary_op_type_checking_impl
    plain = {"int1", "int32", "int64", "fp32", "fp64"}
    constants: dict[Any, Any] = {}

    def check_unless_known(self: Any, lhs: Any, rhs: Any, *rules: Any, **named: Any) -> tuple[Any, Any]:
        first, second = type(lhs) is core.tensor, type(rhs) is core.tensor
        kind = lhs.type if first else rhs.type if second else None
        if kind is None or kind.scalar.name not in plain:
            return check(self, lhs, rhs, *rules, **named)
        if first and second:
            return (lhs, rhs) if lhs.type is rhs.type else check(self, lhs, rhs, *rules, **named)
        key = (
            kind.name,
            repr(rhs if first else lhs),
            first,
            rules,
            *named.values(),
        )  # `repr` tells −0.0, 0 and False from 0.0
        if key not in constants:
            made = check(self, lhs, rhs, *rules, **named)
            if (made[0] is lhs) if first else (made[1] is rhs):
                constants[key] = made[1 if first else 0]
            return made
        return (lhs, constants[key]) if first else (constants[key], rhs)

    interpreter.TritonSemantic.binary_op_type_checking_impl = check_unless_known


def broadcast_by_numpy(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
    """In place of `TritonSemantic.broadcast_impl_value`."""
    left, right = lhs.type, rhs.type
    if left is right or not (left.is_block() or right.is_block()):
        return lhs, rhs
    sizes = [type.shape.values if type.is_block() else [] for type in (left, right)]
    shape = list(np.broadcast_shapes(*sizes))
    return tuple(
        x if size == shape else self.tensor(_spread(x.handle, size, shape), core.block_type(x.type.scalar, shape))
        for x, size in zip((lhs, rhs), sizes, strict=True)
    )  # pyright: ignore[reportReturnType]


def _spread(handle: Any, size: list[int], shape: list[int]) -> Any:
    data = handle.data if size else handle.data.reshape(())  # the interpreter has scalars in arrays of one number
    return interpreter.TensorHandle(np.broadcast_to(data, shape), handle.dtype.scalar)


patch_once_in_a_launch()
make_types_once()
check_types_once()
interpreter.TritonSemantic.broadcast_impl_value = broadcast_by_numpy
interpreter.ScanOps.generic_scan = scan_rows_at_once
interpreter.TritonSemantic.binary_op_sanitize_overflow_impl = refuse_overflow
