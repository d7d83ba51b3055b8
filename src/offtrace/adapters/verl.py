"""verl's `compute_rollout_correction_and_rejection_mask`, with the same arguments and results, and more levels and traces.

It takes the place of the function of that name in verl's `trainer/ppo/rollout_corr_helper.py`, and `compute_is_metrics` and
`compute_offpolicy_metrics` of those there; verl itself is not needed. Names and meanings are those of verl 0.9.1. What is
otherwise there is told in the documentation of the function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from offtrace._shared.extras import install

try:
    import torch
    from torch import Tensor, distributed
except ModuleNotFoundError as error:
    raise ImportError(f"offtrace.adapters.verl needs PyTorch ({error}): {install('torch')}") from None

from offtrace._shared.suggestions import closest, ending
from offtrace.adapters.verl_metrics import Taken, of_policies, of_rejections, of_training, of_weights
from offtrace.policy import PolicyLoss, loss
from offtrace.policy.policy_loss import named_loss
from offtrace.policy.shapes import Clip
from offtrace.returns import reject, weights
from offtrace.returns.weights.api import KNOWN, criteria
from offtrace.returns.weights.decisions import ESTIMATES, LEVELS, ONE_A_ROW, Criterion
from offtrace.traces import ImportanceSampling, Trace

__all__ = [
    "Batch",
    "compute_is_metrics",
    "compute_offpolicy_metrics",
    "compute_rollout_correction_and_rejection_mask",
    "policy_loss",
]

OPTIONS = {
    name.replace("sequence", "seq").replace(" ", "_"): name
    for name in KNOWN
    if name.endswith(ESTIMATES) and not name.startswith("prefix")
}
"""From verl's names of criteria to ours: "seq_mean_k3" is "sequence mean k3"."""


class Batch(NamedTuple):
    """What takes the place of verl's DataProto where verl is not installed."""

    batch: dict[str, Tensor]
    """The weights, under the name "rollout_is_weights"."""


