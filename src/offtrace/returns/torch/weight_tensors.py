"""Weights of decisions by tensor operations: on a GPU, under torch.compile and inside vmap; and means over a process group."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from offtrace.returns.numpy.weight_rows import Merge, Totals, check_totals, merged
from offtrace.returns.torch.tensor_operations import Rows, factors, seen_by_torch
from offtrace.returns.weight_arrays import ONE_A_ROW, Criterion, Decisions, Weighing
from offtrace.returns.weight_scan import Kind, kept, starts, weigh
from offtrace.traces import Trace


def _positions(like: Tensor) -> Tensor:
    return torch.arange(like.shape[-1], device=like.device).expand(like.shape)


KIND = Kind(torch, lambda array, index: torch.take_along_dim(array, index, -1), _positions)


def weights(trace: Trace, given: Decisions[Tensor], how: Weighing, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The weights in the shape of the arrays: by a kernel on CUDA, in the dtype asked for, or in float64."""
    rows = _rows(given)
    if device.type == "cuda" and not seen_by_torch():
        from offtrace.returns.torch import triton_launch

        if triton_launch.takes_weights(trace, how, given.shape[-1], packed="segment" in rows):
            kind = dtype if how.normalize is None else torch.float64
            out = torch.empty((math.prod(given.shape[:-1]), given.shape[-1]), dtype=kind, device=device)
            contiguous = {name: a.contiguous() for name, a in rows.items()}
            return _shared(triton_launch.weigh(trace, contiguous, how, out), given, how)
    T = given.shape[-1]
    decision = _decision(given, device)
    logs = {name: rows[name] for name in ("log_pi", "log_mu") if name in rows}
    nothing = torch.zeros((), dtype=torch.float64, device=device)
    made = factors(trace, Rows(logs, decision, nothing, None, nothing, 1.0, nothing))
    decay, ratio, cap = (
        f.expand(decision.shape) if isinstance(f, Tensor) else nothing.expand(decision.shape) + f for f in made
    )
    lags = trace.bounds_by_lag(T + 1)
    bounds = None
    if lags is not None:
        known = [float("inf"), *lags, *[0.0] * T][: T + 1]
        bounds = torch.tensor(known, dtype=torch.float64, device=device).log()
    found = weigh(KIND, decay, ratio, cap, decision, rows.get("segment"), bounds, trace.recursive, how)
    return _shared(found, given, how)


def _shared(found: Tensor, given: Decisions[Tensor], how: Weighing) -> Tensor:
    """Weights [N, T], normalised if that is wanted, in the shape of the arrays."""
    if how.normalize is not None:
        decision, segment = _decision(given, found.device), _rows(given).get("segment")
        counted = starts(KIND, decision, segment) if how.level in ONE_A_ROW else decision
        found = _normalized(found, counted, decision.any(1), given.group, how)
    return found.reshape(given.shape)


def _rows(given: Decisions[Tensor]) -> dict[str, Tensor]:
    """The arrays as [N, T]."""
    return {n: a.detach().reshape(-1, given.shape[-1]) for n, a in given.arrays().items() if n != "group"}


def _decision(given: Decisions[Tensor], device: torch.device) -> Tensor:
    """The mask as booleans [N, T]."""
    if given.mask is None:
        return torch.ones(given.shape, dtype=torch.bool, device=device).reshape(-1, given.shape[-1])
    return given.mask.reshape(-1, given.shape[-1]) != 0


def keep(criteria: tuple[Criterion, ...], given: Decisions[Tensor]) -> Tensor:
    """Whether each decision is kept."""
    rows = _rows(given)
    decision = _decision(given, rows["log_pi"].device)
    log_ratio = torch.where(decision, rows["log_pi"].double() - rows["log_mu"].double(), 0.0)
    return kept(KIND, criteria, log_ratio, decision, rows.get("segment")).reshape(given.shape)


def _normalized(weights: Tensor, counted: Tensor, filled: Tensor, group: Tensor | None, how: Weighing) -> Tensor:
    """Weights over their mean, in the batch or in their group."""
    total, count = torch.where(counted, weights, 0.0).sum(1), counted.sum(1)
    if group is None and how.process_group is None:
        mean = total.sum() / count.sum()
        return weights / torch.where(mean > 0, mean, 1.0)
    if seen_by_torch():
        raise TypeError("a mean over groups or processes needs values: normalise outside of torch.compile and vmap")
    ids = torch.zeros_like(count) if group is None else group.detach()
    names, place = torch.unique(ids, return_inverse=True)
    parts = [torch.zeros(len(names), dtype=p.dtype, device=p.device).index_add_(0, place, p) for p in (total, count)]
    rows = torch.zeros_like(parts[1]).index_add_(0, place, filled.to(count.dtype))
    all_parts = zip(names.tolist(), *(p.tolist() for p in (*parts, rows)), strict=True)
    totals: Totals = {name: (s, c, r) for name, s, c, r in all_parts}
    totals = totals if how.process_group is None else over(how.process_group)(totals)
    check_totals(totals, grouped=group is not None)
    means = [totals[name][0] / max(1, totals[name][1]) or 1.0 for name in names.tolist()]
    return weights / torch.tensor(means, dtype=weights.dtype, device=weights.device)[place][:, None]


def over(process_group: object) -> Merge:
    """From the totals of one process to those of all in the group. Every process of the group must call it."""
    from torch import distributed

    gather: Callable[..., None] = distributed.all_gather_object

    def merge(totals: Totals) -> Totals:
        found: list[Totals] = [{}] * distributed.get_world_size(process_group)  # pyright: ignore[reportArgumentType]
        gather(found, dict(totals), group=process_group)
        return merged(found)

    return merge
