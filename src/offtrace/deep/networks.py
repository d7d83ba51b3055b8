"""Q-networks: observations [n, …] to action values [n, A], float32."""

from __future__ import annotations

import math
from itertools import pairwise

import jax.numpy as jnp
from flax import nnx
from jax import Array

Weights = nnx.State[str, nnx.Variable[Array]]
"""The weights of a network, as a tree."""


class Images(nnx.Module):
    """The network of Young and Tian (2019) for MinAtar: one layer of 16 filters of 3×3, then dense layers.

    The filters are a product of matrices: with a network for each seed, this is much faster than a grouped convolution.
    """

    def __init__(self, shape: tuple[int, ...], actions: int, hidden: tuple[int, ...], rngs: nnx.Rngs) -> None:
        height, width, channels = shape
        self.filters = nnx.Linear(9 * channels, 16, rngs=rngs)
        self.dense = Dense(((height - 2) * (width - 2) * 16,), actions, hidden, rngs)

    def __call__(self, observation: Array) -> Array:
        """Return Q(s, ·)."""
        x = observation.astype(jnp.float32)
        height, width = x.shape[1] - 2, x.shape[2] - 2
        patches = jnp.concatenate([x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)], axis=-1)
        return self.dense(nnx.relu(self.filters(patches)))


class Dense(nnx.Module):
    """Dense layers. Without a hidden layer there is no bias either: on one-hot observations it is a table that begins at 0."""

    def __init__(self, shape: tuple[int, ...], actions: int, hidden: tuple[int, ...], rngs: nnx.Rngs) -> None:
        sizes = (math.prod(shape), *hidden)
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in pairwise(sizes)])
        zeros = nnx.initializers.zeros_init()
        if hidden:
            self.values = nnx.Linear(sizes[-1], actions, rngs=rngs)
        else:
            self.values = nnx.Linear(sizes[-1], actions, use_bias=False, kernel_init=zeros, rngs=rngs)

    def __call__(self, observation: Array) -> Array:
        """Return Q(s, ·)."""
        x = observation.astype(jnp.float32).reshape(observation.shape[0], -1)
        for layer in self.layers:
            x = nnx.relu(layer(x))
        return self.values(x)


def network(shape: tuple[int, ...], actions: int, hidden: tuple[int, ...], rngs: nnx.Rngs) -> Images | Dense:
    """Make the network that fits observations of this shape."""
    return (Images if len(shape) == 3 and min(shape[:2]) >= 3 else Dense)(shape, actions, hidden, rngs)
