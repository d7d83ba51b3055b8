"""Which Triton kernels are launched, one after the other, whatever library the arrays are of.

Shapes that are compiled in do not depend on those of the arrays, or are one of a few powers of two: a new shape is rarely a new
kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import triton

from offtrace.returns.triton import linear, load, readout, sweep, tree, walk

# The numbers are what was fastest on an H200 (`benchmarks/gpu.py`).
ROWS, STARTS = 32, 16
"""Of a program that sweeps: a row for each thread of a warp. `sweep` looks for lost traces once all starts have joined,
which is right for at most two blocks of them: each shrinks a trace by at most 1e-18, so float32 still holds it."""
WALKED = 16  # starts of a program that walks them by definition
BLOCK = 8  # steps whose products are taken together: one thread's
LARGE = {"float32": 1e18, "float64": 1e100}
"""How large products within a block may be, or how small their inverses."""
PROGRAMS = 2**31 - 1  # of one launch, all in one dimension: the others end at 65535
SWEPT, NEAR, LIFE = 1024, 256, 160
"""The longest row that is swept at all, the longest that is only swept, and for how many steps, in the mean, a trace may live in
the rows between: those in which it lives longer are left to the tree."""
SMALL = 1 << 18
"""Steps of a batch whose rows are only swept up to SWEPT: it fills no GPU, and fewer launches take less time."""
LEAF, FAN = tree.LEAF.value, 32  # of the tree for recursive caps
SORTED = 256  # steps of a block that is sorted, for caps at read-out
CHUNKS = 16, 64, 256  # steps that a scan takes at once, the fewest that hold the row
SCAN = 1024  # elements of its program
PART_CHUNKS, FEW = 8, 512  # chunks of a part of a long row, which is parted where there are at most so many programs
LINE = 64  # starts of a program that has one row only
FILLED = 1024  # numbers that a program writes

Array = Any
"""An array of the library's."""
Written = Any
"""An array that a kernel changes, which is among those that it reads as well; or the shape and dtype of one that it makes."""


class Library(Protocol):
    """Where arrays live, and how a kernel is called there."""

    def launch(
        self, kernel: triton.JITFunction, programs: int, read: Sequence[Array], numbers: Sequence[float],
        written: Sequence[Written], **constants: object,
    ) -> list[Array]:  # fmt: skip
        """Launch so many programs of a kernel; return what it has written."""
        ...

    def release(self, *arrays: Array) -> None:
        """Take back what kernels have written and no kernel reads any more."""

    def full(self, shape: tuple[int, ...], value: int) -> Array:
        """Return an int32 array of one value."""
        ...


NO_NUMBERS = (0.0,) * 7


@dataclass(frozen=True)
class Given:
    """The arguments that all kernels of a call share (`load`)."""

    library: Library
    arrays: Sequence[Array]
    dtype: str
    """Of the result."""
    rule: triton.JITFunction | None = None
    reads: int = 0
    numbers: Sequence[Any] = field(default=NO_NUMBERS)
    how: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """B and T."""
        B, T = self.arrays[0].shape
        return B, T

    @property
    def kind(self) -> str:
        """The dtype in which numbers are kept in between."""
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def constants(self) -> dict[str, Any]:
        """What is compiled into the kernels that read the arrays."""
        return {"RULE": self.rule, "READS": self.reads}

    @property
    def written(self) -> list[Array]:
        """What `load.write` reads: q and valid."""
        return [self.arrays[1], self.arrays[5]]


def of_factors(library: Library, factors: Sequence[Array], dtype: str) -> Given:
    """Return the arguments for given δ, g, ratio and cap."""
    delta, g, ratio, cap = factors
    return Given(library, [delta, g, *[delta] * 5, ratio, cap], dtype)


def count(*programs: int) -> int:
    """Return how many programs so many by so many are, the first dimension running fastest."""
    if math.prod(programs) > PROGRAMS:
        raise ValueError(f"a batch that takes {programs} programs is too large for one launch: split it")
    return math.prod(programs)


def long(T: int) -> bool:
    """Tell whether rows are too long to be swept."""
    return T > SWEPT


