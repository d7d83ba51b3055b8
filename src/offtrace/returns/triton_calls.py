"""Launching the Triton kernels. Shapes that are compiled in are powers of two, so that a new T is rarely a new kernel."""

from __future__ import annotations

import math
import struct
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from offtrace.returns import triton_kernels as kernels
from offtrace.returns.triton_rules import MOST, bound, factors, step
from offtrace.traces import StepTrace, Trace

BLOCK = 64  # steps of a block, and starts of a program
CHUNK = 1024  # steps that a scan takes at once
SCAN, PREPARE = 1024, 512  # elements of a program
SCAN_WARPS, PREPARE_WARPS, SWEEP_WARPS, WALK_WARPS = 4, 4, 1, 2
LIMITS = {torch.float32: (1e15, 1e-18), torch.float64: (1e100, 1e-100)}


@cache
def _split(value: float) -> tuple[float, ...]:
    """A float64 as three float32, which is how Triton passes floats."""
    parts = []
    for _ in range(3):
        parts.append(struct.unpack("f", struct.pack("f", value))[0] if math.isfinite(value) else value)
        value = value - parts[-1] if math.isfinite(value) else 0.0
    return tuple(parts)


def _numbers(*values: float) -> list[float]:
    padded = [*values, *([0.0] * (MOST - len(values)))]
    return [part for value in padded for part in _split(value)]


def takes(trace: Trace) -> bool:
    """Whether the rule goes into a kernel: numbers only, and few."""
    if isinstance(trace, StepTrace):
        return not isinstance(trace.carry, tuple) or len(trace.carry) <= MOST
    return len(trace.parameters) <= MOST and all(isinstance(p, float | int) for p in trace.parameters)


@cache
def _bound(rule: Any, parameters: int) -> dict[str, Any]:
    rule = factors(rule, parameters)
    link = bound(kernels.link, factors=rule)
    walk = bound(kernels.walk, link=link)
    return {
        "linear": bound(kernels.linear_rows, link=link),
        "prepare": bound(kernels.prepare, link=link),
        "sweep": bound(kernels.sweep, walk=walk),
        "walk": bound(kernels.walk_rows, walk=walk),
    }


GIVEN = {
    "linear": kernels.linear_rows,
    "prepare": kernels.prepare,
    "sweep": kernels.sweep,
    "walk": kernels.walk_rows,
}


def correct(trace: Trace, x: dict[str, Any], lags: list[float] | None, *, add_q: bool) -> Tensor:
    """Δ, or q + Δ, [B, T] in the dtype of the arrays, which are contiguous [B, T]."""
    names = ("reward", "q", "next_value", "terminated", "truncated", "valid", "gamma", "log_pi", "log_mu")
    per_step = isinstance(x["gamma"], Tensor)
    arrays = [x[n] if isinstance(x[n], Tensor) else x["reward"] for n in names]
    numbers = [*_split(0.0 if per_step else float(x["gamma"]))]
    flags = {
        "GAMMAS": per_step, "VALID": x["valid"] is not None, "PI": "pi" in trace.reads, "MU": "mu" in trace.reads,
        "RHO": "rho" in trace.reads, "ADD_Q": add_q,
    }  # fmt: skip
    if isinstance(trace, StepTrace):
        carry = trace.carry if isinstance(trace.carry, tuple) else (trace.carry,)
        kernel = _custom(trace.step, len(carry) if isinstance(trace.carry, tuple) else 0)
        (B, T), out = x["reward"].shape, torch.empty_like(x["reward"])
        has_pair = "pair" in trace.reads
        n = min(BLOCK, triton.next_power_of_2(T))
        kernel[(B, triton.cdiv(T, n))](
            *arrays, out, x["pair"] if has_pair else arrays[0], trace.horizon or T, B, T, *numbers, *_numbers(*carry),
            *_split(float(trace.lam)), **flags, PAIR=has_pair, N=n, num_warps=WALK_WARPS,
        )  # fmt: skip
        return out
    numbers += _numbers(*map(float, trace.parameters))
    made = _bound(trace.factors, len(trace.parameters))
    return _launch(made, arrays, numbers, lags, {"GIVEN": False, **flags}, trace.per_decision, trace.recursive)


@cache
def _custom(function: Any, carries: int) -> Any:
    return bound(kernels.step_rows, step=step(function, carries))


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
    if per_decision and lags is None:
        n = min(CHUNK, triton.next_power_of_2(T))
        rows = max(1, SCAN // n)
        made["linear"][(triton.cdiv(B, rows),)](
            *arrays, out, B, T, *numbers, **flags, ROWS=rows, N=n, num_warps=SCAN_WARPS
        )
        return out
    n = min(BLOCK, max(16, triton.next_power_of_2(T)))
    blocks = triton.cdiv(T, n)
    if lags is not None:
        lags = lags if isinstance(lags, Tensor) else torch.tensor(lags, dtype=torch.float64, device=out.device)
        made["walk"][(B, blocks)](
            *arrays, out, lags, len(lags) + 1, B, T, *numbers, **flags, RECURSIVE=recursive, LAGS=True, N=n, num_warps=WALK_WARPS
        )  # fmt: skip
        return out
    kind = torch.float64 if out.dtype is torch.float64 else torch.float32
    room = torch.empty((5 if recursive else 4, B, blocks * n), dtype=kind, device=out.device)
    segments = torch.empty((B, blocks * n), dtype=torch.int8, device=out.device)
    ends = torch.empty((B, blocks, 2), dtype=torch.float64, device=out.device)
    wide = torch.empty((B, blocks), dtype=torch.int32, device=out.device)
    R, D, C, E = room[:4]
    scratch = (R, D, C, room[-1] if recursive else C, E, segments, ends, wide)
    rows = max(1, PREPARE // n)
    add_q = flags["ADD_Q"]
    flags = {name: flag for name, flag in flags.items() if name != "ADD_Q"}
    made["prepare"][(triton.cdiv(B, rows), blocks)](
        *arrays, *scratch, B, T, blocks, *numbers, *LIMITS[kind], **flags,
        RECURSIVE=recursive, ROWS=rows, N=n, num_warps=PREPARE_WARPS
    )  # fmt: skip
    made["sweep"][(B, blocks)](
        *arrays, *scratch, out, B, T, blocks, *numbers, **flags, ADD_Q=add_q, RECURSIVE=recursive, N=n,
        MOST_BLOCKS=triton.next_power_of_2(blocks), LARGEST=3e38 if kind is torch.float32 else 1e308, num_warps=SWEEP_WARPS,
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
    n = min(BLOCK, triton.next_power_of_2(T))
    kernel: Any = kernels.transpose_rows
    kernel[(B, triton.cdiv(T, n))](
        gradient, g, ratio, cap, out, lags if len(lags) else gradient, len(lags) + 1, T,
        RECURSIVE=recursive, LAGS=len(lags) > 0, N=n, num_warps=WALK_WARPS,
    )  # fmt: skip
    return out
