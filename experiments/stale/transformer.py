"""A small transformer with attention over a window, in plain JAX: all steps at once for learning, one after another for sampling.

At step t it reads the symbol x_t and its own last token a_{t-1}, and gives the logits of a_t. Each layer attends to the last
WINDOW steps, with a bias for each distance, so that the cost of a token does not grow with the row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from stale.tasks import SYMBOLS

WINDOW = 16
LOWEST = -1e30
"""The score of a step that is not seen: finite, so that no difference of two is NaN."""
Weights = dict[str, Array]
"""`embed` [2 SYMBOLS + 1, d], `norm` [d], `out` [d, SYMBOLS], and by layer all others."""
LAYERED = ("qkv", "join", "up", "down", "distance", "norm1", "norm2")
Attend = Callable[[Array, Array, Array, Array], tuple[Array, tuple[Array, ...]]]


class Shape(NamedTuple):
    """The size of the network."""

    layers: int = 2
    width: int = 64
    heads: int = 2


def first(key: Array, shape: Shape) -> Weights:
    """Random weights. The outputs begin near 0, so that the policy is nearly uniform."""
    layers, d, heads = shape
    sizes = {
        "embed": ((2 * SYMBOLS + 1, d), 1),
        "qkv": ((layers, d, 3 * d), d),
        "join": ((layers, d, d), 2 * layers * d),
        "up": ((layers, d, 2 * d), d),
        "down": ((layers, 2 * d, d), 4 * layers * d),
        "out": ((d, SYMBOLS), 100 * d),
    }
    keys = jax.random.split(key, len(sizes))
    drawn = {
        name: jax.random.normal(k, size) * scale**-0.5
        for k, (name, (size, scale)) in zip(keys, sizes.items(), strict=True)
    }
    ones = {"norm1": jnp.ones((layers, d)), "norm2": jnp.ones((layers, d)), "norm": jnp.ones(d)}
    return {**drawn, **ones, "distance": jnp.zeros((layers, heads, WINDOW))}


def log_probabilities(weights: Weights, shape: Shape, x: Array, answers: Array) -> Array:
    """log π of the answers' tokens [B, T], each given the symbols up to it and the tokens before it."""
    before = jnp.pad(answers[:, :-1], ((0, 0), (1, 0)), constant_values=SYMBOLS)
    h = _inputs(weights, x, before)
    for layer in _layers(weights, shape):
        h, _ = _layer(layer, h, shape, _attend)
    logs = jax.nn.log_softmax(_outputs(weights, h))
    return (logs * jax.nn.one_hot(answers, SYMBOLS)).sum(-1)


