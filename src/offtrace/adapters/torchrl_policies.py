"""Policies made of action values, for the torchrl estimators and for the policy that collects."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from tensordict.nn import TensorDictModule  # pyright: ignore[reportMissingTypeStubs]
from tensordict.utils import NestedKey  # pyright: ignore[reportMissingTypeStubs]
from torch import Tensor

Policy = Callable[[Tensor], Tensor]
"""From action values [..., A] to the probabilities of the actions, [..., A]."""


def greedy(values: Tensor) -> Tensor:
    """Return 1 for the action of the highest value, the first of them where there are several, and 0 for the others.

    >>> greedy(torch.tensor([1.0, 3.0]))
    tensor([0., 1.])
    """
    return torch.zeros_like(values).scatter(-1, values.argmax(-1, keepdim=True), 1.0)


def epsilon_greedy(epsilon: float | Tensor) -> Policy:
    """Make the policy (1 − ε) greedy + ε uniform, over the actions that torchrl's action mask allows.

    The mask gives the other actions the lowest value.

    >>> epsilon_greedy(0.5)(torch.tensor([1.0, 3.0]))
    tensor([0.2500, 0.7500])
    """
    return partial(_epsilon_greedy, epsilon)


def softmax(temperature: float | Tensor = 1.0) -> Policy:
    """Make the policy π(a) ∝ exp(Q(a) / temperature).

    >>> softmax()(torch.tensor([1.0, 1.0]))
    tensor([0.5000, 0.5000])
    """
    return partial(_softmax, temperature)


def log_mu(
    policy: Policy,
    action_value: NestedKey = "action_value",
    action: NestedKey = "action",
    sample_log_prob: NestedKey = "action_log_prob",
) -> TensorDictModule:
    """Make a module that writes log μ of the action in the tensordict, which torchrl's exploration modules do not.

    It is the last one of the policy that collects: `TensorDictSequential(q_network, egreedy, log_mu(policy))`, where `policy`
    is what the modules before it do. `epsilon_greedy(egreedy.eps)` follows ε as the module lowers it.

    >>> from tensordict import TensorDict
    >>> seen = TensorDict({"action_value": torch.tensor([[1.0, 3.0]]), "action": torch.tensor([1])},
    ...                   batch_size=1)
    >>> log_mu(epsilon_greedy(0.5))(seen)["action_log_prob"].exp()
    tensor([0.7500])
    """
    return TensorDictModule(partial(_log_probability, policy), [action_value, action], [sample_log_prob])


# Functions of the module, since collectors and losses are pickled.


def _epsilon_greedy(epsilon: float | Tensor, values: Tensor) -> Tensor:
    allowed = (values > torch.finfo(values.dtype).min).to(values.dtype)
    return (1 - epsilon) * greedy(values) + epsilon * allowed / allowed.sum(-1, keepdim=True)


def _softmax(temperature: float | Tensor, values: Tensor) -> Tensor:
    return (values / temperature).softmax(-1)


def _log_probability(policy: Policy, values: Tensor, action: Tensor) -> Tensor:
    return of_taken(policy(values), indices(action, values)).log()


def indices(action: Tensor, values: Tensor) -> Tensor:
    """Return actions as integers [...], from integers [...] or [..., 1], or one-hot [..., A]."""
    if action.shape == values.shape and values.shape[-1] > 1:
        return action.to(torch.uint8).argmax(-1)
    if action.shape == (*values.shape[:-1], 1):
        action = action[..., 0]
    if action.shape != values.shape[:-1] or action.is_floating_point():
        raise ValueError(
            f"actions must be integers {tuple(values.shape[:-1])} or one-hot {tuple(values.shape)}, "
            f"got {action.dtype} of shape {tuple(action.shape)}"
        )
    return action.long()


def of_taken(values: Tensor, action: Tensor) -> Tensor:
    """Return the number that belongs to the action taken, [...]."""
    return values.gather(-1, action[..., None])[..., 0]
