"""slime's hook `--custom-tis-function-path`: weights π_train/π_rollout by any trace, and rejection.

The path names a function of a module. Ready ones are here: `offtrace.adapters.slime.token_tis` and `prefix_tis`. One of your own
is a line in a module of yours:

    my_tis = offtrace.adapters.slime.tis(offtrace.NonMarkovRetrace(0.95), level="prefix")

slime itself is not needed here; where a row is split by context parallelism, its own functions gather and slice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from offtrace.returns import reject, weights
from offtrace.traces import NonMarkovRetrace, Trace, TruncatedIS

Result = tuple[Tensor, list[Tensor], dict[str, Tensor]]


def tis(
    trace: Trace, *, level: str = "token", rejects: Mapping[str, Any] | None = None, **options: Any
) -> Callable[..., Result]:
    """The function that slime calls: it multiplies the loss by `weights(trace, level=level, **options)`.

    `rejects` are arguments of `reject`: a token that it does not keep is left out of the masks that slime gets back.
    The metrics are slime's: "tis" before bounds act, "tis_clipfrac" and "tis_abs", one number for each token.

    >>> import torch, offtrace as ot
    >>> function = tis(ot.TruncatedIS(bound=2.0))
    >>> logs = [torch.tensor([-1.0, -0.5])]
    >>> loss, masks, metrics = function(None, pg_loss=torch.ones(2), train_log_probs=logs,
    ...                                 rollout_log_probs=[torch.tensor([-3.0, -0.5])], loss_masks=[torch.ones(2)])
    >>> loss
    tensor([2., 1.])
    """

    def weigh(
        args: object,
        *,
        pg_loss: Tensor,
        train_log_probs: list[Tensor],
        rollout_log_probs: list[Tensor],
        loss_masks: list[Tensor],
        total_lengths: list[int] | None = None,
        response_lengths: list[int] | None = None,
        **_: object,
    ) -> Result:
        split = any(len(log) != len(mask) for log, mask in zip(train_log_probs, loss_masks, strict=True))
        rows: list[list[int]] = [list(row) for row in zip(total_lengths or [], response_lengths or [], strict=True)]
        if split:
            from slime.backends.megatron_utils import cp_utils  # pyright: ignore

            gathered: list[list[Tensor]] = [
                [cp_utils.all_gather_with_cp(log, *row) for log, row in zip(logs, rows, strict=True)]  # pyright: ignore
                for logs in (train_log_probs, rollout_log_probs)
            ]
            train_log_probs, rollout_log_probs = gathered
        given: dict[str, Any] = {"log_pi": train_log_probs, "log_mu": rollout_log_probs, "mask": loss_masks}
        w: Any = weights(trace, **given, level=level, **options)
        ratio = [log - old for log, old in zip(train_log_probs, rollout_log_probs, strict=True)]
        if split:
            w = [cp_utils.slice_log_prob_with_cp(a, *row) for a, row in zip(w, rows, strict=True)]  # pyright: ignore
            ratio = [cp_utils.slice_log_prob_with_cp(a, *row) for a, row in zip(ratio, rows, strict=True)]  # pyright: ignore
        weight, plain = torch.cat(w), torch.cat(ratio).detach().exp()
        masks = loss_masks
        if rejects is not None:
            kept: Any = reject(**given, **rejects)
            masks = [mask * keep for mask, keep in zip(loss_masks, kept, strict=True)]
        metrics = {"tis": plain, "tis_clipfrac": (weight != plain).float(), "tis_abs": (plain - 1).abs()}
        return pg_loss * weight.to(pg_loss.dtype), masks, metrics

    return weigh


token_tis = tis(TruncatedIS(bound=2.0))
"""Truncated importance sampling by token, at most 2."""
prefix_tis = tis(NonMarkovRetrace(), level="prefix")
"""The prefix of each token, capped recursively at 1."""