def sample(weights: Weights, shape: Shape, x: Array, key: Array) -> tuple[Array, Array]:
    """Draw an answer to each row of symbols: its tokens [B, T], and log μ of each."""
    B, T = x.shape
    layers = _layers(weights, shape)
    empty = jnp.zeros((B, WINDOW, shape.heads, shape.width // shape.heads))
    memory: list[tuple[Array, ...]] = [(empty, empty) for _ in layers]

    def step(state: tuple[Array, list[tuple[Array, ...]]], given: tuple[Array, Array, Array]):
        token, memory = state
        t, symbol, chance = given
        h, later = _inputs(weights, symbol[:, None], token[:, None]), list[tuple[Array, ...]]()
        for layer, past in zip(layers, memory, strict=True):
            h, both = _layer(layer, h, shape, partial(_attend_last, past=past, t=t))
            later.append(both)
        logs = jax.nn.log_softmax(_outputs(weights, h)[:, 0])
        below = jnp.cumsum(jnp.exp(logs), axis=1) < chance[:, None]
        token = jnp.minimum(below.sum(axis=1), SYMBOLS - 1)
        return (token, later), (token, (logs * jax.nn.one_hot(token, SYMBOLS)).sum(-1))

    start = jnp.full(B, SYMBOLS)
    _, (tokens, log_mu) = lax.scan(step, (start, memory), (jnp.arange(T), x.T, jax.random.uniform(key, (T, B))))
    return tokens.T, log_mu.T


def _layers(weights: Weights, shape: Shape) -> list[Weights]:
    return [{name: weights[name][i] for name in LAYERED} for i in range(shape.layers)]


def _inputs(weights: Weights, x: Array, before: Array) -> Array:
    both = jnp.concatenate([jax.nn.one_hot(x, SYMBOLS), jax.nn.one_hot(before, SYMBOLS + 1)], axis=-1)
    return both @ weights["embed"]  # a product, since the gradient of a look-up adds to few places from many threads


def _outputs(weights: Weights, h: Array) -> Array:
    return _normed(h, weights["norm"]) @ weights["out"]


def _normed(h: Array, gain: Array) -> Array:
    return h * lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + 1e-6) * gain


def _attend(q: Array, k: Array, v: Array, distance: Array) -> tuple[Array, tuple[Array, ...]]:
    """Attention of q over k and v [B, T, heads, e], in blocks of WINDOW steps: each sees itself and the block before."""
    B, T, heads, e = q.shape
    if T % WINDOW:
        raise ValueError(f"rows have {T} tokens: they must have a multiple of {WINDOW}")
    blocks = (B, T // WINDOW, WINDOW, heads, e)
    q, own = q.reshape(blocks), [a.reshape(blocks) for a in (k, v)]
    keys, values = (jnp.concatenate([jnp.pad(a, ((0, 0), (1, 0)) + ((0, 0),) * 3)[:, :-1], a], axis=2) for a in own)
    back = jnp.arange(WINDOW)[:, None] + WINDOW - jnp.arange(2 * WINDOW)  # by how many steps a key is earlier
    seen = (back >= 0) & (back < WINDOW)
    there = (
        jnp.arange(T // WINDOW)[:, None, None] * WINDOW + jnp.arange(WINDOW)[:, None] >= back
    )  # no step before the first
    bias = distance[:, jnp.clip(back, 0, WINDOW - 1)]
    scores = jnp.einsum("bnqhe,bnkhe->bnhqk", q, keys) * e**-0.5 + bias
    chance = jax.nn.softmax(jnp.where((seen & there)[:, None], scores, LOWEST))
    return jnp.einsum("bnhqk,bnkhe->bnqhe", chance, values).reshape(B, T, heads, e), ()


def _attend_last(
    q: Array, k: Array, v: Array, distance: Array, *, past: tuple[Array, ...], t: Array
) -> tuple[Array, tuple[Array, ...]]:
    """The same for step t alone: `past` holds the keys and values of the last WINDOW steps, step s in slot s modulo WINDOW.

    By sums: a product of matrices would copy what is held to turn it round.
    """
    keys, values = (lax.dynamic_update_slice_in_dim(p, a, t % WINDOW, 1) for p, a in zip(past, (k, v), strict=True))
    back = (t - jnp.arange(WINDOW)) % WINDOW
    scores = (q * keys).sum(-1) * q.shape[-1] ** -0.5 + distance[:, back].T
    chance = jax.nn.softmax(jnp.where((back <= t)[:, None], scores, LOWEST), axis=1)
    return (chance[..., None] * values).sum(1, keepdims=True), (keys, values)


def _layer(layer: Weights, h: Array, shape: Shape, attend: Attend) -> tuple[Array, tuple[Array, ...]]:
    """h + attention, then + a network with one hidden layer, each of what is normalised (RMS)."""
    B, T, d = h.shape
    q, k, v = jnp.split((_normed(h, layer["norm1"]) @ layer["qkv"]).reshape(B, T, 3 * shape.heads, -1), 3, axis=2)
    mixed, held = attend(q, k, v, layer["distance"])
    h = h + mixed.reshape(B, T, d) @ layer["join"]
    return h + jax.nn.gelu(_normed(h, layer["norm2"]) @ layer["up"]) @ layer["down"], held
