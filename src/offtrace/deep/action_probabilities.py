"""Policies of action values, as probabilities."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array


def probabilities(kind: str, q: Array, number: float | Array) -> Array:
    """Return π(·|s) [..., A] for Q(s, ·) [..., A].

    "epsilon" is ε-greedy with `number` = ε, where the best actions share 1 − ε; "softmax" is softmax(Q / `number`).
    """
    if kind == "softmax":
        return jax.nn.softmax(q / number, axis=-1)
    best = q == jnp.max(q, axis=-1, keepdims=True)
    return number / q.shape[-1] + (1.0 - number) * best / jnp.sum(best, axis=-1, keepdims=True)


def of_action(values: Array, action: Array) -> Array:
    """Return values[..., action]."""
    return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]
