"""Weights of decisions by tensor operations: on a GPU, under torch.compile and inside vmap; and means over a process group."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from offtrace.returns.numpy.weights import Merge, Totals, check_totals, merged
from offtrace.returns.torch.tensor_ops import TORCH, seen_by_torch
from offtrace.returns.weights import scan
from offtrace.returns.weights.decisions import ONE_A_ROW, Criterion, Decisions, Weighing, check_offsets
from offtrace.traces import Trace


def weights(trace: Trace, given: Decisions[Tensor], how: Weighing, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The weights in the shape of the arrays: by a kernel on CUDA, in the dtype asked for, or in float64."""
    T = given.shape[-1]
    rows = _rows(given)
    segment = rows.get("segment")
    weights = None
    if device.type == "cuda" and not seen_by_torch(*rows.values()):
        from offtrace.returns.torch import cuda_weights

        if cuda_weights.takes_weights(trace, how, T, packed=segment is not None):
            kind = dtype if how.normalize is None else torch.float64
            out = torch.empty((math.prod(given.shape[:-1]), T), dtype=kind, device=device)
            weights = cuda_weights.weigh(trace, {name: a.contiguous() for name, a in rows.items()}, how, out)
    if weights is None:
        logs = {name: rows[name] for name in ("log_pi", "log_mu") if name in rows}
        weights = scan.weigh(TORCH, trace, logs, _decision(given, device), segment, how)
    if how.normalize is not None:
        decision = _decision(given, device)
        counted = scan.starts(TORCH, decision, segment) if how.level in ONE_A_ROW else decision
        weights = _normalized(weights, counted, given.group, how)
    return weights.reshape(given.shape)


def of_packed(trace: Trace, given: Decisions[Tensor], cu_seqlens: object, how: Weighing) -> Tensor | None:
    """The weights of flat arrays [N] on CUDA, or None where no kernel takes the rule."""
    from offtrace.returns.torch import cuda_weights

    arrays = {name: a.detach() for name, a in given.arrays().items()}
    name, first = next(iter(arrays.items()))
    if not cuda_weights.takes_weights(trace, how, len(first), packed=False):
        return None
    if not isinstance(cu_seqlens, Tensor):
        check_offsets(np.asarray(cu_seqlens), len(first), name)
    starts = torch.as_tensor(cu_seqlens, device=first.device)
    if starts.ndim != 1 or starts.is_floating_point() or starts.dtype is torch.bool:
        raise TypeError(f"cu_seqlens must hold integers [n + 1], got {starts.dtype} of shape {tuple(starts.shape)}")
    dtype = reduce(torch.promote_types, given.dtypes or (torch.get_default_dtype(),))
    return cuda_weights.weigh_packed(trace, arrays, how, starts, dtype)


def keep(criteria: tuple[Criterion, ...], given: Decisions[Tensor]) -> Tensor:
    """Whether each decision is kept."""
    rows = _rows(given)
    log_pi, log_mu, decision = rows["log_pi"], rows["log_mu"], _decision(given, rows["log_pi"].device)
    advantage = None if given.advantage is None else given.advantage.detach().reshape(len(decision), -1)
    return scan.kept(TORCH, criteria, log_pi, log_mu, decision, rows.get("segment"), advantage).reshape(given.shape)


def _rows(given: Decisions[Tensor]) -> dict[str, Tensor]:
    """The arrays as [N, T]."""
    T = given.shape[-1]
    return {name: a.detach().reshape(-1, T) for name, a in given.arrays().items() if name not in ("group", "advantage")}


def _decision(given: Decisions[Tensor], device: torch.device) -> Tensor:
    """The mask as booleans [N, T]; kernels read the mask itself, and save this pass."""
    if given.mask is None:
        return torch.ones(given.shape, dtype=torch.bool, device=device).reshape(-1, given.shape[-1])
    return given.mask.reshape(-1, given.shape[-1]) != 0


def _normalized(weights: Tensor, counted: Tensor, group: Tensor | None, how: Weighing) -> Tensor:
    """Weights over their mean, in the batch or in their group."""
    total, count = torch.where(counted, weights, 0.0).sum(1), counted.sum(1)
    if group is None and how.process_group is None:
        mean = total.sum() / count.sum()
        return weights / torch.where(mean > 0, mean, 1.0)
    if seen_by_torch(weights, group):
        raise TypeError("a mean over groups or processes needs values: normalise outside of torch.compile and vmap")
    ids = torch.zeros_like(count) if group is None else group.detach()
    names, place = torch.unique(ids, return_inverse=True)
    parts = [torch.zeros(len(names), dtype=p.dtype, device=p.device).index_add_(0, place, p) for p in (total, count)]
    totals: Totals = {name: (s, c) for name, s, c in zip(names.tolist(), *(p.tolist() for p in parts), strict=True)}
    totals = totals if how.process_group is None else over(how.process_group)(totals)
    check_totals(totals, grouped=group is not None)
    means = [totals[name][0] / max(1, totals[name][1]) or 1.0 for name in names.tolist()]
    return weights / torch.tensor(means, dtype=weights.dtype, device=weights.device)[place][:, None]


def over(process_group: object) -> Merge:
    """From the totals of one process to those of all in the group. Every process of the group must call it."""
    from torch import distributed

    gather: Callable[..., None] = distributed.all_gather_object

    def merge(totals: Totals) -> Totals:
        of_all: list[Totals] = [{}] * distributed.get_world_size(process_group)  # pyright: ignore[reportArgumentType]
        gather(of_all, dict(totals), group=process_group)
        return merged(of_all)

    return merge