def policy_loss(name: str | PolicyLoss, **options: Any) -> Callable[..., tuple[Tensor, dict[str, Any]]]:
    """A loss of `offtrace.policy.loss` as verl calls one: `register_policy_loss("ctpo")(policy_loss("ctpo"))`.

    Bounds of a clip, the dual clip and the denominators of the global batch are those of verl's configuration, the mean is
    `loss_agg_mode`; `options` are those of `offtrace.policy.loss`, and go first. The weight is `rollout_is_weights`, where verl
    gives it.

    >>> import torch
    >>> mask, log_prob = torch.ones(1, 2), torch.tensor([[-0.5, -0.1]])
    >>> value, metrics = policy_loss("ppo")(torch.full((1, 2), -0.5), log_prob, mask, mask)
    >>> round(float(value), 4), metrics["actor/pg_clipfrac"]
    (-1.1, 0.5)
    """
    parts = named_loss(name)

    def compute(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        by_verl: dict[str, Any] = {"mean": loss_agg_mode}
        if config is not None:
            whole = config.global_batch_info
            norm = loss_agg_mode == "seq-mean-token-sum-norm"
            by_verl["ranks"] = 1 if norm else whole.get("dp_size", 1)
            by_verl["rows"] = 1 if norm else whole.get("global_batch_size")
            by_verl |= {"tokens": whole.get("batch_num_tokens"), "length": whole.get("loss_scale_factor")}
            if isinstance(parts.shape, Clip):
                sides = (config.clip_ratio_low, config.clip_ratio_high)
                by_verl["clip"] = tuple(config.clip_ratio if side is None else side for side in sides)
                by_verl["dual"] = config.get("clip_ratio_c", 3.0) if parts.level == "token" else None
        result = loss(
            parts, log_pi=log_prob, log_prox=old_log_prob, advantage=advantages, mask=response_mask,
            weight=rollout_is_weights, **by_verl | options,
        )  # fmt: skip
        kl = torch.where(response_mask != 0, old_log_prob - log_prob.detach(), 0.0)
        both = torch.stack([result.arrays["clipped"].sum(), kl.sum()]) / result.decisions.clamp(min=1)
        clipped, moved = both.cpu().numpy()  # one transfer
        return result.loss, {"actor/pg_clipfrac": float(clipped), "actor/ppo_kl": float(moved)}

    return compute


def compute_rollout_correction_and_rejection_mask(
    old_log_prob: Tensor,
    rollout_log_prob: Tensor,
    response_mask: Tensor,
    rollout_is: str | None = None,
    rollout_is_threshold: str | float | None = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: str | None = None,
    rollout_rs_threshold: str | float | None = None,
    *,
    trace: Trace | None = None,
    segment: Tensor | None = None,
    process_group: object = None,
) -> tuple[Any, Tensor, dict[str, float]]:
    """Weights, the mask without what is rejected, and metrics, by the arguments of verl's function. All tensors are [B, T].

    - `old_log_prob`, `rollout_log_prob`, `response_mask`: log π, log μ, and which tokens are decisions
    - `rollout_is`: None, "token" or "sequence"; further "prefix", "suffix" and "geometric", as in `offtrace.weights`
    - `rollout_is_threshold`: a number, at which weights are truncated, or "lower_upper", outside of which they are 0 (IcePop)
    - `rollout_is_batch_normalize`: divide by the mean, over all processes where torch.distributed runs, or over `process_group`
    - `rollout_rs`: criteria such as "token_k1,seq_mean_k3", separated by commas
    - `rollout_rs_threshold`: a bound for all, or one for each, separated by commas; for k1 "lower_upper", both ratios
    - `trace`: the rule for the weights, plain importance sampling unless it is given
    - `segment`: ids of rows that were packed into one

    Returns a DataProto with "rollout_is_weights" (a `Batch` where verl is not installed; None without `rollout_is`), the mask,
    and metrics whose names begin with "rollout_corr/".

    The numbers are those of verl 0.9.1, but for this: log ratios are not clamped at ±20, means are over n and not n + 1e-8, and
    rows without a decision do not count.

    With `rollout_rs`, a token whose log μ is −inf, although it was drawn, is rejected with a warning, and with it its row by
    criteria of sequences; the metric "rollout_rs_never_drawn" counts such tokens. They have a weight of 0, and products of ratios
    pass over them. Without `rollout_rs` they are an error.

    >>> import torch
    >>> log = torch.log(torch.tensor([[0.5, 0.5, 0.2], [0.4, 0.9, 0.1]]))
    >>> result, mask, metrics = compute_rollout_correction_and_rejection_mask(
    ...     log, log - torch.log(torch.tensor(3.0)), torch.tensor([[1, 1, 0], [1, 1, 1]]),
    ...     rollout_is="token",
    ...     rollout_rs="seq_sum_k1", rollout_rs_threshold="0.1_10")
    >>> result.batch["rollout_is_weights"].tolist()
    [[2.0, 2.0, 0.0], [2.0, 2.0, 2.0]]
    >>> mask.tolist()
    [[1, 1, 0], [0, 0, 0]]
    >>> round(metrics["rollout_corr/rollout_is_mean"], 3)
    2.0
    """
    taken: Taken = {
        "log_pi": old_log_prob,
        "log_mu": rollout_log_prob,
        "mask": response_mask,
        "segment": segment,
    }
    metrics: dict[str, float] = {}
    applied, mask = None, response_mask.clone()
    if rollout_rs is not None:
        names, chosen = _criteria(rollout_rs, rollout_rs_threshold)
        lower, upper = ([getattr(c, side) for c in chosen] for side in ("lower", "upper"))
        lower = [None if math.isinf(bound) else bound for bound in lower]
        by = [OPTIONS[name] for name in names]
        # On the host, as the metrics are: so a bad log μ is said on a GPU too.
        mask = (response_mask * reject(**taken, by=by, lower=lower, upper=upper, check=True)).to(response_mask.dtype)
        metrics |= of_rejections(taken, names, chosen)
        taken["mask"] = _drawn(taken)
    if rollout_is is not None and rollout_is_threshold is not None:
        applied, new_metrics = _weights(
            taken,
            rollout_is,
            rollout_is_threshold,
            rollout_is_batch_normalize,
            trace or ImportanceSampling(),
            process_group,
        )
        metrics |= new_metrics
    metrics |= of_policies(taken)
    return applied, mask, {f"rollout_corr/{name}": value for name, value in metrics.items()}


def _drawn(taken: Taken) -> Tensor:
    """The mask without tokens that μ never draws."""
    drawn = (taken["mask"] != 0) & ~taken["log_mu"].isneginf()
    if not drawn.any():
        raise ValueError("rollout_log_prob is −inf at every decision: no such token can have been drawn")
    return drawn


def compute_is_metrics(
    rollout_is_weights: Tensor,
    raw_rollout_is_weights: Tensor,
    log_ratio_for_metrics: Tensor,
    response_mask: Tensor,
    rollout_is: str,
    rollout_is_threshold: float,
    rollout_is_threshold_lower: float | None = None,
) -> dict[str, float]:
    """The metrics of weights by the arguments of verl's function: after truncation, before it, and the logarithms of the latter.

    By "sequence" and "geometric" the logarithms are one for each row, [B, 1], and are read in place of the weights before
    truncation; else they are not read.

    >>> import torch
    >>> raw = torch.tensor([[1.0, 6.0], [0.9, 1.1]])
    >>> metrics = compute_is_metrics(raw.clamp(max=2.0), raw, raw.log(), torch.ones(2, 2), "token", 2.0)
    >>> metrics["rollout_is_max"], metrics["rollout_is_seq_fraction_high"]
    (2.0, 0.5)
    """
    _check_level(rollout_is)
    raw = raw_rollout_is_weights
    if rollout_is in ONE_A_ROW:
        raw = log_ratio_for_metrics.double().exp().expand_as(raw)
    zero = torch.zeros_like(rollout_is_weights)
    taken: Taken = {"log_pi": zero, "log_mu": zero, "mask": response_mask, "segment": None}
    lower, upper = rollout_is_threshold_lower, rollout_is_threshold
    metrics = of_weights(taken, rollout_is, raw, rollout_is_weights, lower, upper)
    metrics.pop("rollout_is_oob_ratio", None)  # which verl adds elsewhere
    return metrics


def compute_offpolicy_metrics(
    old_log_prob: Tensor, rollout_log_prob: Tensor | None, response_mask: Tensor
) -> dict[str, float]:
    """How far π and μ are apart, by the arguments of verl's function; of π alone where `rollout_log_prob` is None.

    >>> import torch
    >>> log = torch.log(torch.tensor([[0.5, 0.25]]))
    >>> metrics = compute_offpolicy_metrics(log, log, torch.ones(1, 2))
    >>> round(metrics["training_ppl"], 3), metrics["k3_kl"], len(metrics)
    (2.828, 0.0, 13)
    """
    if rollout_log_prob is None:
        return of_training(old_log_prob, response_mask)
    return of_policies({"log_pi": old_log_prob, "log_mu": rollout_log_prob, "mask": response_mask, "segment": None})


def _check_level(level: str) -> None:
    if level not in LEVELS:
        raise ValueError(
            f"rollout_is = {level!r} is not known{ending(closest(level, LEVELS))} It is one of: {', '.join(LEVELS)}"
        )


def _weights(
    taken: Taken, level: str, threshold: str | float, normalize: bool, trace: Trace, process_group: object
) -> tuple[Any, dict[str, float]]:
    """The weights, as verl wraps them, and their metrics."""
    _check_level(level)
    lower, upper = _bounds("rollout_is_threshold", threshold)
    raw = weights(trace, **taken, level=level)
    options: dict[str, Any] = {"lower": lower, "upper": upper, "outside": "truncate" if lower is None else "mask"}
    applied = weights(trace, **taken, level=level, **options)
    metrics = of_weights(taken, level, raw, applied, lower, upper)
    if normalize:
        if process_group is None and distributed.is_available() and distributed.is_initialized():
            process_group = distributed.group.WORLD
        options |= {"normalize": "batch", "process_group": process_group}
        divided = weights(trace, **taken, level=level, **options)
        at = int(torch.argmax(applied))
        factor = float(applied.flatten()[at].double() / divided.flatten()[at].double()) if divided.any() else 1.0
        applied, metrics["rollout_is_batch_norm_factor"] = divided, factor
    return _wrapped({"rollout_is_weights": applied}), metrics


def _wrapped(tensors: dict[str, Tensor]) -> Any:
    """As verl's DataProto, or as what has the same `batch` where verl is not installed."""
    try:
        from verl.protocol import DataProto  # pyright: ignore
    except ImportError:
        return Batch(tensors)
    return DataProto.from_dict(tensors=tensors)  # pyright: ignore


def _bounds(name: str, threshold: str | float) -> tuple[float | None, float]:
    """lower and upper of "lower_upper", or of one number, which is the upper one."""
    _refuse_boolean(name, threshold)
    parts = str(threshold).split("_")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(n > 0 for n in numbers):
        raise ValueError(f"{name} = {threshold!r} is not a number above 0, nor two of them as in '0.5_2.0'")
    if len(numbers) == 2 and numbers[0] > numbers[1]:
        raise ValueError(f"{name} = {threshold!r}: the lower bound is above the upper one")
    return (None, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])


