"""The operations of Triton's interpreter, each looked up once for the types that it is given, and done by NumPy from then on.

To add two blocks the interpreter takes some fifty microseconds to find out how their types and shapes fit together, and one to
add them. Here what it has found out is kept, as a *recipe*. The first time that an operation meets certain types the interpreter
does it as ever, and a recipe is kept only if it gives that very result, in each bit; where it does not, and for rare types, the
interpreter goes on alone. `returns/test_triton_operations.py` holds recipes to the interpreter on numbers of all sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language
import triton.runtime.interpreter as interpreter

core: Any = triton.language.core
Semantic: Any = interpreter.TritonSemantic
PLAIN = {"int1", "uint8", "int32", "int64", "fp32", "fp64"}
"""Scalar types whose conversions are NumPy's."""

recipes: dict[Any, Callable[..., Any] | None] = {}
"""What to do, by an operation and the types and numbers that it is given; None: as the interpreter does it."""
as_interpreted: dict[str, Callable[..., Any]] = {}
"""The operations as they were."""


def name_of(x: Any) -> Any:
    """A type, or a number: what decides what an operation does."""
    if type(x) is core.tensor:
        return x.type.name
    return type(x), (x if x == x and x != 0 else repr(x))  # −0.0 is not 0.0, and NaN is no key


def made(data: Any, known: dict[str, Any]) -> Any:
    """Make a tensor; `known` is what all tensors of its type say of themselves."""
    handle, tensor = object.__new__(interpreter.TensorHandle), object.__new__(core.tensor)
    handle.data, handle.dtype, handle.attr = data, known["dtype"], {}
    tensor.__dict__.update(known)
    tensor.handle = handle
    return tensor


def known_of(tensor: Any) -> dict[str, Any]:
    """What all tensors of a tensor's type say of themselves."""
    return {name: value for name, value in tensor.__dict__.items() if name != "handle"}


def same(found: Any, wanted: Any) -> bool:
    """Whether two arrays are equal in each bit."""
    return found.dtype == wanted.dtype and found.shape == wanted.shape and found.tobytes() == wanted.tobytes()


def is_plain(*operands: Any) -> bool:
    """Whether all are numbers, or tensors of them, that NumPy has too."""
    return all(type(x) in (int, float, bool) or (type(x) is core.tensor and x.dtype.name in PLAIN) for x in operands)


def taken(given: Any, checked: Any) -> Callable[[Any], Any]:
    """How an operand's array is had: `checked` is what Triton has made of it."""
    dtype = checked.handle.data.dtype
    if type(given) is not core.tensor:
        number = checked.handle.data.reshape(-1)[:1].copy()
        return lambda x: number
    if given.handle.data.dtype == dtype:
        return lambda x: x.handle.data
    return lambda x: x.handle.data.astype(dtype)


def refuse_overflow(self: Any, lhs: Any, rhs: Any, operation: Any) -> None:
    """In place of `binary_op_sanitize_overflow_impl`, which asks only where one debugs."""
    kind = lhs.type.scalar
    if kind.int_bitwidth >= 64:
        return
    wide = BINARY[operation.__name__][0](lhs.handle.data, rhs.handle.data, dtype=np.int64)
    fits = kind.get_int_min_value() <= wide.min() and wide.max() <= kind.get_int_max_value()
    assert fits, f"int{kind.int_bitwidth} overflow in {operation.__name__}"


