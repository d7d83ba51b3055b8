"""Policies of action values, as probabilities."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def probabilities(kind: str, q: Any, number: Any) -> Any:
    """π(·|s) [..., A] from Q(s, ·): ε-greedy with `number` = ε, actions that tie sharing the rest; or softmax(Q / `number`)."""
    if kind == "softmax":
        return jax.nn.softmax(q / number, axis=-1)
    best = q == jnp.max(q, axis=-1, keepdims=True)
    return number / q.shape[-1] + (1.0 - number) * best / jnp.sum(best, axis=-1, keepdims=True)


def of_action(values: Any, action: Any) -> Any:
    """values[..., action]."""
    return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]
