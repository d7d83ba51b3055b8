"""A mixin for TRL's GRPOTrainer: any loss of `offtrace.policy.loss` in the place of its own.

    class Trainer(offtrace.adapters.trl.PolicyLossMixin, GRPOTrainer):
        policy_loss = "ctpo"

TRL has no hook for a loss: the mixin overrides `_compute_loss`, with which the trainer turns a batch into one, and calls its
`_get_per_token_logps_and_entropies`. Both are tried with the versions named in docs/losses.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from offtrace.policy import PolicyLoss, loss
from offtrace.policy.policy_loss import named_loss

OF_IMAGES = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "image_sizes", "token_type_ids",
)  # fmt: skip


class PolicyLossMixin:
    """The loss of a GRPOTrainer by its name; stands before GRPOTrainer among the bases."""

    policy_loss: str | PolicyLoss = "grpo"
    """A name of `offtrace.policy.losses()`, or a `PolicyLoss`."""
    policy_loss_options: dict[str, Any] = {}  # noqa: RUF012 (a class attribute that users replace)
    """Further arguments of `offtrace.policy.loss`, such as clip, dual, mean and trace."""

    def _compute_loss(self, model: Any, inputs: dict[str, Tensor]) -> Tensor:
        """The loss of a batch, divided by the steps over which gradients accumulate.

        log_prox is of the policy before the update, log_mu of vLLM where TRL has it. With a mean over tokens the denominator is
        that of the whole batch. The KL to the reference is k3 times TRL's β.
        """
        this: Any = self
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        ids, attended = (
            torch.cat([inputs[f"prompt_{name}"], inputs[f"completion_{name}"]], dim=1) for name in ("ids", "mask")
        )
        images = {name: inputs[name] for name in OF_IMAGES if name in inputs}
        log_pi, *_ = this._get_per_token_logps_and_entropies(
            model, ids, attended, inputs["completion_ids"].size(1), compute_entropy=False, **images
        )
        old = inputs.get("old_per_token_logps")
        parts = named_loss(self.policy_loss)
        training = this.model.training
        steps = this.current_gradient_accumulation_steps if training else 1
        options: dict[str, Any] = {"rows": len(log_pi), **self.policy_loss_options}
        if options.get("mean", parts.mean) == "token-mean" and "num_items_in_batch" in inputs:
            options["tokens"] = inputs["num_items_in_batch"].clamp(min=1.0)
            options["ranks"], steps = this.accelerator.num_processes, 1
        if this.beta:
            options |= {"log_ref": inputs["ref_per_token_logps"], "kl": "k3", "kl_cost": this.beta}
        mu = inputs.get("sampling_per_token_logps")
        result = loss(
            parts, log_pi=log_pi, log_prox=log_pi.detach() if old is None else old,
            log_mu=mu if mu is not None else old if old is not None else log_pi.detach(),
            advantage=inputs["advantages"], mask=mask, **options,
        )  # fmt: skip
        metrics = this._metrics["train" if training else "eval"]
        for name, mean in result.means.items():
            metrics[f"{parts.name}/{name}"].append(this.accelerator.gather(mean).nanmean().item())
        return result.loss / steps
