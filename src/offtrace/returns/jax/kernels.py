"""The reverse recursion under JAX, Δ_k = δ_k + weight_k Δ_{k+1}, on float64 [N, T].

On the CPU it is a loop over the steps; elsewhere, where much is done at once, an associative scan, O(T) and log T deep. Where
products may leave the range of float64 it is done with numbers of any size instead (`big_float`). `lax.cond` decides; vmap would
do both and choose, so it gives a kernel more rows (`rows_together`). Traces with a cap are in `by_lag`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar, TypeVarTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap
from jax.tree_util import tree_map

from offtrace.returns.jax import big_float
from offtrace.trajectory import RANGE, RISE

Arrays = TypeVarTuple("Arrays")
Out = TypeVar("Out")
Plus = Callable[[Array, Array], Array]
SMALLEST = 1e-290  # of a product that has all its digits


def in_float64() -> AbstractContextManager[object]:
    """Return a context in which JAX has float64."""
    return jax.enable_x64(True)


def rows_together(kernel: Callable[[*Arrays], Out]) -> Callable[[*Arrays], Out]:
    """Make vmap give the kernel, a function of arrays [N, T], more rows instead of making more programs."""

    @custom_vmap
    def call(*arrays: *Arrays) -> Out:
        with in_float64():
            return kernel(*arrays)

    @call.def_vmap
    def rule(size: int, mapped: Sequence[bool], *arrays: Array) -> tuple[Out, object]:
        full = [a if m else jnp.broadcast_to(a, (size, *a.shape)) for a, m in zip(arrays, mapped, strict=True)]
        if size == 0:  # kernels need a row
            one = jax.eval_shape(call, *(jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in full))
            return tree_map(lambda a: jnp.zeros((0, *a.shape), a.dtype), one), tree_map(lambda _: True, one)
        T = full[0].shape[-1]
        out = call(*(a.reshape(-1, T) for a in full))
        return tree_map(lambda a: a.reshape(size, -1, T), out), tree_map(lambda _: True, out)

    return call


def recursion(a: Array, weight: Array, plus: Plus = jnp.add) -> Array:
    """Compute x_k = a_k + weight_k x_{k+1} of [N, T], or the same with another `plus`, of which 0 is the neutral element."""
    return lax.platform_dependent(a, weight, cpu=partial(by_steps, plus=plus), default=partial(by_doubling, plus=plus))


def by_steps(a: Array, weight: Array, plus: Plus = jnp.add) -> Array:
    """Compute the recursion step by step, for one core."""

    def body(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        x = plus(now[0], jnp.where(now[1] == 0, 0.0, now[1] * later))
        return x, x

    return lax.scan(body, jnp.zeros_like(a[:, 0]), (a.T, weight.T), reverse=True)[1].T


def by_doubling(a: Array, weight: Array, plus: Plus = jnp.add) -> Array:
    """Compute the recursion by an associative scan, for devices that do much at once."""

    def join(right: tuple[Array, Array], left: tuple[Array, Array]) -> tuple[Array, Array]:
        (w2, x2), (w1, x1) = right, left
        return w1 * w2, plus(x1, jnp.where(w1 == 0, 0.0, w1 * x2))

    return lax.associative_scan(join, (weight, a), reverse=True, axis=1)[1]


@jax.custom_vjp
def linear(delta: Array, weight: Array) -> Array:
    """Compute Δ_k = δ_k + weight_k Δ_{k+1}; an overflow does not pass a weight of zero."""
    return _linear(delta, weight)


@rows_together
@jax.jit  # so JAX traces it once, for all rules
def _linear(delta: Array, weight: Array) -> Array:
    return lax.platform_dependent(delta, weight, cpu=linear_by_steps, default=linear_by_doubling)


def linear_by_steps(delta: Array, weight: Array) -> Array:
    """Compute Δ step by step; again with numbers of any size, if a product may have left the range and come back."""

    def careful(delta: Array, weight: Array) -> Array:
        def body(state: tuple[Array, Array], now: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
            (later, left), (d, w) = state, now
            passed = jnp.where(w == 0, 0.0, w * later)
            total = d + passed
            lost = (jnp.abs(passed) < SMALLEST) & (w != 0) & (later != 0)
            return (total, left | lost | ~(jnp.abs(total) < jnp.inf)), total

        none = jnp.zeros_like(delta[:, 0])
        (_, left), out = lax.scan(body, (none, none != none), (delta.T, weight.T), reverse=True)
        return lax.cond(jnp.any(left), big_float.linear, lambda *_: out.T, delta, weight)

    return lax.cond(jnp.all(weight <= 1.0), by_steps, careful, delta, weight)  # then no product rises


def linear_by_doubling(delta: Array, weight: Array) -> Array:
    """Compute Δ by an associative scan, or with numbers of any size."""
    return lax.cond(all_in_range(weight), by_doubling, big_float.linear, delta, weight)


def all_in_range(weight: Array) -> Array:
    """Tell whether float64 holds the products of all neighbouring weights of each row; a NaN is not in range."""

    def exactly(weight: Array) -> Array:
        L = jnp.pad(jnp.cumsum(jnp.log2(jnp.where(weight == 0, 1.0, weight)), axis=1), ((0, 0), (1, 0)))
        rise, fall = jnp.max(L - lax.cummin(L, axis=1), axis=1), jnp.max(lax.cummax(L, axis=1) - L, axis=1)
        return jnp.all((rise <= RISE) | ((rise <= RANGE) & (fall <= RANGE)))

    # It is computed from the weights, so that both branches vary over the same axes of a shard_map.
    return lax.cond(jnp.all(weight <= 1.0), lambda weight: (weight[0, 0] == 0) | True, exactly, weight)


def times(a: Array, b: Array) -> Array:
    """Return a·b, which is 0 where a = 0, even if b is NaN or ∞. At a = 0 the gradient with respect to a is still b."""
    lost = ((a == 0) & ~jnp.isfinite(b)) | (jnp.isinf(a) & (b == 0))
    return jnp.where(lost, 0.0, a) * jnp.where(lost, 0.0, b)


def _linear_forward(delta: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    out = linear(delta, weight)
    return out, (weight, out)


def _linear_backward(seen: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    """The gradient is e_k = G_k + weight_{k-1} e_{k-1}, the same recursion forward in time; ∂/∂weight_k = e_k Δ_{k+1}."""
    weight, out = seen
    e = linear(gradient[:, ::-1], jnp.roll(weight, 1, axis=1)[:, ::-1])[:, ::-1]
    return e, e * jnp.pad(out[:, 1:], ((0, 0), (0, 1)))


linear.defvjp(_linear_forward, _linear_backward)
