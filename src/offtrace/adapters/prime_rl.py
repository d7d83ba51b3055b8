"""prime-rl's hook `trainer.loss.import_path`: any loss of `offtrace.policy.loss`, one sequence at a time.

    [trainer.loss]
    type = "custom"
    import_path = "offtrace.adapters.prime_rl.policy_loss"

    [trainer.loss.kwargs]
    name = "ctpo"

prime-rl itself is not needed here: the function reads the attributes of its `LossInputs`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from offtrace.policy import loss

METRICS = ("ratio", "clipped", "weight")


class LossOutputs(NamedTuple):
    """What takes the place of prime-rl's class where prime-rl is not installed."""

    loss: Tensor
    metrics: dict[str, Tensor]


def policy_loss(inputs: Any, name: str = "dppo_tv", kl_tau: float = 0.0, **options: Any) -> Any:
    """The sum of the loss over the tokens of one sequence, which prime-rl divides by their global number.

    `name` and `options` are those of `offtrace.policy.loss`. μ is the inference engine; it is π_prox, too, since prime-rl has no
    other. `kl_tau` adds kl_tau · (log π − log μ)², as prime-rl's default loss does. The metrics are means over tokens.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> inputs = SimpleNamespace(trainer_logprobs=torch.tensor([-1.0, -0.5]), inference_logprobs=torch.tensor([-1.2, -0.5]),
    ...                          advantages=torch.ones(2), loss_mask=torch.tensor([True, True]), loss_weights=None)
    >>> round(float(policy_loss(inputs, "ppo").loss), 3)
    -2.2
    """
    A = inputs.advantages if inputs.loss_weights is None else inputs.advantages * inputs.loss_weights
    drift: dict[str, Any] = {}
    if kl_tau:
        drift = {"log_ref": inputs.inference_logprobs, "kl": "k2", "kl_cost": 2.0 * kl_tau}
    result = loss(
        name, log_pi=inputs.trainer_logprobs, log_mu=inputs.inference_logprobs, advantage=A, mask=inputs.loss_mask,
        mean="token-mean", tokens=1, check=False, **drift, **options,
    )  # fmt: skip
    count = result.decisions.clamp(min=1)
    metrics = {name: result.arrays[name].sum() / count for name in METRICS if name in result.arrays}
    return _outputs()(loss=result.loss, metrics=metrics)


def _outputs() -> Any:
    """prime-rl's class of results, or ours where it is not installed."""
    try:
        from prime_rl.trainer.rl.loss import LossOutputs as theirs  # pyright: ignore
    except ImportError:
        return LossOutputs
    return theirs  # pyright: ignore
