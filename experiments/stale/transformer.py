"""A decoder-only transformer over tokens, in plain JAX: all positions at once for learning, one after another for sampling.

A row is prompt, a separator, answer. With n = prompt + answer positions the input is (prompt, separator, answer but its last
token), and the outputs from the separator on are the logits of the answer. Layers are stacked along the first axis of their
weights, and follow each other in the program: a scan over them would copy what it keeps, which takes most of the time on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from stale.token_tasks import TokenTask

Weights = dict[str, Array]
"""`embed` [tokens + 1, d], `place` [n, d], `out` [d, tokens], and by layer `qkv`, `join`, `up`, `down`, `norm1`, `norm2`."""
LAYERED = ("qkv", "join", "up", "down", "norm1", "norm2")
Drawing = tuple[Array, list[tuple[Array, ...]]]
"""While an answer is drawn: its last token, and what each layer keeps of all tokens, keys and values."""
LOWEST = -1e30
"""The logit of what must not be drawn: finite, so that no difference of two is NaN."""


class Shape(NamedTuple):
    """The size of the network."""

    layers: int
    width: int
    heads: int


def first(key: Array, task: TokenTask, shape: Shape) -> Weights:
    """Weights to begin with; the outputs begin near 0, so that the first policy is nearly uniform."""
    layers, d, _ = shape
    n = task.prompt + task.answer
    sizes = {
        "embed": (task.tokens + 1, d),
        "place": (n, d),
        "qkv": (layers, d, 3 * d),
        "join": (layers, d, d),
        "up": (layers, d, 4 * d),
        "down": (layers, 4 * d, d),
        "out": (d, task.tokens),
    }
    fan_in = {"embed": 1, "place": 1, "qkv": d, "join": 2 * layers * d, "up": d, "down": 8 * layers * d, "out": 100 * d}
    keys = jax.random.split(key, len(sizes))
    made = {
        name: jax.random.normal(k, size) * fan_in[name] ** -0.5
        for k, (name, size) in zip(keys, sizes.items(), strict=True)
    }
    return {**made, "norm1": jnp.ones((layers, d)), "norm2": jnp.ones((layers, d)), "norm": jnp.ones(d)}


def parameters(task: TokenTask, shape: Shape) -> int:
    """How many numbers the network has."""
    made = jax.eval_shape(lambda: first(jax.random.PRNGKey(0), task, shape))
    return sum(int(a.size) for a in made.values())


def rows(task: TokenTask, prompts: Array, answers: Array) -> Array:
    """The inputs [B, n] of whole rows: prompt, separator, answer but its last token."""
    return jnp.concatenate([prompts, jnp.full((len(prompts), 1), task.tokens), answers[:, :-1]], axis=1)


def logits(weights: Weights, task: TokenTask, shape: Shape, prompts: Array, answers: Array) -> Array:
    """The logits of the answers' tokens [B, answer, tokens], each given the prompt and the answer before it."""
    x = _inputs(weights, rows(task, prompts, answers), 0)
    causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    for own in _layers(weights, shape):
        x, _ = _layer(own, x, shape, partial(_attend, seen=causal))
    return _outputs(weights, x[:, task.prompt :])


