"""SkyRL's registries: any loss of `offtrace.policy.loss`, and its off-policy correction by the same arguments.

    PolicyLossRegistry.register("ctpo", offtrace.adapters.skyrl.policy_loss("ctpo"))

The functions have the names, arguments, results and metrics of SkyRL's `off_policy_correction_utils`; SkyRL itself is not needed.
Log ratios are not clamped at ±20.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from offtrace.policy import PolicyLoss, loss
from offtrace.policy.policy_loss import named_loss
from offtrace.policy.shapes import Clip, ClippedWeight, Divergence, Gate, Shape
from offtrace.returns import reject, weights
from offtrace.traces import ImportanceSampling, Trace, TruncatedIS

Metrics = dict[str, float]


def policy_loss(
    name: str | PolicyLoss, *, trace: Trace | None = None, level: str = "token", **options: Any
) -> Callable[..., tuple[Tensor, Metrics]]:
    """The function to register: the sum of the loss over tokens, whose advantages SkyRL has divided already.

    Bounds and temperatures are those of SkyRL's configuration, unless `clip` is given. DPPO compares with the rollout policy, as
    in SkyRL. With `trace`, the weight π_old/π_rollout is that of `weights(trace, level=level)`; else it is what the configuration
    of the off-policy correction says. `options` are those of `offtrace.policy.loss`.
    """
    own: Any = named_loss(name)

    def compute(
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        config: Any,
        loss_mask: Tensor | None = None,
        rollout_logprobs: Tensor | None = None,
    ) -> tuple[Tensor, Metrics]:
        mask = torch.ones_like(log_probs) if loss_mask is None else loss_mask
        more: dict[str, Any] = dict(options)
        parts = own if "clip" in more else replace(own, shape=_by_configuration(own.shape, config))
        metrics: Metrics = {}
        proximal = old_log_probs
        if rollout_logprobs is not None:
            proximal = rollout_logprobs if isinstance(own.shape, Divergence) else old_log_probs
            more["log_mu"] = rollout_logprobs
            correction = config.off_policy_correction
            ratio, metrics, kept = compute_off_policy_correction(old_log_probs, rollout_logprobs, mask, correction)
            more["keep"] = kept != 0
            if trace is not None:
                ratio = weights(trace, log_pi=old_log_probs, log_mu=rollout_logprobs, mask=mask, level=level)
            if ratio is not None:
                more["weight"] = ratio.expand_as(log_probs).contiguous()
        result = loss(
            parts,
            log_pi=log_probs,
            log_prox=proximal,
            advantage=advantages,
            mask=mask,
            mean="token-mean",
            tokens=1,
            **more,
        )
        clipped = result.arrays["clipped"].sum() / result.decisions.clamp(min=1)
        return result.loss, {"clip_ratio": clipped.item(), **metrics}

    return compute


def _by_configuration(shape: Shape, config: Any) -> Shape:
    """The shape with the numbers that SkyRL has for it."""
    if isinstance(shape, Clip):
        dual = config.clip_ratio_c if config.policy_loss_type == "dual_clip" else None
        return Clip(config.eps_clip_low, config.eps_clip_high, dual)
    if isinstance(shape, ClippedWeight):
        return ClippedWeight(config.cispo.cispo_eps_clip_low, config.cispo.cispo_eps_clip_high)
    if isinstance(shape, Gate):
        return Gate(config.sapo.tau_pos, config.sapo.tau_neg)
    if isinstance(shape, Divergence):
        return Divergence(config.dppo.dppo_type.removeprefix("binary_"), config.dppo.delta_low, config.dppo.delta_high)
    return shape


def compute_tis_ratio(
    old_log_probs: Tensor, rollout_logprobs: Tensor, loss_mask: Tensor, tis_ratio_type: str, off_policy_correction: Any
) -> tuple[Tensor, Metrics]:
    """Truncated weights by token [B, T], or by sequence [B, 1], and the share that is truncated."""
    given = _given(old_log_probs, rollout_logprobs, loss_mask)
    if tis_ratio_type == "token":
        bound = off_policy_correction.token_tis_ratio_clip_high
        plain = weights(ImportanceSampling(), **given, level="token")
        ratio = weights(TruncatedIS(bound=bound), **given, level="token")
        return ratio, {"tis_token_clip_high_ratio": _share((plain > bound).sum(), (loss_mask > 0).sum())}
    if tis_ratio_type == "sequence":
        bound = off_policy_correction.sequence_tis_ratio_clip_high
        plain = weights(ImportanceSampling(), **given, level="sequence").amax(-1, keepdim=True)
        return plain.clamp(max=bound), {"tis_seq_clip_high_ratio": _share((plain > bound).sum(), len(plain))}
    raise ValueError(f"Unknown tis_ratio_type: {tis_ratio_type}")


def compute_outlier_token_mask(
    old_log_probs: Tensor, rollout_logprobs: Tensor, loss_mask: Tensor, off_policy_correction: Any
) -> tuple[Tensor, Metrics]:
    """1 for sequences [B, 1] all of whose tokens have a ratio within the thresholds."""
    c = off_policy_correction
    given = _given(old_log_probs, rollout_logprobs, loss_mask)
    low, high = c.outlier_token_is_threshold_low, c.outlier_token_is_threshold_high
    over, under = (_any_outside(given, bound) for bound in ({"upper": high}, {"lower": low}))
    valid = ~(over | under)
    shares = {"masked": ~valid, "over_high": over, "under_low": under}
    return valid[:, None].float(), {
        f"outlier_seq_{name}_ratio": _share(flag.sum(), len(flag)) for name, flag in shares.items()
    }


def compute_token_mask(
    old_log_probs: Tensor, rollout_logprobs: Tensor, loss_mask: Tensor, off_policy_correction: Any
) -> tuple[Tensor, Metrics]:
    """1 for tokens whose ratio is within the thresholds, and where the mask is 0."""
    c = off_policy_correction
    given = _given(old_log_probs, rollout_logprobs, loss_mask)
    kept = reject(**given, by="token ratio", lower=c.token_mask_is_threshold_low, upper=c.token_mask_is_threshold_high)
    out = (loss_mask > 0) & ~kept
    return (~out).float(), {"token_mask_ratio": _share(out.sum(), (loss_mask > 0).sum())}


def compute_sequence_mask(
    old_log_probs: Tensor,
    rollout_logprobs: Tensor,
    loss_mask: Tensor,
    sequence_mask_metric: str,
    off_policy_correction: Any,
) -> tuple[Tensor, Metrics]:
    """1 for sequences [B, 1] whose ratio, or its geometric mean, is within the bounds."""
    c = off_policy_correction
    known = {
        "geometric": ("geometric", "geo", c.geo_mask_low, c.geo_mask_high),
        "product": ("sequence", "product", c.product_mask_low, c.product_mask_high),
    }
    if sequence_mask_metric not in known:
        raise ValueError(f"Unknown sequence_mask_metric: {sequence_mask_metric}")
    level, word, low, high = known[sequence_mask_metric]
    given = _given(old_log_probs, rollout_logprobs, loss_mask)
    ratio = weights(ImportanceSampling(), **given, level=level).amax(-1, keepdim=True)
    ratio = torch.where((loss_mask > 0).any(-1, keepdim=True), ratio, 1.0)
    over, under = ratio > high, ratio < low
    shares = {"masked": over | under, "over_high": over, "under_low": under}
    metrics = {f"{word}_sequence_mask_{name}_ratio": _share(flag.sum(), len(flag)) for name, flag in shares.items()}
    return (~(over | under)).float(), metrics


def compute_off_policy_correction(
    old_log_probs: Tensor, rollout_logprobs: Tensor, loss_mask: Tensor, off_policy_correction: Any
) -> tuple[Tensor | None, Metrics, Tensor]:
    """The weights (None: 1), metrics, and the mask without what is rejected."""
    c = off_policy_correction
    by_outliers = c.outlier_token_is_threshold_low is not None or c.outlier_token_is_threshold_high is not None
    by_tokens = c.token_mask_is_threshold_low is not None and c.token_mask_is_threshold_high is not None
    if c.tis_ratio_type is None and c.sequence_mask_metric is None and not by_outliers and not by_tokens:
        return None, {}, loss_mask
    logs = old_log_probs, rollout_logprobs
    ratio = weights(ImportanceSampling(), **_given(*logs, loss_mask), level="token")
    metrics = {
        "is_ratio_mean": _share(ratio.sum(), (loss_mask > 0).sum()),
        "is_ratio_std": ratio.std().item(),
        "is_ratio_max": ratio.max().item(),
        "is_ratio_min": ratio.min().item(),
    }
    kept, tis_ratio = loss_mask, None
    for wanted, mask_of in ((by_outliers, compute_outlier_token_mask), (by_tokens, compute_token_mask)):
        if wanted:
            mask, more = mask_of(*logs, kept, c)
            kept, metrics = kept * mask, metrics | more
    if c.tis_ratio_type is not None:
        tis_ratio, more = compute_tis_ratio(*logs, kept, c.tis_ratio_type, c)
        metrics |= more
    if c.sequence_mask_metric is not None:
        mask, more = compute_sequence_mask(*logs, kept, c.sequence_mask_metric, c)
        kept, metrics = kept * mask, metrics | more
    return tis_ratio, metrics, kept


def _given(old: Tensor, rollout: Tensor, mask: Tensor) -> dict[str, Any]:
    return {"log_pi": old, "log_mu": rollout, "mask": mask > 0}


def _any_outside(given: dict[str, Any], bound: dict[str, Any]) -> Tensor:
    """Whether a token of each row has a ratio outside of the bound; False where there is none."""
    if all(value is None for value in bound.values()):
        return torch.zeros(len(given["mask"]), dtype=torch.bool, device=given["mask"].device)
    return (given["mask"] & ~reject(**given, by="token ratio", **bound)).any(-1)


def _share(part: Any, whole: Any) -> float:
    return float(part) / max(1.0, float(whole))
