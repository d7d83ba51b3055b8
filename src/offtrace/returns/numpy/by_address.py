"""Kernels and rules, each compiled once by itself, and called by their addresses.

A pass over a trajectory needs a rule and a kernel. Compiled into one function, each pair of them would take seconds. So the pass
knows them as addresses of C functions, which take arrays as pointers to their first elements. One call serves a row or a block
of rows, and costs nothing beside it.

Numba keeps compiled code on disk under a key made of the closure. A kernel is a plain function there, which pickles by name, and
`fingerprint` stands for the code of all kernels, which call each other, so that an edited one is compiled anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.ccallback import CFunc
from numba.core.typing.templates import Signature
from numba.extending import intrinsic, register_jitable
from numba.np.numpy_support import carray

from offtrace._shared.compile_cache import keep_on_disk
from offtrace._shared.compiled_parts import PART

Function = Callable[..., Any]
"""A function that Numba compiles, which finds the types of arguments and results itself."""

DONE = 1
"""What a C function returns. Numba prints an error that happens inside of it, and has it return 0."""
FLOATS, INTEGERS = types.CPointer(types.float64), types.CPointer(types.int64)
BLOCK = types.int64(*[FLOATS] * 5, INTEGERS, *[FLOATS] * 2, *[types.int64] * 3)
ROW = types.int64(*[FLOATS] * 7, *[types.int64] * 3)
OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}


def kernel_part(function: Function) -> Function:
    """Mark a function that kernels are made of, so that it is compiled with them."""
    return register_jitable(**OPTIONS, **PART)(function)


@cache
def fingerprint() -> str:
    """What stands for the code of all kernels."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@kernel_part
def room_for(T):
    """How many numbers a kernel may want to write down for a row of T steps: fresh memory would cost more than the work in it."""
    return 8 * T + (1 << 13)


class Kernel(NamedTuple):
    """How Δ is computed from δ, g, ratio and cap."""

    sweep: Function
    """(delta, g, ratio, cap, lags, undone, room, out) of a block of rows, [n, T]: Δ into `out`. `undone` [n] says how many
    starts of each row are then not done, counted from its first step. `room` is memory to work in, `room_for(T)` numbers."""
    finish: Function
    """(delta, g, ratio, cap, lags, starts, room, out) of one row, [T]: Δ of its first `starts` steps. It is compiled when it is
    first needed, as few rows are: those whose products leave the range of plain numbers."""


@cache
def sweep_of(kernel: Kernel) -> int:
    """The address of a kernel's sweep."""
    return _compiled_block(kernel.sweep, fingerprint())


@cache
def finish_of(kernel: Kernel) -> int:
    """The address of what does the starts that the sweep has left."""
    return _compiled_row(kernel.finish, fingerprint())


_kept: list[object] = []  # the functions, which must outlive their addresses


def compiled_at(signature: Signature, function: Function) -> int:
    """The address of a C function, compiled or read from disk."""
    made = CFunc(function, (signature.args, signature.return_type), {}, OPTIONS)
    keep_on_disk(made)
    made.compile()
    _kept.append(made)
    return cast(int, made.address)


def _compiled_block(sweep: Function, fingerprint: str) -> int:
    def run(delta, g, ratio, cap, lags, undone, room, out, n, width, lag_count):
        _ = fingerprint  # part of the key on disk
        shape = n, width
        sweep(
            carray(delta, shape), carray(g, shape), carray(ratio, shape), carray(cap, shape), carray(lags, lag_count),
            carray(undone, n), carray(room, room_for(width)), carray(out, shape),
        )  # fmt: skip
        return DONE

    return compiled_at(BLOCK, run)


def _compiled_row(finish: Function, fingerprint: str) -> int:
    def run(delta, g, ratio, cap, lags, room, out, starts, T, lag_count):
        _ = fingerprint  # part of the key on disk
        finish(
            carray(delta, T), carray(g, T), carray(ratio, T), carray(cap, T), carray(lags, lag_count), starts,
            carray(room, room_for(T)), carray(out, T),
        )  # fmt: skip
        return DONE

    return compiled_at(ROW, run)


def _call(typing_context, address, arguments):
    """Call the C function at an address with a tuple of arrays, of which it gets the pointers, and of integers."""

    def generate(context, builder, signature, values):
        address, packed = values
        passed = []
        for kind, value in zip(signature.args[1], cgutils.unpack_tuple(builder, packed), strict=True):
            if isinstance(kind, types.Array):
                passed.append(context.make_array(kind)(context, builder, value).data)
            else:
                passed.append(context.cast(builder, value, kind, types.int64))
        kind = ir.FunctionType(ir.IntType(64), [value.type for value in passed])
        return builder.call(builder.inttoptr(address, kind.as_pointer()), passed)

    return types.int64(address, arguments), generate


call = cast("Callable[[int, tuple[Any, ...]], int]", intrinsic(_call))
"""Call the C function at an address with a tuple of arrays, of which it gets the pointers, and of integers."""
