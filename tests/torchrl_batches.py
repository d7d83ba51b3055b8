"""Batches and networks for the tests of the torchrl estimators: values are looked up by the number of the state."""

# pyright: reportArgumentType=false
# torchrl and tensordict declare less than they take.

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.data import Categorical
from torchrl.modules import ProbabilisticActor, QValueActor

A, γ = 3, 0.875  # torchrl keeps γ in float32


class Table(nn.Module):
    """Values that are looked up by the number of the state, float64."""

    def __init__(self, width: int, seed: int = 0) -> None:
        super().__init__()
        made = torch.randn(40, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.values = nn.Parameter(made)

    def forward(self, state: Tensor) -> Tensor:
        return self.values[state[..., 0].long()]


def q_network(seed: int = 0) -> Any:
    return QValueActor(Table(A, seed), in_keys=["state"], spec=Categorical(A))


def batch(*shape: int, seed: int = 0) -> Any:
    """Random steps with ends; where an episode goes on, the next state is the one that follows."""
    rng = torch.Generator().manual_seed(seed)

    def drawn(high: int, *size: int) -> Tensor:
        return torch.randint(high, size, generator=rng)

    state, after = drawn(40, *shape, 1), drawn(40, *shape, 1)
    terminated, cut = drawn(6, *shape, 1) == 0, drawn(6, *shape, 1) == 0
    done = terminated | cut
    following = torch.cat([state[..., 1:, :], after[..., -1:, :]], -2)
    reward, log_prob = torch.rand(2, *shape, 1, generator=rng, dtype=torch.float64)
    after = {
        "state": torch.where(done, after, following).repeat_interleave(2, -1).double(),
        "reward": reward,
        "done": done,
    }
    return TensorDict(
        {
            "state": state.repeat_interleave(2, -1).double(),
            "action": drawn(A, *shape),
            "action_log_prob": (0.2 + 0.8 * log_prob)[..., 0].log(),
            "pair": drawn(4, *shape),
            "next": after | {"terminated": terminated, "truncated": done & ~terminated},
        },
        shape,
    )


def actor() -> Any:
    logits = TensorDictModule(Table(A, 5), ["state"], ["logits"])
    law = torch.distributions.Categorical
    return ProbabilisticActor(logits, in_keys=["logits"], distribution_class=law, return_log_prob=True)


def critic() -> Any:
    return TensorDictModule(Table(1, 7), ["state"], ["state_value"])


def off_policy(data: Any) -> tuple[Tensor, Tensor]:
    """log π of the action taken, and log μ."""
    π = torch.distributions.Categorical(logits=actor()[0].module.values.detach()[data["state"][..., 0].long()])
    return π.log_prob(data["action"])[..., None], data["action_log_prob"][..., None]
