"""Networks: observations [n, …] to action values, or other numbers, [n, outputs], float32; and their optimizers."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

Weights = nnx.State[str, nnx.Variable[Array]]
"""The weights of a network, as a tree."""


class Style(NamedTuple):
    """How hidden layers are made."""

    normalised: bool = False
    """LayerNorm, with a scale and a shift that are learned, before each hidden layer's nonlinearity."""
    slope: float = 0.0
    """The slope of the nonlinearity below 0."""
    sparsity: float = 0.0
    """The share of the weights into each unit that begin at 0; the others are uniform in ±1/√inputs."""
    learned: bool = True
    """Whether LayerNorm has a scale and a shift; without them it is taken over the whole layer, filters and places together."""


PLAIN, LAYER_NORM = Style(), Style(normalised=True)


class Images(nnx.Module):
    """The network of Young and Tian (2019) for MinAtar: one layer of 16 filters of 3×3, then dense layers.

    The filters are a product of matrices: with a network for each seed, this is much faster than a grouped convolution.
    """

    def __init__(
        self, shape: tuple[int, ...], outputs: int, hidden: tuple[int, ...], rngs: nnx.Rngs, style: Style
    ) -> None:
        height, width, channels = shape
        self.filters = Layer(9 * channels, 16, rngs, style)
        self.dense = Dense(((height - 2) * (width - 2) * 16,), outputs, hidden, rngs, style)

    def __call__(self, observation: Array) -> Array:
        """Return the outputs."""
        x = observation.astype(jnp.float32)
        height, width = x.shape[1] - 2, x.shape[2] - 2
        patches = jnp.concatenate([x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)], axis=-1)
        return self.dense(self.filters(patches))


class Dense(nnx.Module):
    """Dense layers. Without a hidden layer there is no bias either: on one-hot observations it is a table that begins at 0."""

    def __init__(
        self, shape: tuple[int, ...], outputs: int, hidden: tuple[int, ...], rngs: nnx.Rngs, style: Style
    ) -> None:
        sizes = (math.prod(shape), *hidden)
        self.layers = nnx.List([Layer(a, b, rngs, style) for a, b in pairwise(sizes)])
        zeros = nnx.initializers.zeros_init()
        if hidden:
            self.values = _linear(sizes[-1], outputs, rngs, style)
        else:
            self.values = nnx.Linear(sizes[-1], outputs, use_bias=False, kernel_init=zeros, rngs=rngs)

    def __call__(self, observation: Array) -> Array:
        """Return the outputs."""
        x = observation.astype(jnp.float32).reshape(observation.shape[0], -1)
        for layer in self.layers:
            x = layer(x)
        return self.values(x)


class Layer(nnx.Module):
    """A hidden layer."""

    def __init__(self, inputs: int, outputs: int, rngs: nnx.Rngs, style: Style) -> None:
        self.linear, self.style = _linear(inputs, outputs, rngs, style), style
        self.norm = nnx.LayerNorm(outputs, rngs=rngs) if style.normalised and style.learned else None

    def __call__(self, x: Array) -> Array:
        """Return the layer's units."""
        x = self.linear(x)
        if self.norm is not None:
            x = self.norm(x)
        elif self.style.normalised:
            of_one = tuple(range(1, x.ndim))
            deviation = x - jnp.mean(x, axis=of_one, keepdims=True)
            x = deviation * jax.lax.rsqrt(jnp.mean(jnp.square(deviation), axis=of_one, keepdims=True) + 1e-5)
        return nnx.leaky_relu(x, self.style.slope) if self.style.slope else nnx.relu(x)


def _linear(inputs: int, outputs: int, rngs: nnx.Rngs, style: Style) -> nnx.Linear:
    if not style.sparsity:
        return nnx.Linear(inputs, outputs, rngs=rngs)
    return nnx.Linear(inputs, outputs, kernel_init=_sparse(style.sparsity), rngs=rngs)


def _sparse(sparsity: float) -> Any:
    """The initialisation of Elsayed et al. (2024), algorithm 1: in each unit, so large a share of the weights are 0."""

    def initial(key: Array, shape: tuple[int, int], dtype: Any = jnp.float32) -> Array:
        to_fill, to_empty = jax.random.split(key)
        edge = 1.0 / math.sqrt(shape[0])
        weights = jax.random.uniform(to_fill, shape, dtype, -edge, edge)
        rank = jnp.argsort(jnp.argsort(jax.random.uniform(to_empty, shape), axis=0), axis=0)
        return jnp.where(rank < math.ceil(sparsity * shape[0]), 0.0, weights)

    return initial


class Network:
    """The network that fits observations of this shape, as pure functions of its weights."""

    def __init__(self, shape: tuple[int, ...], outputs: int, hidden: tuple[int, ...], style: Style = PLAIN) -> None:
        self.shape, self.outputs, self.hidden, self.style = shape, outputs, hidden, style
        self.structure = nnx.split(nnx.eval_shape(lambda: self._module(nnx.Rngs(0))))[0]

    def _module(self, rngs: nnx.Rngs) -> Images | Dense:
        kind = Images if len(self.shape) == 3 and min(self.shape[:2]) >= 3 else Dense
        return kind(self.shape, self.outputs, self.hidden, rngs, self.style)

    def first(self, key: Array) -> Weights:
        """Make the weights before anything has been learned."""
        return nnx.split(self._module(nnx.Rngs(key)))[1]

    def __call__(self, weights: Weights, observation: Array) -> Array:
        """Return the outputs [..., outputs] of observations [..., *shape]."""
        before = observation.shape[: observation.ndim - len(self.shape)]
        outputs = nnx.merge(self.structure, weights)(observation.reshape(-1, *self.shape))
        return outputs.reshape(*before, self.outputs)


class Fitted(NamedTuple):
    """What one seed has learned that has one network and an optimizer."""

    weights: Weights
    optimizer: optax.OptState
    updates: Array
    """How many updates there have been."""


class Optimizer:
    """An optimizer of optax. The norm of gradients is clipped to `clip`, if that is not 0."""

    def __init__(self, update: optax.GradientTransformation, clip: float) -> None:
        self.optax = optax.chain(optax.clip_by_global_norm(clip), update) if clip else optax.chain(update)

    def first(self, weights: Weights) -> Fitted:
        """Return these weights before anything has been learned."""
        return Fitted(weights, self.optax.init(weights), jnp.zeros((), jnp.int32))

    def step(self, fitted: Fitted, gradient: Weights) -> Fitted:
        """Descend along a gradient."""
        change, optimizer = self.optax.update(gradient, fitted.optimizer, fitted.weights)
        weights: Weights = optax.apply_updates(fitted.weights, change)  # pyright: ignore (a tree stays what it is)
        return Fitted(weights, optimizer, fitted.updates + 1)
