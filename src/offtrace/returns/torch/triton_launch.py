"""Launching the Triton kernels. Shapes that are compiled in are powers of two, so that a new T is rarely a new kernel."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from offtrace.returns.torch import triton_caps, triton_scan, triton_tree, triton_walks
from offtrace.returns.torch.triton_rules import MOST, bound, factors, step
from offtrace.traces import Trace
from offtrace.traces.symbols import Lines

# The numbers are what was fastest on an H200 (`benchmarks/gpu.py`).
ROWS, STARTS = 32, 16
"""Of a program that sweeps or walks: a row for each thread of a warp. `sweep` looks for lost traces once all starts have joined,
which is right for at most two blocks of them: each shrinks a trace by at most 1e-18, so float32 still holds it."""
WALKED = 16  # starts of a program that walks them by definition
BLOCK = 8  # steps whose products are taken together: one thread's
CHUNK, SCAN = 256, 1024  # steps that a scan takes at once, and elements of its program
PART_CHUNKS, FEW = 8, 512  # chunks of a part of a long row, which is parted where there are at most so many programs
LINE = 64  # starts of a program that has one row only
PART = BLOCK  # starts of a program that are walked by definition at a time: the registers are taken all along
RANGE = {torch.float32: (1e18, 1e-36, 100, 30), torch.float64: (1e100, 1e-200, 900, 70)}
"""How large products within a block may be, or how small their inverses; how small the weights of a program's starts; by how many
powers of two a trace may fall before it may be lost, and then grow."""
PROGRAMS = 2**31 - 1  # of one launch, all in one dimension: the others end at 65535
SWEPT, NEAR, LIFE = 1024, 256, 20
"""Recursive caps: the longest row that is swept at all, the longest that is only swept, and for how many blocks, in the mean, a
trace may live in the rows between: those in which it lives longer are left to the tree."""
LEAF, FAN = triton_tree.LEAF.value, 32  # of the tree
LONGEST = 4096  # rows of float32 that are swept in float32: a sum of more numbers would lose too many digits


@cache
def _split(value: float) -> tuple[float, float, float]:
    """A float64 as three float32, which is how Triton passes floats: 24 bits, 24 more, and the last five beside the exponent."""
    if not math.isfinite(value) or value == 0.0:
        return value, 0.0, 32.0
    fraction, exponent = math.frexp(value)
    whole, sign = int(abs(fraction) * 2**53), math.copysign(1.0, value)
    return sign * (whole >> 29), sign * (whole >> 5 & 0xFFFFFF), exponent * 64 + 32 + sign * (whole & 31)


def _numbers(*values: float) -> list[float]:
    padded = [*values, *([0.0] * (MOST - len(values)))]
    return [part for value in padded for part in _split(value)]


def takes(trace: Trace) -> bool:
    """Whether the rule goes into a kernel: numbers only, and few."""
    if trace.step_form is not None:
        return len(trace.step_form.carries) <= MOST
    return (
        not trace.custom and len(trace.parameters) <= MOST and all(isinstance(p, float | int) for p in trace.parameters)
    )


def grid(*programs: int) -> tuple[int]:
    """The grid of so many by so many programs, the first dimension running fastest."""
    if math.prod(programs) > PROGRAMS:
        raise ValueError(f"a batch that takes {programs} programs is too large for one launch: split it")
    return (math.prod(programs),)


@cache
def _bound(lines: Lines) -> dict[str, Any]:
    enters = bound(triton_scan.enters, factors=factors(lines))
    link = bound(triton_scan.link, enters=enters)
    walk = bound(triton_walks.walk, link=link)
    of_any_size = bound(triton_walks.walk_of_any_size, link=link)
    return {
        "linear": bound(
            triton_scan.linear_rows,
            enters=enters,
            linear_of_any_size=bound(triton_scan.linear_of_any_size, enters=enters),
        ),
        "prepare": bound(triton_caps.prepare, enters=enters),
        "sweep": bound(triton_caps.sweep, sweep_starts=bound(triton_caps.sweep_starts, walk_of_any_size=of_any_size)),
        "walk": bound(triton_walks.walk_rows, walk=walk, walk_of_any_size=of_any_size),
        "leaf_tables": bound(triton_tree.leaf_tables, leaf=bound(triton_tree.leaf, link=link)),
        "starts": bound(triton_tree.starts, leaf=bound(triton_tree.leaf, link=link)),
    }


NAMES = ("reward", "q", "next_value", "terminated", "truncated", "valid", "gamma", "log_pi", "log_mu", "pair")
"""The arrays of `correct`: None, or for gamma a number, where there is no tensor."""

GIVEN = {
    "linear": triton_scan.linear_rows,
    "prepare": triton_caps.prepare,
    "sweep": triton_caps.sweep,
    "walk": triton_walks.walk_rows,
    "leaf_tables": triton_tree.leaf_tables,
    "starts": triton_tree.starts,
}


def correct(trace: Trace, x: dict[str, Any], lags: list[float] | None, *, add_q: bool) -> Tensor:
    """Δ, or q + Δ, [B, T] in the dtype of the arrays, which are contiguous [B, T]."""
    per_step = isinstance(x["gamma"], Tensor)
    arrays = [x[n] if isinstance(x[n], Tensor) else x["reward"] for n in NAMES if n != "pair"]
    numbers = [*_split(0.0 if per_step else float(x["gamma"]))]
    flags = {
        "GAMMAS": per_step, "VALID": x["valid"] is not None, "PI": "pi" in trace.reads, "MU": "mu" in trace.reads,
        "RHO": "rho" in trace.reads, "ADD_Q": add_q,
    }  # fmt: skip
    custom = trace.step_form
    if custom is not None:
        kernel = _custom(custom.traced.lines)
        (B, T), out = x["reward"].shape, torch.empty_like(x["reward"])
        has_pair = "pair" in trace.reads
        n = min(LINE, triton.next_power_of_2(T))
        kernel[grid(B, triton.cdiv(T, n))](
            *arrays, out, x["pair"] if has_pair else arrays[0], trace.horizon or T, B, T, *numbers, *_numbers(*custom.carries),
            *_split(float(custom.lam)), **flags, PAIR=has_pair, N=n, num_warps=2,
        )  # fmt: skip
        return out
    numbers += _numbers(*map(float, trace.parameters))
    made = _bound(trace.traced.lines)
    return _launch(made, arrays, numbers, lags, {"GIVEN": False, **flags}, trace.per_decision, trace.recursive)


@cache
def _custom(lines: Lines) -> Any:
    return bound(triton_walks.step_rows, step=step(lines))


def _launch(
    made: dict[str, Any],
    arrays: list[Tensor],
    numbers: list[float],
    lags: list[float] | Tensor | None,
    flags: dict[str, Any],
    per_decision: bool,
    recursive: bool,
) -> Tensor:
    B, T = arrays[0].shape
    out = torch.empty_like(arrays[0])
    rows, length = min(ROWS, triton.next_power_of_2(B)), triton.next_power_of_2(T)
    if per_decision and lags is None:
        return _linear(made["linear"], arrays, numbers, flags, out)
    if lags is not None:
        lags = lags if isinstance(lags, Tensor) else torch.tensor(lags, dtype=torch.float64, device=out.device)
        starts = min(WALKED, length)
        groups = triton.cdiv(B, rows)
        made["walk"][grid(groups, triton.cdiv(T, starts))](
            *arrays, out, lags, len(lags) + 1, out, B, T, groups, *numbers, **flags,
            RECURSIVE=recursive, LAGS=True, SOME=False, ROWS=rows, M=starts, num_warps=1,
        )  # fmt: skip
        return out
    if recursive and T > SWEPT:
        return _tree(made, arrays, numbers, flags, out, None, None)
    kind = torch.float64 if out.dtype is torch.float64 or T > LONGEST else torch.float32
    starts = max(BLOCK, min(STARTS, length))
    groups, parts = triton.cdiv(B, rows), triton.cdiv(T, starts)
    steps = parts * starts
    room = torch.empty((groups, steps, 4, rows), dtype=kind, device=out.device)
    ends = torch.empty((groups, steps // BLOCK, 2, rows), dtype=torch.float64, device=out.device)
    most, least, lost, back = RANGE[kind]
    marks = recursive and T > NEAR
    left_over = torch.empty(B, dtype=torch.int32, device=out.device) if marks else out
    add_q = flags["ADD_Q"]
    every, flags = flags, {name: flag for name, flag in flags.items() if name != "ADD_Q"}
    made["prepare"][grid(groups, parts)](
        *arrays, room, ends, B, T, steps, groups, *numbers, **flags,
        RECURSIVE=recursive, ROWS=rows, BLOCKS=starts // BLOCK, N=BLOCK, MOST=most, num_warps=4,
    )  # fmt: skip
    if marks:
        kernel: Any = triton_caps.lifetimes
        blocks = steps // BLOCK
        kernel[grid(groups)](
            ends, left_over, B, blocks, ROWS=rows, BLOCKS=triton.next_power_of_2(blocks), LIFE=LIFE, num_warps=4
        )
    made["sweep"][grid(groups, parts)](
        *arrays, room, ends, left_over, out, B, T, steps, groups, *numbers, **flags, ADD_Q=add_q, RECURSIVE=recursive,
        ROWS=rows, M=starts, N=BLOCK, PART=PART, LEAST=least, LOST=lost, BACK=back, MARKS=marks, num_warps=1,
    )  # fmt: skip
    return _tree(made, arrays, numbers, every, out, left_over, room) if marks else out


def _linear(kernel: Any, arrays: list[Tensor], numbers: list[float], flags: dict[str, Any], out: Tensor) -> Tensor:
    """Traces without a cap: one program for a few rows, or several for each row where rows are few and long."""
    B, T = out.shape
    groups = max(1, min(CHUNK, triton.next_power_of_2(T)) // 8)
    rows = max(1, SCAN // (8 * groups))
    chunks, programs = triton.cdiv(T, 8 * groups), triton.cdiv(B, rows)
    given = {**flags, "ROWS": rows, "GROUPS": groups, "num_warps": 4}
    if chunks < 2 * PART_CHUNKS or programs > FEW:
        kernel[grid(programs)](*arrays, out, out, out, B, T, 1, chunks, *numbers, **given, PASS=triton_scan.WHOLE)
        return out
    parts = triton.cdiv(chunks, PART_CHUNKS)
    maps = torch.empty((B, parts, 5), dtype=torch.float64, device=out.device)
    odd = torch.empty(B, dtype=torch.int32, device=out.device)
    ends: Any = triton_scan.linear_ends
    shape = (*arrays, maps, odd, out, B, T)
    kernel[grid(parts, programs)](*shape, parts, PART_CHUNKS, *numbers, **given, PASS=triton_scan.MAPS)
    ends[grid(B)](maps, odd, B, parts, PARTS=triton.next_power_of_2(parts), num_warps=4)
    kernel[grid(parts, programs)](*shape, parts, PART_CHUNKS, *numbers, **given, PASS=triton_scan.FROM_ENDS)
    kernel[grid(programs)](*shape, 1, chunks, *numbers, **given, PASS=triton_scan.REST)
    return out


def _tree(
    made: dict[str, Any],
    arrays: list[Tensor],
    numbers: list[float],
    flags: dict[str, Any],
    out: Tensor,
    left_over: Tensor | None,
    room: Tensor | None,
) -> Tensor:
    """Recursive caps by a tree over each row, or over those rows that a sweep has left over; its `room` is used again."""
    B, T = out.shape
    leaves = triton.cdiv(T, LEAF)
    strides = [triton.cdiv(leaves, FAN) * FAN]
    while strides[-1] > FAN:
        strides.append(triton.cdiv(strides[-1] // FAN, FAN) * FAN)
    levels = len(strides)
    keys = out.dtype is not torch.float64
    number = torch.float32 if keys else torch.float64
    steps = B * strides[0] * LEAF
    if room is None or room.dtype is not number or room.numel() < 3 * steps:
        room = torch.empty(3 * steps, dtype=number, device=out.device)
    lowest, before, clipped = room.view(-1)[: 3 * steps].view(3, steps)
    lowest = lowest.view(torch.int32) if keys else lowest
    plane = B * (sum(strides) + FAN)
    nodes = torch.empty((9, plane), dtype=torch.float64, device=out.device)
    odd = torch.zeros(B, dtype=torch.int32, device=out.device)
    wide = B * sum(strides[1:]) * FAN
    beyond = torch.empty((4, wide), dtype=torch.float64, device=out.device)
    tables = (lowest, before, clipped, nodes, plane)
    some, marks = left_over is not None, odd if left_over is None else left_over
    add_q = flags["ADD_Q"]
    flags = {name: flag for name, flag in flags.items() if name != "ADD_Q"}
    programs = strides[0] // FAN
    warps = max(1, FAN // 2)
    made["leaf_tables"][grid(programs, B)](
        *arrays,
        *tables,
        marks,
        odd,
        B,
        T,
        programs,
        strides[0],
        *numbers,
        **flags,
        FAN=FAN,
        KEYS=keys,
        SOME=some,
        num_warps=warps,
    )
    for level, stride in enumerate(strides, 1):
        kernel: Any = triton_tree.group
        parents = stride // FAN
        kernel[grid(parents, B)](
            *tables, beyond, wide, marks, B, T, parents, LEVEL=level, FAN=FAN, KEYS=keys, SOME=some, num_warps=warps
        )
    made["starts"][grid(programs, B)](
        *arrays, *tables, beyond, wide, marks, odd, out, B, T, programs, *numbers, **flags, ADD_Q=add_q, LEVELS=levels, FAN=FAN,
        KEYS=keys, SOME=some, num_warps=warps,
    )  # fmt: skip
    rows, n = min(ROWS, triton.next_power_of_2(B)), min(WALKED, triton.next_power_of_2(T))
    groups = triton.cdiv(B, rows)
    made["walk"][grid(groups, triton.cdiv(T, n))](
        *arrays, out, out, 0, odd, B, T, groups, *numbers, **flags, ADD_Q=add_q,
        RECURSIVE=True, LAGS=False, SOME=True, ROWS=rows, M=n, num_warps=1,
    )  # fmt: skip
    return out


def given(
    delta: Tensor, g: Tensor, ratio: Tensor, cap: Tensor, lags: Tensor | None, *, per_decision: bool, recursive: bool
) -> Tensor:
    """The same from given δ, g, ratio and cap."""
    unread = [delta] * 5
    flags = dict.fromkeys(("GAMMAS", "VALID", "PI", "MU", "RHO", "ADD_Q"), False)
    arrays = [delta, g, *unread, ratio, cap]
    bounds = None if lags is None or not len(lags) else lags
    return _launch(
        GIVEN, arrays, [*_split(0.0), *_numbers()], bounds, {"GIVEN": True, **flags}, per_decision, recursive
    )  # fmt: skip


def transpose(gradient: Tensor, g: Tensor, ratio: Tensor, cap: Tensor, lags: Tensor, recursive: bool) -> Tensor:
    """e, the gradient by δ."""
    out = gradient.clone()
    B, T = gradient.shape
    n = min(LINE, triton.next_power_of_2(T))
    kernel: Any = triton_walks.transpose_rows
    kernel[grid(B, triton.cdiv(T, n))](
        gradient, g, ratio, cap, out, lags if len(lags) else gradient, len(lags) + 1, B, T,
        RECURSIVE=recursive, LAGS=len(lags) > 0, N=n, num_warps=2,
    )  # fmt: skip
    return out
