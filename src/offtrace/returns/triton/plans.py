"""Which Triton kernels are launched for traces with a cap, one after the other, whatever library the arrays are of.

Shapes that are compiled in are powers of two, so that a new T is rarely a new kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import triton

from offtrace.returns.triton import caps, readout, scan, tree, walks
from offtrace.returns.triton.rules import MOST, bound, factors
from offtrace.traces.symbols import Lines

# The numbers are what was fastest on an H200 (`benchmarks/gpu.py`).
ROWS, STARTS = 32, 16
"""Of a program that sweeps or walks: a row for each thread of a warp. `sweep` looks for lost traces once all starts have joined,
which is right for at most two blocks of them: each shrinks a trace by at most 1e-18, so float32 still holds it."""
WALKED = 16  # starts of a program that walks them by definition
BLOCK = 8  # steps whose products are taken together: one thread's
PART = BLOCK  # starts of a program that are walked by definition at a time: the registers are taken all along
LARGE = {"float32": 1e18, "float64": 1e100}
"""How large products within a block may be, or how small their inverses."""
PROGRAMS = 2**31 - 1  # of one launch, all in one dimension: the others end at 65535
SWEPT, NEAR, LIFE = 1024, 256, 160
"""The longest row that is swept at all, the longest that is only swept, and for how many steps, in the mean, a trace may live in
the rows between: those in which it lives longer are left to the tree."""
LEAF, FAN = tree.LEAF.value, 32  # of the tree for recursive caps
SORTED = 256  # steps of a block that is sorted, for caps at read-out

Array = Any
"""An array of the library's."""
Written = Any
"""An array that a kernel changes, which is among those that it reads as well; or the shape and dtype of one that it makes."""


class Library(Protocol):
    """Where arrays live, and how a kernel is called there."""

    def launch(
        self,
        kernel: triton.JITFunction,
        programs: int,
        read: Sequence[Array],
        numbers: Sequence[float],
        written: Sequence[Written],
        **constants: object,
    ) -> list[Array]:
        """Launch so many programs of a kernel; return what it has written."""
        ...

    def release(self, *arrays: Array) -> None:
        """Take back what kernels have written and no kernel reads any more."""
        ...

    def full(self, shape: tuple[int, ...], value: int) -> Array:
        """Return an int32 array of one value."""
        ...


@dataclass(frozen=True)
class Given:
    """The arguments that all kernels of a call share."""

    library: Library
    kernels: Mapping[str, triton.JITFunction]
    arrays: list[Array]
    numbers: list[float]
    flags: dict[str, bool]
    dtype: str
    """Of the result."""
    add_q: bool

    @property
    def shape(self) -> tuple[int, int]:
        """B and T."""
        B, T = self.arrays[0].shape
        return B, T

    @property
    def kind(self) -> str:
        """The dtype in which numbers are kept in between."""
        return "float64" if self.dtype == "float64" else "float32"


KERNELS = {
    "linear": scan.linear_rows, "prepare": caps.prepare, "sweep": caps.sweep, "walk": walks.walk_rows,
    "leaf_tables": tree.leaf_tables, "sorted_blocks": readout.sorted_blocks,
}  # fmt: skip
"""The kernels that read the arrays of a call, for given δ, g, ratio and cap."""


@cache
def of_rule(lines: Lines) -> dict[str, triton.JITFunction]:
    """Return the same kernels for a rule."""
    enters = bound(scan.enters, factors=factors(lines))
    link = bound(scan.link, enters=enters)
    of_any_size = bound(walks.walk_of_any_size, link=link)
    return {
        "linear": bound(
            scan.linear_rows, enters=enters, linear_of_any_size=bound(scan.linear_of_any_size, enters=enters)
        ),
        "prepare": bound(caps.prepare, enters=enters),
        "sweep": bound(caps.sweep, again=bound(caps.again, walk_of_any_size=of_any_size)),
        "walk": bound(walks.walk_rows, walk=bound(walks.walk, link=link), walk_of_any_size=of_any_size),
        "leaf_tables": bound(tree.leaf_tables, leaf=bound(tree.leaf, link=link)),
        "sorted_blocks": bound(readout.sorted_blocks, link=link),
    }


