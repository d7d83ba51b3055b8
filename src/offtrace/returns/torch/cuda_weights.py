"""Weights of decisions on a GPU, by a Triton kernel that the rule's logarithms are compiled into."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from offtrace.returns.torch.cuda import Planner, launch, takes
from offtrace.returns.triton import weights as kernels
from offtrace.returns.triton.rule_source import MOST, changes, log_factors
from offtrace.returns.weights.decisions import LEVELS, Weighing
from offtrace.traces import Trace

WEIGHED, EACH = 1024, 8  # steps that are scanned at once, and those of a thread
REGISTERS = 128  # of a thread: so four programs fit on a multiprocessor, and 512 rows on an H200


def takes_weights(trace: Trace, how: Weighing, T: int, *, packed: bool) -> bool:
    """Whether there is a kernel: for bounds by lag, and for packed rows beyond tokens and prefixes, there is none."""
    plain = not packed or how.level in ("token", "prefix")
    return plain and takes(trace) and trace.step_form is None and trace.bounds_by_lag(T + 1) is None


def _decays(trace: Trace) -> int:
    """Whether the rule's decays are all 1, all the same, or others at each step."""
    decay, *_ = trace.factors(np, 1.0, 1.0, 1.0, *trace.parameters)
    same = kernels.ONE if decay == 1.0 else kernels.SAME
    return (kernels.OTHER if changes(trace.traced.lines.results[0]) else same).value


def weigh(trace: Trace, x: dict[str, Tensor], how: Weighing, out: Tensor, starts: Tensor | None = None) -> Tensor:
    """The weights of decisions, into `out` [N, T], whose device and dtype are taken.

    With `starts` [n + 1] rows are packed: arrays and `out` are flat, and row b lies from starts[b] up to starts[b + 1].
    """
    rows, T = out.shape if starts is None else (len(starts) - 1, WEIGHED)
    arrays = [x.get(name, out) for name in ("log_pi", "log_mu", "mask", "segment")]
    arrays.append(out if starts is None else starts)
    length = min(WEIGHED, triton.next_power_of_2(T))
    constants: dict[str, Any] = {
        "RULE": log_factors(trace.traced.lines), "PI": "pi" in trace.reads, "MU": "mu" in trace.reads,
        "RHO": "rho" in trace.reads, "MASK": "mask" in x, "SEGMENT": "segment" in x, "LEVEL": LEVELS.index(how.level),
        "RECURSIVE": trace.recursive, "DECAYS": _decays(trace), "ONE_CAP": not changes(trace.traced.lines.results[2]),
        "BOUNDED": how.bounded, "DROP": how.drop, "SINGLE": out.dtype is not torch.float64, "PACKED": starts is not None,
        "N": length, "num_warps": max(1, length // (32 * EACH)), "maxnreg": REGISTERS,
    }  # fmt: skip
    parameters = [*trace.parameters, *[0.0] * (MOST - len(trace.parameters))]
    numbers = [float(n) for n in (how.lower, how.upper, *parameters, out.numel())]

    def make(planner: Planner, rows: int) -> None:
        read, out_slot = [planner.slot() for _ in arrays], planner.slot()
        planner.launch(kernels.weigh_rows, rows, read, [T, *(planner.slot() for _ in numbers)], [out_slot], **constants)

    if out.numel():
        launch((*constants.values(), *(a.dtype for a in arrays)), (rows, T), arrays, [out], numbers, make)
    return out


def weigh_packed(trace: Trace, x: dict[str, Tensor], how: Weighing, starts: Tensor, dtype: torch.dtype) -> Tensor:
    """The weights of packed rows, flat; NaN where `starts` leaves entries out."""
    any_array = next(iter(x.values()))
    out = torch.full(any_array.shape, torch.nan, dtype=dtype, device=any_array.device)
    return weigh(trace, {name: a.contiguous() for name, a in x.items()}, how, out, starts.contiguous())
