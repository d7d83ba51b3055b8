"""Launching the Triton kernels on tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from offtrace.returns.torch.recorded_launches import ALIGNED, Recorded, recorded
from offtrace.returns.triton import plans, scan, walks, weight_kernel
from offtrace.returns.triton.plans import count, of_rule, parameters, split
from offtrace.returns.triton.rules import MOST, bound, changes, log_factors, step
from offtrace.returns.weights.decisions import Weighing
from offtrace.traces import Trace
from offtrace.traces.symbols import Lines

# The numbers are what was fastest on an H200 (`benchmarks/gpu.py`).
CHUNK, SCAN = 256, 1024  # steps that a scan takes at once, and elements of its program
PART_CHUNKS, FEW = 8, 512  # chunks of a part of a long row, which is parted where there are at most so many programs
AT_ONCE = 1 << 22  # steps that are done at once, at most
LINE = 64  # starts of a program that has one row only
FILLED = 1024  # numbers that a program writes
DTYPES = {
    "int32": torch.int32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
NAME_OF = {dtype: name for name, dtype in DTYPES.items()}


class Tensors:
    """Tensors of a device, for `plans`. Memory that is released is used again."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.taken: dict[int, Tensor] = {}
        """The memory of each tensor, as bytes, by its address."""
        self.free: list[Tensor] = []
        self.all: list[Tensor] = []
        """What was allocated, in one piece each."""

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        fits = [(memory.numel(), i) for i, memory in enumerate(self.free) if memory.numel() >= size]
        if fits:
            memory = self.free.pop(min(fits)[1])
        else:
            memory = torch.empty(size, dtype=torch.uint8, device=self.device)
            self.all.append(memory)
        own = -(-size // ALIGNED) * ALIGNED  # what is left of it can be had by others
        self.free += [memory[own:]] if memory.numel() > own else []
        self.taken[memory.data_ptr()] = memory[:own]
        return memory[:size].view(dtype).view(shape)

    def release(self, *tensors: Tensor) -> None:
        """Let what is launched from now on have the memory of these, if it is of `launch`."""
        self.free += [self.taken.pop(t.data_ptr()) for t in tensors if t.data_ptr() in self.taken]

    def release_all(self) -> None:
        """Let what is launched from now on have all memory."""
        self.free = [*self.all]
        self.taken.clear()

    def launch(
        self, kernel: triton.JITFunction, programs: int, read: Sequence[Tensor], numbers: Sequence[float],
        written: Sequence[plans.Written], **constants: object,
    ) -> list[Tensor]:  # fmt: skip
        """Launch so many programs of a kernel; return what it has written."""
        made = [w if isinstance(w, Tensor) else self._empty(w[0], DTYPES[w[1]]) for w in written]
        recorded(kernel)[(programs,)](*read, *numbers, *made, **constants)
        return made

    def full(self, shape: tuple[int, ...], value: int) -> Tensor:
        """Return an int32 tensor of one value."""
        made, size = self._empty(shape, torch.int32), math.prod(shape)
        recorded(scan.fill)[(triton.cdiv(size, FILLED),)](value, size, made, N=FILLED, num_warps=4)
        return made


def takes(trace: Trace) -> bool:
    """Whether the rule goes into a kernel: numbers only, and few."""
    if trace.step_form is not None:
        return len(trace.step_form.carries) <= MOST
    return (
        not trace.custom and len(trace.parameters) <= MOST and all(isinstance(p, float | int) for p in trace.parameters)
    )


NAMES = ("reward", "q", "next_value", "terminated", "truncated", "valid", "gamma", "log_pi", "log_mu", "pair")
"""The arrays of `correct`: None, or for gamma a number, where there is no tensor."""


def row_by_row(array: Tensor, T: int) -> Tensor:
    """The tensor as [B, T] in one piece, in an object of its own; flags as bytes."""
    rows = array.reshape(-1, T).contiguous()
    return rows.view(torch.uint8 if rows.dtype is torch.bool else rows.dtype)


def numbers_of(trace: Trace, gamma: float) -> list[float]:
    """The numbers that a kernel takes: γ, and the parameters of a rule in normal form."""
    return [*split(gamma), *parameters(*map(float, trace.parameters))]


def correct(
    trace: Trace, x: dict[str, Any], lags: list[float] | None, *, add_q: bool, numbers: list[float] | None = None
) -> Tensor:
    """Δ, or q + Δ, [B, T] in the dtype of the arrays, which are contiguous [B, T]. `numbers` may be given, of `numbers_of`."""
    per_step = isinstance(x["gamma"], Tensor)
    arrays = [x[n] if isinstance(x[n], Tensor) else x["reward"] for n in NAMES if n != "pair"]
    gamma = 0.0 if per_step else float(x["gamma"])
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
        kernel[(count(B, triton.cdiv(T, n)),)](
            *arrays, out, x["pair"] if has_pair else arrays[0], trace.horizon or T, B, T, *split(gamma),
            *parameters(*custom.carries), *split(float(custom.lam)), **flags, PAIR=has_pair, N=n, num_warps=2,
        )  # fmt: skip
        return out
    made, numbers = of_rule(trace.traced.lines), numbers or numbers_of(trace, gamma)
    return _launch(made, arrays, numbers, lags, {"GIVEN": False, **flags}, trace.per_decision, trace.recursive)


@cache
def _custom(lines: Lines) -> triton.JITFunction:
    return bound(walks.step_rows, step=step(lines))


def _launch(
    made: Mapping[str, triton.JITFunction],
    arrays: list[Tensor],
    numbers: list[float],
    lags: list[float] | Tensor | None,
    flags: dict[str, bool],
    per_decision: bool,
    recursive: bool,
) -> Tensor:
    if per_decision and lags is None:
        return _linear(recorded(made["linear"]), arrays, numbers, flags)
    device, (B, T) = arrays[0].device, arrays[0].shape
    if lags is not None:
        lags = lags if isinstance(lags, Tensor) else torch.tensor(lags, dtype=torch.float64, device=device)
        rows, starts = plans.rows_of(B), min(plans.WALKED, triton.next_power_of_2(T))
        out, groups = torch.empty_like(arrays[0]), triton.cdiv(B, rows)
        made["walk"][(count(groups, triton.cdiv(T, starts)),)](
            *arrays, lags, out, out, len(lags) + 1, B, T, groups, *numbers, out, **flags,
            RECURSIVE=recursive, LAGS=True, SOME=False, ROWS=rows, M=starts, num_warps=1,
        )  # fmt: skip
        return out
    flags = dict(flags)
    add_q = flags.pop("ADD_Q")
    library, dtype = Tensors(device), NAME_OF[arrays[0].dtype]
    out, rows = torch.empty_like(arrays[0]), _rows_at_once(B, T, recursive)
    for i in range(0, B, rows):
        part = arrays if rows >= B else [a[i : i + rows] for a in arrays]
        call = plans.Given(library, made, part, numbers, flags, dtype, add_q)
        plans.with_cap(call, recursive, out[i : i + rows])
        library.release_all()
    return out


def _rows_at_once(B: int, T: int, recursive: bool) -> int:
    """How many rows are done at once, so that the memory beside a batch is three arrays of it, or little more.

    All rows at once take 4.5 of them where they are only swept, 6 for a recursive cap and 12 for one at read-out. Smaller parts
    would cost more time than the memory is worth.
    """
    swept = T <= plans.NEAR
    parts = 2 if swept or recursive else 4
    least = 1 << 19 if swept or (recursive and plans.long(T)) else 1 << 20
    parts = max(1, min(parts, B * T // least))
    return max(1, min(triton.cdiv(B, parts), AT_ONCE // T))


def _linear(kernel: Recorded, arrays: list[Tensor], numbers: list[float], flags: dict[str, bool]) -> Tensor:
    """Traces without a cap: one program for a few rows, or several for each row where rows are few and long."""
    out = torch.empty_like(arrays[0])
    B, T = out.shape
    groups = max(1, min(CHUNK, triton.next_power_of_2(T)) // 8)
    rows = max(1, SCAN // (8 * groups))
    chunks, programs = triton.cdiv(T, 8 * groups), triton.cdiv(B, rows)
    given = {**flags, "ROWS": rows, "GROUPS": groups, "num_warps": 4}
    if chunks < 2 * PART_CHUNKS or programs > FEW:
        kernel[(programs,)](*arrays, out, out, out, B, T, 1, chunks, *numbers, **given, PASS=scan.WHOLE)
        return out
    parts = triton.cdiv(chunks, PART_CHUNKS)
    maps = torch.empty((B, parts, 5), dtype=torch.float64, device=out.device)
    odd = torch.empty(B, dtype=torch.int32, device=out.device)
    ends = recorded(scan.linear_ends)
    shape = (*arrays, maps, odd, out, B, T)
    kernel[(count(parts, programs),)](*shape, parts, PART_CHUNKS, *numbers, **given, PASS=scan.MAPS)
    ends[(B,)](maps, odd, B, parts, PARTS=triton.next_power_of_2(parts), num_warps=4)
    kernel[(count(parts, programs),)](*shape, parts, PART_CHUNKS, *numbers, **given, PASS=scan.FROM_ENDS)
    kernel[(programs,)](*shape, 1, chunks, *numbers, **given, PASS=scan.REST)
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
        plans.KERNELS, arrays, [*split(0.0), *parameters()], bounds, {"GIVEN": True, **flags}, per_decision, recursive
    )  # fmt: skip


def transpose(gradient: Tensor, g: Tensor, ratio: Tensor, cap: Tensor, lags: Tensor, recursive: bool) -> Tensor:
    """e, the gradient by δ."""
    out = gradient.clone()
    B, T = gradient.shape
    n = min(LINE, triton.next_power_of_2(T))
    kernel: Any = walks.transpose_rows
    kernel[(count(B, triton.cdiv(T, n)),)](
        gradient, g, ratio, cap, out, lags if len(lags) else gradient, len(lags) + 1, B, T,
        RECURSIVE=recursive, LAGS=len(lags) > 0, N=n, num_warps=2,
    )  # fmt: skip
    return out


LEVELS = {
    "token": weight_kernel.TOKEN,
    "prefix": weight_kernel.PREFIX,
    "suffix": weight_kernel.SUFFIX,
    "sequence": weight_kernel.SEQUENCE,
    "geometric": weight_kernel.GEOMETRIC,
}
WEIGHED, EACH = 1024, 8  # steps that are scanned at once, and those of a thread
REGISTERS = 128  # of a thread: so four programs fit on a multiprocessor, and 512 rows on an H200


def takes_weights(trace: Trace, how: Weighing, T: int, *, packed: bool) -> bool:
    """Whether there is a kernel: for bounds by lag, and for packed rows beyond tokens and prefixes, there is none."""
    plain = not packed or how.level in ("token", "prefix")
    return plain and takes(trace) and trace.step_form is None and trace.bounds_by_lag(T + 1) is None


@cache
def _weighing(lines: Lines) -> triton.JITFunction:
    return bound(weight_kernel.weigh_rows, log_factors=log_factors(lines))


def _decays(trace: Trace) -> int:
    """Whether the rule's decays are all 1, all the same, or others at each step."""
    decay, *_ = trace.factors(np, 1.0, 1.0, 1.0, *trace.parameters)
    same = weight_kernel.ONE if decay == 1.0 else weight_kernel.SAME
    return (weight_kernel.OTHER if changes(trace.traced.lines.results[0]) else same).value


def weigh(trace: Trace, x: dict[str, Tensor], how: Weighing, out: Tensor) -> Tensor:
    """The weights of decisions, into `out` [N, T], whose device and dtype are taken."""
    N, T = out.shape
    arrays = [x.get(name, out) for name in ("log_pi", "log_mu", "mask", "segment")]
    arrays = [a.view(torch.uint8) if a.dtype is torch.bool else a for a in arrays]
    length = min(WEIGHED, triton.next_power_of_2(T))
    _weighing(trace.traced.lines)[(N,)](
        *arrays, T, *split(how.lower), *split(how.upper), *parameters(*map(float, trace.parameters)), out,
        PI="pi" in trace.reads, MU="mu" in trace.reads, RHO="rho" in trace.reads, MASK="mask" in x, SEGMENT="segment" in x,
        LEVEL=LEVELS[how.level].value, RECURSIVE=trace.recursive, DECAYS=_decays(trace),
        ONE_CAP=not changes(trace.traced.lines.results[2]), BOUNDED=how.bounded, DROP=how.drop,
        SINGLE=out.dtype is not torch.float64, N=length, num_warps=max(1, length // (32 * EACH)), maxnreg=REGISTERS,
    )  # fmt: skip
    return out
