"""Calls on the GPU as most are: recorded the first time (`recorded_launches`), and repeated after it.

A recorded call is kept by all that it depends on: what is compiled into its kernels, which arrays there are, their shape, dtype
and device. Numbers, those of the rule too, are passed anew, so that another γ or λ is not another recording.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from offtrace.returns.backend import UsualCall
from offtrace.returns.torch import triton_launch
from offtrace.returns.torch.recorded_launches import Repeated, record
from offtrace.returns.triton.plans import split
from offtrace.traces import Rule, Trace

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
MOST = 256  # recordings that are kept
NAMES = ("reward", "q", "next_value", "terminated", "truncated", "log_pi", "log_mu", "valid")
"""The tensors of a call, in the order in which they are handed to a recorded one."""
_calls: dict[object, Repeated | None] = {}
"""Recorded calls; None for one that cannot be repeated."""


class _Facts(NamedTuple):
    """What a kernel has compiled in of a rule, and the numbers that it is passed."""

    compiled_in: tuple[object, ...]
    numbers: tuple[float, ...]
    needs_pi: bool
    needs_mu: bool


@lru_cache(1024)
def _facts(trace: Rule) -> _Facts | None:
    if not isinstance(trace, Trace) or trace.custom or trace.needs_greedy or trace.per_step:
        return None
    if trace.horizon is not None or trace.lag_bound is not None or not triton_launch.takes(trace):
        return None
    compiled_in = trace.traced.lines, trace.reads, trace.per_decision, trace.recursive
    numbers = tuple(triton_launch.numbers_of(trace, 0.0)[len(split(0.0)) :])
    return _Facts(compiled_in, numbers, trace.needs_pi, trace.needs_mu)


def usual(call: UsualCall[Tensor]) -> Tensor | None:
    """q + Δ, or Δ, of a usual call (`Backend.usual`) of tensors on a GPU; else None."""
    trace, add_q, _, reward, q, next_value, terminated, truncated, gamma, log_pi, log_mu, valid = call
    facts = _facts(trace) if isinstance(trace, Rule) and trace.hashable else None
    if facts is None or (facts.needs_pi and log_pi is None) or (facts.needs_mu and log_mu is None):
        return None
    reals = [reward, q, next_value]
    flags = [terminated, truncated] if valid is None else [terminated, truncated, valid]
    others = [array for array in (log_pi, log_mu) if array is not None]
    if not _are_plain([*reals, *others], flags):
        return None
    # What the rule does not read is not handed on.
    log_pi, log_mu = log_pi if facts.needs_pi else None, log_mu if facts.needs_mu else None
    inputs = [reward, q, next_value, terminated, truncated, log_pi, log_mu, valid]
    given = [tensor for tensor in inputs if tensor is not None]
    if reward.is_cuda and reward.get_device() != torch.cuda.current_device():
        return None
    key = facts.compiled_in, add_q, valid is None, reward.shape, reward.dtype, reward.device
    if key not in _calls:
        return _recorded(key, call, inputs, [*split(gamma), *facts.numbers])
    repeated = _calls[key]
    return None if repeated is None else repeated(given, [*split(gamma), *facts.numbers])


def _recorded(key: object, call: UsualCall[Tensor], inputs: list[Tensor | None], numbers: list[float]) -> Tensor:
    trace, T = call.trace, call.reward.shape[-1]
    assert isinstance(trace, Trace)
    rows = {
        name: triton_launch.row_by_row(tensor.detach(), T)
        for name, tensor in zip(NAMES, inputs, strict=True)
        if tensor is not None
    }
    every = dict.fromkeys(triton_launch.NAMES) | rows | {"gamma": call.gamma}
    out, repeated = record(
        lambda numbers: triton_launch.correct(trace, every, None, add_q=call.add_q, numbers=numbers),
        list(rows.values()),
        numbers,
    )
    if len(_calls) >= MOST:
        del _calls[next(iter(_calls))]
    _calls[key] = repeated
    return out


def _are_plain(reals: list[Tensor], flags: list[Tensor]) -> bool:
    """Whether tensors are all [B, T] in one piece on one device, and aligned, of one dtype or booleans."""
    first = reals[0]
    shape, dtype, device = first.shape, first.dtype, first.device
    if dtype not in DTYPES or len(shape) != 2 or (shape[1] == 1 and shape[0] > 1) or not first.numel():
        return False
    for kind, tensors in ((dtype, reals), (torch.bool, flags)):
        for tensor in tensors:
            if not (
                type(tensor) is Tensor
                and tensor.dtype is kind
                and tensor.shape == shape
                and tensor.device == device
                and tensor.is_contiguous()
                and not tensor.data_ptr() & 15  # kernels are compiled for this
            ):
                return False
    return True
