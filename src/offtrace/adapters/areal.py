"""AReaL's `apply_rejection_sampling`, by the same arguments: a mask, or clamped weights π_prox/μ.

The function takes the place of that in AReaL's `utils/functional`; AReaL itself is not needed. A token whose ratio is not known
(both logarithms −∞) has a ratio of 1, as there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from offtrace.returns import reject, weights
from offtrace.traces import ImportanceSampling


class RejectionSamplingResult(NamedTuple):
    """What takes the place of AReaL's class where AReaL is not installed."""

    loss_mask: Tensor
    behave_imp_weight: Tensor
    filtered_fraction: float


def apply_rejection_sampling(
    proximal_logprobs: Tensor, old_logprobs: Tensor, loss_mask: Tensor, cu_seqlens: Tensor | None, config: Any
) -> Any:
    """Mask tokens or sequences that moved too far, or clamp their weights; `config` is AReaL's RejectionSamplingConfig."""
    for name, array in (("old_logprobs", old_logprobs), ("loss_mask", loss_mask)):
        if array.shape != proximal_logprobs.shape:
            raise ValueError(f"proximal_logprobs shape {proximal_logprobs.shape} != {name} shape {array.shape}")
    by_row = config.level == "sequence"
    if loss_mask.ndim == 1 and by_row and cu_seqlens is None:
        raise ValueError("cu_seqlens is required for 1D packed tensors in sequence-level filtering.")
    mask = loss_mask != 0
    known = torch.isfinite(proximal_logprobs - old_logprobs)
    prox, old = (torch.where(known, log, 0.0).detach() for log in (proximal_logprobs, old_logprobs))
    given: dict[str, Any] = {"mask": mask, "cu_seqlens": cu_seqlens if by_row else None}
    ratio = config.metric == "ratio"
    w = weights(
        ImportanceSampling(), log_pi=prox, log_mu=old, **given, level="geometric" if by_row and ratio else "token"
    )
    # AReaL's k1 and k3 are of KL(π, μ): those of KL(μ, π) with π and μ exchanged.
    logs = {"log_pi": prox, "log_mu": old} if ratio else {"log_pi": old, "log_mu": prox}
    kept = reject(**logs, **given, by=_criterion(config, by_row), lower=_lower(config), upper=config.upper)
    if config.action == "mask":
        updated = (mask & kept).to(loss_mask.dtype)
        filtered, weight = mask & ~kept, w
    else:
        clamped = w.clamp(min=0.0 if config.lower is None else config.lower, max=config.upper)
        updated, weight = loss_mask, torch.where(kept, w, clamped)
        filtered = mask & (weight != w)
    weight = torch.where(updated != 0, weight, 0.0)
    return _result()(updated, weight, float(filtered.sum()) / max(1, int(mask.sum())))


def _criterion(config: Any, by_row: bool) -> str:
    """The criterion of `reject`."""
    k = "ratio" if config.metric == "ratio" else config.metric.removeprefix("kl_")
    if not by_row:
        return f"token {k}"
    return "sequence ratio" if k == "ratio" and config.agg == "sum" else f"sequence {config.agg} {k}"


def _lower(config: Any) -> float | None:
    """The lower bound; k2 and k3 have none, since they are never negative."""
    return config.lower if config.metric in ("ratio", "kl_k1") else None


def _result() -> Any:
    """AReaL's class of results, or ours where it is not installed."""
    try:
        from areal.utils.functional import RejectionSamplingResult as theirs  # pyright: ignore
    except ImportError:
        return RejectionSamplingResult
    return theirs  # pyright: ignore
