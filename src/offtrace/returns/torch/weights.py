"""Weights of decisions by tensor operations: on a GPU, under torch.compile and inside vmap; and means over a process group."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from offtrace.returns.numpy.weights import Merge, Totals, check_totals, merged
from offtrace.returns.torch.tensor_ops import Rows, factors, seen_by_torch
from offtrace.returns.weights.decisions import ONE_A_ROW, Criterion, Decisions, Weighing
from offtrace.returns.weights.scan import Kind, kept, starts, weigh
from offtrace.traces import Trace


def _positions(like: Tensor) -> Tensor:
    return torch.arange(like.shape[-1], device=like.device).expand(like.shape)


KIND = Kind(torch, lambda array, index: torch.take_along_dim(array, index, -1), _positions)


def weights(trace: Trace, given: Decisions[Tensor], how: Weighing, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The weights in the shape of the arrays: by a kernel on CUDA, in the dtype asked for, or in float64."""
    rows = rows_of(given)
    if device.type == "cuda" and not seen_by_torch(*rows.values()):
        from offtrace.returns.torch import cuda_weights

        if cuda_weights.takes_weights(trace, how, given.shape[-1], packed="segment" in rows):
            kind = dtype if how.normalize is None else torch.float64
            out = torch.empty((math.prod(given.shape[:-1]), given.shape[-1]), dtype=kind, device=device)
            contiguous = {name: a.contiguous() for name, a in rows.items()}
            return _shared(cuda_weights.weigh(trace, contiguous, how, out), given, how)
    decision, bounds = decision_of(given, device), bounds_of(trace, given.shape[-1], device)
    made = factors_of(trace, rows, decision)
    found = weigh(KIND, *made, decision, rows.get("segment"), bounds, trace.recursive, how)
    return _shared(found, given, how)


def _shared(found: Tensor, given: Decisions[Tensor], how: Weighing) -> Tensor:
    """Weights [N, T], normalised if that is wanted, in the shape of the arrays."""
    if how.normalize is not None:
        decision, segment = decision_of(given, found.device), rows_of(given).get("segment")
        counted = starts(KIND, decision, segment) if how.level in ONE_A_ROW else decision
        found = _normalized(found, counted, given.group, how)
    return found.reshape(given.shape)


def factors_of(trace: Trace, rows: dict[str, Tensor], decision: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """decay, ratio and cap, float64 [N, T]."""
    logs = {name: rows[name] for name in ("log_pi", "log_mu") if name in rows}
    nothing = torch.zeros((), dtype=torch.float64, device=decision.device)
    made = factors(trace, Rows(logs, decision, nothing, None, nothing, 1.0, nothing))
    decay, ratio, cap = (
        f.expand(decision.shape) if isinstance(f, Tensor) else nothing.expand(decision.shape) + f for f in made
    )
    return decay, ratio, cap


def bounds_of(trace: Trace, T: int, device: torch.device) -> Tensor | None:
    """log d_n for n = 0, 1, …, T decisions, where the rule has bounds by lag."""
    lags = trace.bounds_by_lag(T + 1)
    if lags is None:
        return None
    known = [float("inf"), *lags, *[0.0] * T][: T + 1]
    return torch.tensor(known, dtype=torch.float64, device=device).log()


def rows_of(given: Decisions[Tensor]) -> dict[str, Tensor]:
    """The arrays as [N, T]."""
    return {n: a.detach().reshape(-1, given.shape[-1]) for n, a in given.arrays().items() if n != "group"}


def decision_of(given: Decisions[Tensor], device: torch.device) -> Tensor:
    """The mask as booleans [N, T]."""
    if given.mask is None:
        return torch.ones(given.shape, dtype=torch.bool, device=device).reshape(-1, given.shape[-1])
    return given.mask.reshape(-1, given.shape[-1]) != 0


def keep(criteria: tuple[Criterion, ...], given: Decisions[Tensor]) -> Tensor:
    """Whether each decision is kept."""
    rows = rows_of(given)
    decision = decision_of(given, rows["log_pi"].device)
    log_mu = torch.where(rows["log_mu"].isneginf(), torch.nan, rows["log_mu"].double())  # NaN passes no criterion
    log_ratio = torch.where(decision, rows["log_pi"].double() - log_mu, 0.0)
    return kept(KIND, criteria, log_ratio, decision, rows.get("segment")).reshape(given.shape)


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
        found: list[Totals] = [{}] * distributed.get_world_size(process_group)  # pyright: ignore[reportArgumentType]
        gather(found, dict(totals), group=process_group)
        return merged(found)

    return merge