def sample(
    weights: Weights, task: TokenTask, shape: Shape, prompts: Array, key: Array, top_p: float = 1.0
) -> tuple[Array, Array]:
    """Draw an answer to each prompt [B, prompt]: the tokens [B, answer], and log μ of each.

    μ is the softmax of the logits as `weights` compute them, in the dtype that they have; with `top_p` below 1 it is cut to the
    fewest tokens whose probability reaches top_p, and log μ is that of what was drawn from: renormalised.
    """
    B, n = len(prompts), task.prompt + task.answer
    layers = _layers(weights, shape)
    x = _inputs(weights, jnp.concatenate([prompts, jnp.full((B, 1), task.tokens)], axis=1), 0)
    P = x.shape[1]
    causal = jnp.tril(jnp.ones((P, P), bool))
    room = jnp.zeros((B, n - P, shape.heads, shape.width // shape.heads), x.dtype)
    memory: list[tuple[Array, ...]] = []
    for own in layers:
        x, kept = _layer(own, x, shape, partial(_attend, seen=causal))
        memory.append(tuple(jnp.concatenate([part, room], axis=1) for part in kept))
    keys = jax.random.split(key, task.answer)
    token, log_mu = _drawn(keys[0], _outputs(weights, x[:, -1]), top_p)

    def step(state: Drawing, given: tuple[Array, Array]) -> tuple[Drawing, tuple[Array, Array]]:
        token, memory = state
        at, key = given
        x, kept = _inputs(weights, token[:, None], at), list[tuple[Array, ...]]()
        for own, past in zip(layers, memory, strict=True):
            x, both = _layer(own, x, shape, partial(_attend_later, past=past, at=at))
            kept.append(both)
        token, log_mu = _drawn(key, _outputs(weights, x[:, 0]), top_p)
        return (token, kept), (token, log_mu)

    _, later = lax.scan(step, (token, memory), (jnp.arange(P, n), keys[1:]))
    tokens, logs = (jnp.concatenate([a[None], b]).T for a, b in zip((token, log_mu), later, strict=True))
    return tokens, logs


def cut(logits: Array, top_p: float) -> Array:
    """The logits with all tokens out of reach but the fewest whose probability is at least `top_p`."""
    if top_p >= 1.0:
        return logits
    ordered = -jnp.sort(-logits, axis=-1)
    chance = jax.nn.softmax(ordered)
    needed = jnp.cumsum(chance, axis=-1) - chance < top_p  # those before it do not reach top_p
    least = jnp.where(needed, ordered, jnp.inf).min(axis=-1, keepdims=True)
    return jnp.where(logits >= least, logits, LOWEST)


def _drawn(key: Array, logits: Array, top_p: float) -> tuple[Array, Array]:
    logs = jax.nn.log_softmax(cut(logits, top_p))
    token = jax.random.categorical(key, logs)
    return token, jnp.take_along_axis(logs, token[:, None], 1)[:, 0]


def _layers(weights: Weights, shape: Shape) -> list[Weights]:
    return [{name: weights[name][i] for name in LAYERED} for i in range(shape.layers)]


def _inputs(weights: Weights, tokens: Array, at: int | Array) -> Array:
    places = lax.dynamic_slice_in_dim(weights["place"], at, tokens.shape[1], 0)
    embed = weights[
        "embed"
    ]  # by a product, whose gradient is one too: that of a look-up adds to few places from many threads
    return jax.nn.one_hot(tokens, len(embed), dtype=embed.dtype) @ embed + places


def _outputs(weights: Weights, x: Array) -> Array:
    """Logits in float32, whatever the network computes in."""
    return (_normed(x, weights["norm"]) @ weights["out"]).astype(jnp.float32)


def _normed(x: Array, gain: Array) -> Array:
    size = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
    return (x * lax.rsqrt(size + 1e-6)).astype(x.dtype) * gain


def _attend(q: Array, k: Array, v: Array, *, seen: Array) -> tuple[Array, tuple[Array, Array]]:
    """Softmax attention of q [B, Q, heads, e] over k, v [B, K, heads, e], where `seen` [Q, K]; and (k, v), to be kept."""
    scores = jnp.einsum("bqhe,bkhe->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    chance = jax.nn.softmax(jnp.where(seen, scores, LOWEST)).astype(v.dtype)
    return jnp.einsum("bhqk,bkhe->bqhe", chance, v), (k, v)


def _attend_later(
    q: Array, k: Array, v: Array, *, past: tuple[Array, ...], at: Array
) -> tuple[Array, tuple[Array, ...]]:
    """The same for one token at a place, by sums: a product of matrices would copy what is kept to turn it round."""
    keys, values = (lax.dynamic_update_slice_in_dim(p, new, at, 1) for p, new in zip(past, (k, v), strict=True))
    scores = (q.astype(jnp.float32) * keys).sum(-1) * q.shape[-1] ** -0.5
    seen = (jnp.arange(keys.shape[1]) <= at)[:, None]
    chance = jax.nn.softmax(jnp.where(seen, scores, LOWEST), axis=1).astype(v.dtype)
    return (chance[..., None] * values).sum(1, keepdims=True), (keys, values)


def _layer(
    own: Weights, x: Array, shape: Shape, attend: Callable[[Array, Array, Array], tuple[Array, tuple[Array, ...]]]
) -> tuple[Array, tuple[Array, ...]]:
    """x + attention, then + a network of one hidden layer, each of what is normalised (RMS)."""
    B, n, d = x.shape
    parts = jnp.split((_normed(x, own["norm1"]) @ own["qkv"]).reshape(B, n, 3 * shape.heads, -1), 3, axis=2)
    mixed, kept = attend(*parts)
    x = x + mixed.reshape(B, n, d) @ own["join"]
    return x + jax.nn.gelu(_normed(x, own["norm2"]) @ own["up"]) @ own["down"], kept