def remember_binary(name: str, in_numpy: Callable[..., Any], *usual: Any) -> None:
    """Keep what an operation on two operands does, where its further arguments are the usual ones, or there are none."""
    slow = as_interpreted[name] = getattr(Semantic, name)

    def first(self: Any, key: Any, lhs: Any, rhs: Any, *options: Any) -> Any:
        wanted = slow(self, lhs, rhs, *options)
        recipes[key] = None
        if list(options) != list(usual) or not is_plain(lhs, rhs):
            return wanted
        checked = self.binary_op_type_checking_impl(lhs, rhs)
        left, right = map(taken, (lhs, rhs), checked)
        known = known_of(wanted)
        sums = name in ("add", "sub", "mul")
        if sums and wanted.dtype.name in ("int1", "uint8"):
            return wanted
        narrow = sums and wanted.dtype.name == "int32"

        def quick(lhs: Any, rhs: Any) -> Any:
            return made(in_numpy(left(lhs), right(rhs)), known)

        def quick_if_it_fits(lhs: Any, rhs: Any) -> Any:
            wide = in_numpy(left(lhs), right(rhs), dtype=np.int64)
            data = wide.astype(np.int32)
            assert (data == wide).all(), f"int32 overflow in {name}"
            return made(data, known)

        found = (quick_if_it_fits if narrow else quick)(lhs, rhs)
        if same(found.handle.data, wanted.handle.data):
            recipes[key] = quick_if_it_fits if narrow else quick
        return wanted

    def operation(self: Any, lhs: Any, rhs: Any, *options: Any) -> Any:
        key = (name, name_of(lhs), name_of(rhs), *options)
        try:
            recipe = recipes[key]
        except KeyError:
            return first(self, key, lhs, rhs, *options)
        return slow(self, lhs, rhs, *options) if recipe is None else recipe(lhs, rhs)

    operation.__name__ = name
    setattr(Semantic, name, operation)


def remember_where() -> None:
    """Keep what `where` does."""
    slow = as_interpreted["where"] = Semantic.where

    def first(self: Any, key: Any, condition: Any, x: Any, y: Any) -> Any:
        wanted = slow(self, condition, x, y)
        recipes[key] = None
        if condition.dtype.name != "int1" or not is_plain(x, y):
            return wanted
        left, right = map(taken, (x, y), self.binary_op_type_checking_impl(x, y))
        known = known_of(wanted)

        def quick(condition: Any, x: Any, y: Any) -> Any:
            return made(np.where(condition.handle.data, left(x), right(y)), known)

        if same(quick(condition, x, y).handle.data, wanted.handle.data):
            recipes[key] = quick
        return wanted

    def operation(self: Any, condition: Any, x: Any, y: Any) -> Any:
        key = ("where", condition.type.name, name_of(x), name_of(y))
        try:
            recipe = recipes[key]
        except KeyError:
            return first(self, key, condition, x, y)
        return slow(self, condition, x, y) if recipe is None else recipe(condition, x, y)

    Semantic.where = operation


def remember_conversion(name: str, convert: Callable[[Any, Any], Any]) -> None:
    """Keep what `cast` or `bitcast` does; those to flags and bytes, which it does in its own way, are left to the interpreter."""
    slow = as_interpreted[name] = getattr(Semantic, name)

    def operation(self: Any, x: Any, kind: Any, rounding: Any = None) -> Any:
        scalar = kind.scalar
        if x.dtype is scalar:
            return x
        key = (name, x.type.name, scalar.name, rounding)
        recipe = recipes.get(key)
        if recipe is not None:
            return recipe(x)
        wanted = slow(self, x, kind, *(() if rounding is None else (rounding,)))
        if rounding is None and is_plain(x, wanted) and scalar.name not in ("int1", "uint8"):
            dtype, known = wanted.handle.data.dtype, known_of(wanted)
            if same(convert(x.handle.data, dtype), wanted.handle.data):
                recipes[key] = lambda x: made(convert(x.handle.data, dtype), known)
        return wanted

    operation.__name__ = name
    setattr(Semantic, name, operation)


def remember_pointers() -> None:
    """Keep how far a pointer is moved by an offset. To be called when `add` knows numbers."""
    add = Semantic.add

    def operation(self: Any, lhs: Any, rhs: Any, sanitize_overflow: bool) -> Any:
        if type(lhs) is not core.tensor or not lhs.dtype.is_ptr():
            return add(self, lhs, rhs, sanitize_overflow)
        offset = self.to_tensor(rhs)
        key = ("pointer", lhs.type.name, offset.type.name)
        recipe = recipes.get(key)
        if recipe is not None:
            return recipe(lhs, offset)
        wanted = add(self, lhs, rhs, sanitize_overflow)
        if offset.dtype.name in ("int32", "int64"):
            known, width = known_of(wanted), np.uint64(max(1, lhs.dtype.element_ty.itemsize))

            def moved(pointer: Any, offset: Any) -> Any:
                return made(pointer.handle.data + width * offset.handle.data.astype(np.uint64), known)

            if same(moved(lhs, offset).handle.data, wanted.handle.data):
                recipes[key] = moved
        return wanted

    operation.__name__ = "add"
    Semantic.add = operation