def without_cap(call: Given, lam: Any, out: Sequence[Array]) -> None:
    """Write Δ, or q + Δ, of a rule without a cap; or correction, target and advantage of state values.

    There is a program for a few rows, or there are several for one where rows are few and long.
    """
    B, T = call.shape
    groups = next((n for n in CHUNKS if n >= T), CHUNKS[-1]) // 8
    rows = max(1, SCAN // (8 * groups))
    chunks, programs = triton.cdiv(T, 8 * groups), triton.cdiv(B, rows)
    constants: dict[str, Any] = {**call.constants, "HOW": call.how}
    shared: dict[str, Any] = {**constants, "ROWS": rows, "GROUPS": groups, "num_warps": 4}
    launch, arrays, numbers = call.library.launch, call.arrays, [*call.numbers, lam]
    written = [out[0], out[-2], out[-1]] if len(out) > 1 else [out[0]] * 3
    if chunks < 2 * PART_CHUNKS or programs > FEW:
        launch(
            linear.linear_rows, programs, [*arrays, out[0]], [B, T, 1, chunks, *numbers], written, **shared,
            PASS=linear.WHOLE.value,
        )  # fmt: skip
        return
    parts = triton.cdiv(chunks, PART_CHUNKS)
    given = [B, T, parts, PART_CHUNKS, *numbers]
    programs = count(parts, programs)
    maps, *_ = launch(
        linear.linear_rows, programs, [*arrays, out[0]], given, [((B, parts, 5), "float64"), *written[1:]], **shared,
        PASS=linear.MAPS.value,
    )  # fmt: skip
    maps, odd = launch(
        linear.linear_ends, B, [maps], [B, parts], [maps, ((B,), "int32")], PARTS=triton.next_power_of_2(parts), num_warps=4
    )  # fmt: skip
    launch(linear.linear_rows, programs, [*arrays, maps], given, written, **shared, PASS=linear.FROM_ENDS.value)
    launch(linear.linear_odd, B, [*arrays, odd, out[0]], [T, *numbers], written, **constants, num_warps=4)


def by_steps(call: Given, pair: Array | None, horizon: int | None, lam: Any, out: Array) -> None:
    """Write Δ, or q + Δ, of a custom trace."""
    B, T = call.shape
    n = min(LINE, triton.next_power_of_2(T))
    call.library.launch(
        walk.step_rows, count(B, triton.cdiv(T, n)), [*call.arrays, call.arrays[0] if pair is None else pair],
        [horizon or T, B, T, call.how, *call.numbers, lam], [out], **call.constants, PAIR=pair is not None, N=n, num_warps=2,
    )  # fmt: skip


def transposed(
    library: Library, factors: Sequence[Array], lags: Array | None, reach: int, recursive: bool, out: Array
) -> None:
    """Write e, the gradient by δ, to `out`, which holds the gradient by Δ; it is the first of the factors as well."""
    B, T = factors[0].shape
    n = min(LINE, triton.next_power_of_2(T))
    library.launch(
        walk.transpose_rows, count(B, triton.cdiv(T, n)), [*factors, factors[0] if lags is None else lags],
        [reach, B, T], [out], RECURSIVE=recursive, LAGS=lags is not None, N=n, num_warps=2,
    )  # fmt: skip


def state_results(call: Given, delta: Array, lam: Any, out: Sequence[Array]) -> None:
    """Write correction, target and advantage of state values, from Δ."""
    B, T = call.shape
    n = min(FILLED, max(128, triton.next_power_of_2(T)))
    chunks = triton.cdiv(T, n)
    correction, target, advantage = out
    call.library.launch(
        load.state_results, count(chunks, B), [*call.arrays, delta], [T, chunks, *call.numbers, lam],
        [target, advantage, correction], **call.constants, N=n, num_warps=max(1, n // 256),
    )  # fmt: skip


def with_cap(call: Given, recursive: bool, out: Array | None = None) -> Array:
    """Return Δ, or q + Δ, of a rule with a cap: swept, by a tree over the row, or in that order.

    It may go to `out`, memory that is there already.
    """
    B, T = call.shape
    beyond = by_tree if recursive else by_sorting
    if long(T):
        return beyond(call, call.library.full((B,), sweep.TREE.value), out)
    if T <= NEAR or B * T <= SMALL:
        return swept(call, recursive, out=out)[0]
    length = triton.next_power_of_2(T)
    rows = max(1, SWEPT // length)
    (stage,) = call.library.launch(
        sweep.lifetimes, triton.cdiv(B, rows), call.arrays, [B, T, LIFE, *call.numbers], [((B,), "int32")],
        **call.constants, ROWS=rows, N=length, num_warps=4,
    )  # fmt: skip
    out, _, stage = swept(call, recursive, stage, out=out)
    return beyond(call, stage, out)


def swept(
    call: Given, recursive: bool, stage: Array | None = None, length: int | None = None, out: Array | None = None
) -> tuple[Array, Array, Array]:
    """Sweep rows, of a stage if there is one, or parts of so many steps. Return Δ, sums of logarithms of parts, and the stage."""
    B, T = call.shape
    whole = length is None
    length = T if length is None else length
    parts = 1 if whole else triton.cdiv(T, length)
    steps = triton.cdiv(length, STARTS) * STARTS
    groups = triton.cdiv(B * parts, ROWS)
    kind, now = call.kind, None if stage is None else (sweep.SWEEP if whole else sweep.TREE).value
    leave = stage is not None and whole
    launch, shape = call.library.launch, [B, T, parts, steps, groups]
    programs = count(groups, steps // STARTS)
    shared = {"RECURSIVE": recursive, "ROWS": ROWS, "N": BLOCK}
    room, ends, sums, marks, written = launch(
        sweep.prepare, programs, [*call.arrays, call.arrays[0] if stage is None else stage], [*shape, *call.numbers],
        [
            ((groups, steps, 4, ROWS), kind), ((groups, steps // BLOCK, 2, ROWS), "float64"),
            ((1,) if whole else (3, B, parts, steps // STARTS), "float64"), ((1,) if leave else (programs, ROWS), "int32"),
            ((1,), "int32") if stage is None else stage,
        ],
        **call.constants, **shared, BLOCKS=STARTS // BLOCK, MOST=LARGE[kind], STAGE=now, num_warps=4,
    )  # fmt: skip
    how = call.how if whole else 0
    outs = [((B, T), call.dtype if whole else kind) if out is None else out]
    written, marks, out = launch(
        sweep.sweep, programs, [*call.written, room, ends, written, marks, written if out is None else out],
        [*shape, -1 if now is None else now, int(leave), how], [written, marks, *outs], **shared, M=STARTS, num_warps=1,
    )  # fmt: skip
    if not leave:
        (out,) = launch(
            sweep.sweep_again, programs, [*call.arrays, room, ends, marks, out], [*shape, how, *call.numbers], [out],
            **call.constants, **shared, M=STARTS, PART=BLOCK, num_warps=1,
        )  # fmt: skip
    call.library.release(room, ends, marks)
    return out, sums, written


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
    lowest, before, clipped, within, leaving, weights, nodes, stage = launch(
        tree.leaf_tables, count(programs, B), [*call.arrays, stage, stage if there is None else there],
        [plane, B, T, programs, strides[0], *call.numbers],
        [
            ordered, plain, plain, ((B, T), kind) if there is None else there, ordered, plain,
            ((tree.NUMBERS, plane), "float64"), stage,
        ],
        **call.constants, **shared,
    )  # fmt: skip
    beyond = nodes
    for i, stride in enumerate(strides, 1):
        nodes, beyond = launch(
            tree.group, count(stride // FAN, B), [lowest, before, clipped, stage, nodes, beyond],
            [plane, wide, B, T, stride // FAN], [nodes, beyond if i > 1 else ((4, max(1, wide)), "float64")], LEVEL=i, **shared,
        )  # fmt: skip
    (out,) = launch(
        tree.starts, count(programs, B),
        [*call.written, lowest, before, clipped, within, leaving, weights, nodes, beyond, stage],
        [plane, wide, B, T, programs, call.how], [within if call.dtype == kind else out], LEVELS=len(strides), **shared,
    )  # fmt: skip
    return walked(call, stage, True, out)


def by_sorting(call: Given, stage: Array, out: Array | None) -> Array:
    """Caps at read-out, in rows that are left to this stage, by sorting blocks and merging them; others are in `out` already."""
    B, T = call.shape
    parts = triton.cdiv(T, SORTED)
    plane, steps, kind = B * parts, B * parts * SORTED, call.kind
    fresh = [((steps,), "float64"), ((steps,), kind), ((steps,), kind)]
    launch = call.library.launch
    partial, pieces, stage = swept(call, False, stage, SORTED, out if call.dtype == kind else None)
    each = pieces.shape[-1]
    (sums,) = launch(
        readout.running_sums, count(3, B), [pieces, stage], [B, parts], [((3, B, parts), "float64")],
        EACH=each, PARTS=min(triton.next_power_of_2(parts), 1024 // each), num_warps=4,
    )  # fmt: skip
    *tables, starts, weights = launch(
        readout.sorted_blocks, count(parts, B), [*call.arrays, stage, sums], [B, T, parts, plane, *call.numbers],
        [*fresh, ((steps,), "float64"), ((steps,), kind)], **call.constants, BLOCK=SORTED, num_warps=1,
    )  # fmt: skip
    size, old = SORTED, None
    while size < parts * SORTED:
        last = 2 * size >= parts * SORTED
        before = tables
        read = [*call.written, stage, sums, *tables, starts, weights, partial, *(old or tables)]
        *tables, partial = launch(
            readout.level, count(parts, B), read, [B, T, parts, plane, size, call.how],
            [*tables, partial if call.dtype == kind else out] if last else [*(old or fresh), partial],
            BLOCK=SORTED, LAST=last, num_warps=2,
        )  # fmt: skip
        size, old = 2 * size, before
    return walked(call, stage, False, partial)


def walked(call: Given, table: Array, recursive: bool, out: Array, *, reach: int = 0) -> Array:
    """Walk rows by definition: those that are left by the stages in `table`; or with a `reach` all, with bounds by lag there."""
    B, T = call.shape
    rows = 1 if reach and B < ROWS // 2 else ROWS
    groups = triton.cdiv(B, rows)
    (out,) = call.library.launch(
        walk.walk_rows, count(groups, triton.cdiv(T, WALKED)), [*call.arrays, table, table, out],
        [reach, B, T, groups, call.how, *call.numbers], [out], **call.constants,
        RECURSIVE=recursive, LAGS=reach > 0, ROWS=rows, M=WALKED, num_warps=1,
    )  # fmt: skip
    return out