def _refuse_boolean(name: str, threshold: str | float) -> None:
    if isinstance(threshold, bool):
        raise TypeError(f"{name} must be a number, or two as in '0.5_2.0', not a boolean: got {threshold}")


def _criteria(rollout_rs: str, threshold: str | float | None) -> tuple[list[str], tuple[Criterion, ...]]:
    """verl's names of the criteria, each once, and the criteria with bounds on k itself."""
    names = list(dict.fromkeys(name.strip() for name in rollout_rs.split(",") if name.strip()))
    for name in names:
        if name not in OPTIONS:
            hint = ending(closest(name, OPTIONS))
            raise ValueError(f"rollout_rs = {name!r} is not known{hint} It is one of: {', '.join(OPTIONS)}")
    if threshold is None:
        raise ValueError("rollout_rs_threshold is missing: rollout_rs needs one bound, or one for each criterion")
    _refuse_boolean("rollout_rs_threshold", threshold)
    specified = [part.strip() for part in str(threshold).split(",") if part.strip()]
    if len(specified) not in (1, len(names)):
        raise ValueError(
            f"rollout_rs_threshold has {len(specified)} bounds for {len(names)} criteria: pass one, or one for each"
        )
    lower: list[float | None] = []
    upper: list[float | None] = []
    for name, text in zip(names, specified * len(names) if len(specified) == 1 else specified, strict=True):
        low, high = _bounds("rollout_rs_threshold", text)
        if name.endswith("k1"):  # ratios, of which k1 is a logarithm
            lower.append(-math.log(high) if low is None else math.log(low))
            upper.append(math.log(high))
        else:
            if low is not None:
                raise ValueError(f"rollout_rs_threshold = {text!r}: {name} is never negative and has one bound only")
            lower.append(None)
            upper.append(high)
    return names, criteria([OPTIONS[name] for name in names], lower, upper)