def spread(data: Any, shape: tuple[int, ...]) -> Any:
    """The array in a shape; `np.broadcast_to` takes five times as long."""
    if data.shape == shape:
        return data
    full = np.empty(shape, data.dtype)
    full[...] = data
    return full


def remember_loads() -> None:
    """Keep what `load` does; flags are read as bytes."""
    slow, load = Semantic.load, interpreter._interpreter.load

    def operation(self: Any, pointer: Any, mask: Any, other: Any, *options: Any) -> Any:
        key = ("load", pointer.type.name, *(x if x is None else x.type.name for x in (mask, other)), *options)
        recipe = recipes.get(key)
        if recipe is not None:
            return recipe(pointer, mask, other)
        wanted = slow(self, pointer, mask, other, *options)
        if is_plain(wanted) and (other is None or is_plain(other)) and (mask is None or mask.dtype.name == "int1"):
            shape, boolean = wanted.handle.data.shape, wanted.dtype.name == "int1"
            known, dtype = known_of(wanted), np.dtype(np.int8) if boolean else wanted.handle.data.dtype
            everywhere, zero = np.ones(shape, bool), np.zeros(shape, dtype)

            def loaded(pointer: Any, mask: Any, other: Any) -> Any:
                inside = everywhere if mask is None else spread(mask.handle.data, shape)
                rest = zero if other is None else spread(other.handle.data.astype(dtype), shape)
                data = load(spread(pointer.handle.data, shape), inside, rest, dtype)
                return made(data != 0 if boolean else data, known)

            if same(loaded(pointer, mask, other).handle.data, wanted.handle.data):
                recipes[key] = loaded
        return wanted

    Semantic.load = operation


def remember_numbers() -> None:
    """Make the tensor of each number once."""
    slow = Semantic.to_tensor
    constants: dict[Any, Any] = {}

    def to_tensor(self: Any, x: Any, check_type: bool = True) -> Any:
        if type(x) is core.tensor:
            return x
        if type(x) not in (int, float, bool):
            return slow(self, x, check_type)
        key = name_of(x)
        if key not in constants:
            constants[key] = slow(self, x, check_type)
        return constants[key]

    Semantic.to_tensor = to_tensor


BINARY = {
    "mul": (np.multiply, True), "add": (np.add, True), "sub": (np.subtract, True),
    "and_": (np.bitwise_and,), "or_": (np.bitwise_or,), "xor_": (np.bitwise_xor,),
    "greater_than": (np.greater,), "greater_equal": (np.greater_equal,), "less_than": (np.less,), "less_equal": (np.less_equal,),
    "equal": (np.equal,), "not_equal": (np.not_equal,),
    "minimum": (np.fmin, core.PropagateNan.NONE), "maximum": (np.fmax, core.PropagateNan.NONE),
    "ashr": (np.right_shift,), "shl": (np.left_shift,),
}  # fmt: skip


def leave_tensors_wrapped() -> None:
    """A tensor is no constant, nor does it hold one: say so first."""
    unwrap = core._unwrap_if_constexpr
    core._unwrap_if_constexpr = lambda x: x if type(x) is core.tensor else unwrap(x)


def call_directly(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """In place of `_patch_attr`: without the function that only asks whether there is a `_semantic`."""
    function, semantic = getattr(member, "__wrapped__", member), interpreter.interpreter_semantic

    def call(*arguments: Any, **named: Any) -> Any:
        named["_semantic"] = semantic
        return function(*arguments, **named)

    scope.set_attr(obj, name, call)


def remember_operations() -> None:
    """Import time is when it happens: this must be done once."""
    Semantic.binary_op_sanitize_overflow_impl = refuse_overflow
    remember_numbers()
    for name, (in_numpy, *usual) in BINARY.items():
        remember_binary(name, in_numpy, *usual)
    remember_pointers()
    remember_where()
    remember_conversion("cast", lambda data, dtype: data.astype(dtype))
    remember_conversion("bitcast", lambda data, dtype: data.view(dtype))
    remember_loads()
    leave_tensors_wrapped()
    interpreter._patch_attr = call_directly