@cache
def split(value: float) -> tuple[float, float, float]:
    """Return a float64 as three float32, which is how Triton passes floats: 24 bits, 24 more, the last five and the exponent."""
    if not math.isfinite(value) or value == 0.0:
        return value, 0.0, 32.0
    fraction, exponent = math.frexp(value)
    whole, sign = int(abs(fraction) * 2**53), math.copysign(1.0, value)
    return sign * (whole >> 29), sign * (whole >> 5 & 0xFFFFFF), exponent * 64 + 32 + sign * (whole & 31)


def parameters(*values: float) -> list[float]:
    """Return the parameters of a rule as kernels take them."""
    padded = [*values, *([0.0] * (MOST - len(values)))]
    return [part for value in padded for part in split(value)]


def count(*programs: int) -> int:
    """Return how many programs so many by so many are, the first dimension running fastest."""
    if math.prod(programs) > PROGRAMS:
        raise ValueError(f"a batch that takes {programs} programs is too large for one launch: split it")
    return math.prod(programs)


def long(T: int) -> bool:
    """Tell whether rows are too long to be swept."""
    return T > SWEPT


def rows_of(B: int) -> int:
    """Return how many rows a program sweeps or walks."""
    return min(ROWS, triton.next_power_of_2(B))


def with_cap(call: Given, recursive: bool, out: Array | None = None) -> Array:
    """Return Δ, or q + Δ, of a rule with a cap: swept, by a tree over the row, or in that order.

    It may go to `out`, memory that is there already.
    """
    B, T = call.shape
    beyond = by_tree if recursive else by_sorting
    if long(T):
        return beyond(call, call.library.full((B,), scan.TREE.value), out)
    if T <= NEAR:
        return swept(call, recursive, out=out)[0]
    length = triton.next_power_of_2(T)
    rows = max(1, 1024 // length)
    flags = {name: call.flags[name] for name in ("GIVEN", "GAMMAS", "VALID")}
    (stage,) = call.library.launch(
        caps.lifetimes, triton.cdiv(B, rows), call.arrays, [B, T, *call.numbers[:3]], [((B,), "int32")], **flags,
        ROWS=rows, N=length, LIFE=LIFE, num_warps=4,
    )  # fmt: skip
    out, _, stage = swept(call, recursive, stage, out=out)
    return beyond(call, stage, out)


def swept(
    call: Given,
    recursive: bool,
    stage: Array | None = None,
    length: int | None = None,
    out: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Sweep rows, of a stage if there is one, or parts of so many steps. Return Δ, sums of logarithms of parts, and the stage."""
    B, T = call.shape
    whole = length is None
    length = T if length is None else length
    parts = 1 if whole else triton.cdiv(T, length)
    starts = max(BLOCK, min(STARTS, triton.next_power_of_2(length)))
    steps = triton.cdiv(length, starts) * starts
    rows = rows_of(B * parts)
    groups = triton.cdiv(B * parts, rows)
    kind, at = call.kind, None if stage is None else (scan.SWEEP if whole else scan.TREE).value
    launch, numbers = call.library.launch, [B, T, parts, steps, groups, *call.numbers]
    programs = count(groups, steps // starts)
    room, ends, sums, stage = launch(
        call.kernels["prepare"], programs, [*call.arrays, call.arrays[0] if stage is None else stage], numbers,
        [
            ((groups, steps, 4, rows), kind), ((groups, steps // BLOCK, 2, rows), "float64"),
            ((1,) if whole else (3, B, parts, steps // starts), "float64"), ((1,), "int32") if stage is None else stage,
        ],
        **call.flags, RECURSIVE=recursive, ROWS=rows, BLOCKS=starts // BLOCK, N=BLOCK, MOST=LARGE[kind], STAGE=at, num_warps=4,
    )  # fmt: skip
    stage, out = launch(
        call.kernels["sweep"], programs, [*call.arrays, room, ends, stage, stage if out is None else out], numbers,
        [stage, ((B, T), call.dtype if whole else kind) if out is None else out], **call.flags,
        ADD_Q=call.add_q and whole, RECURSIVE=recursive,
        ROWS=rows, M=starts, N=BLOCK, PART=PART, STAGE=at, num_warps=1,
    )  # fmt: skip
    call.library.release(room, ends)
    return out, sums, stage


def by_tree(call: Given, stage: Array, out: Array | None) -> Array:
    """Recursive caps by a tree over each row that is left to it; others are in `out` already."""
    B, T = call.shape
    counts = [triton.cdiv(T, LEAF)]  # nodes of a row: leaves, their parents, and so on
    while counts[-1] > FAN:
        counts.append(triton.cdiv(counts[-1], FAN))
    strides = [triton.cdiv(n, FAN) * FAN for n in counts]
    kind, keys = call.kind, call.kind == "float32"
    steps, plane = B * strides[0] * LEAF, B * (sum(strides) + 1)
    wide = B * sum(counts[1:]) * FAN
    programs, warps = strides[0] // FAN, max(1, FAN // 2)
    launch, shared = call.library.launch, {"FAN": FAN, "KEYS": keys, "num_warps": warps}
    ordered, plain = ((steps,), "int32" if keys else kind), ((steps,), kind)
    there = out if call.dtype == kind else None
    lowest, before, clipped, found, leaving, weights, nodes, stage = launch(
        call.kernels["leaf_tables"], count(programs, B), [*call.arrays, stage, stage if there is None else there],
        [plane, B, T, programs, strides[0], *call.numbers],
        [
            ordered, plain, plain, ((B, T), kind) if there is None else there, ordered, plain,
            ((tree.NUMBERS, plane), "float64"), stage,
        ],
        **call.flags, **shared,
    )  # fmt: skip
    beyond = nodes
    for i, stride in enumerate(strides, 1):
        nodes, beyond = launch(
            tree.group, count(stride // FAN, B), [lowest, before, clipped, stage, nodes, beyond],
            [plane, wide, B, T, stride // FAN], [nodes, beyond if i > 1 else ((4, max(1, wide)), "float64")], LEVEL=i, **shared,
        )  # fmt: skip
    (out,) = launch(
        tree.starts, count(programs, B),
        [*call.arrays, lowest, before, clipped, found, leaving, weights, nodes, beyond, stage],
        [plane, wide, B, T, programs], [found if call.dtype == kind else out], VALID=call.flags["VALID"],
        ADD_Q=call.add_q, LEVELS=len(strides), **shared,
    )  # fmt: skip
    return walked(call, True, stage, out)


def by_sorting(call: Given, stage: Array, out: Array | None) -> Array:
    """Caps at read-out, in rows that are left to this stage, by sorting blocks and merging them; others are in `out` already."""
    B, T = call.shape
    parts = triton.cdiv(T, SORTED)
    plane, steps, kind = B * parts, B * parts * SORTED, call.kind
    fresh = [((steps,), "float64"), ((steps,), kind), ((steps,), kind)]
    launch = call.library.launch
    found, pieces, stage = swept(call, False, stage, SORTED, out if call.dtype == kind else None)
    each = pieces.shape[-1]
    (sums,) = launch(
        readout.running_sums, count(3, B), [pieces, stage], [B, parts], [((3, B, parts), "float64")],
        EACH=each, PARTS=min(triton.next_power_of_2(parts), 1024 // each), num_warps=4,
    )  # fmt: skip
    *tables, starts, weights = launch(
        call.kernels["sorted_blocks"], count(parts, B), [*call.arrays, stage, sums], [B, T, parts, plane, *call.numbers],
        [*fresh, ((steps,), "float64"), ((steps,), kind)], **call.flags, BLOCK=SORTED, num_warps=1,
    )  # fmt: skip
    size, old = SORTED, None
    while size < parts * SORTED:
        last = 2 * size >= parts * SORTED
        before = tables
        read = [*call.arrays, stage, sums, *tables, starts, weights, found, *(old or tables)]
        *tables, found = launch(
            readout.level, count(parts, B), read, [B, T, parts, plane, size],
            [*tables, found if call.dtype == kind else out] if last else [*(old or fresh), found],
            VALID=call.flags["VALID"], ADD_Q=call.add_q, BLOCK=SORTED, LAST=last, num_warps=2,
        )  # fmt: skip
        size, old = 2 * size, before
    return walked(call, False, stage, found)


def walked(call: Given, recursive: bool, stage: Array, out: Array) -> Array:
    """Walk the rows that are left by definition."""
    B, T = call.shape
    rows, n = rows_of(B), min(WALKED, triton.next_power_of_2(T))
    groups = triton.cdiv(B, rows)
    (out,) = call.library.launch(
        call.kernels["walk"], count(groups, triton.cdiv(T, n)), [*call.arrays, stage, stage, out],
        [0, B, T, groups, *call.numbers], [out], **call.flags, ADD_Q=call.add_q,
        RECURSIVE=recursive, LAGS=False, SOME=True, ROWS=rows, M=n, num_warps=1,
    )  # fmt: skip
    return out
