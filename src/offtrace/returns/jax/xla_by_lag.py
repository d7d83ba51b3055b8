"""Δ under JAX by its definition: all starts side by side, one lag after the other. For horizons, bounds by lag and custom steps.

Arrays are as in `xla_kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from offtrace.returns.jax import xla_scaled_numbers
from offtrace.returns.jax.xla_kernels import Factors, all_in_range, in_range, rows_together, times

Carry = TypeVar("Carry")
Later = Callable[[Array], Array]
"""`later(a)` is a [N, T] as it is seen `lag` steps after each start, a[k + lag]."""
Beta = Callable[[Carry, Array, Later], tuple[Carry, Array | float]]
"""`carry, β = beta(carry, lag, later)`."""


def by_lag(delta: Array, g: Array, reach: int, first: Carry, beta: Beta[Carry]) -> Array:
    """Compute Δ [N, T] by its definition, up to lag reach − 1; the first carry is `first`."""
    T = delta.shape[-1]
    reach = min(reach, T)

    def body(state: tuple[Carry, Array, Array], lag: Array) -> tuple[tuple[Carry, Array, Array], None]:
        def later(a: Array, beyond: str = "edge") -> Array:
            return lax.dynamic_slice_in_dim(jnp.pad(a, ((0, 0), (0, reach)), mode=beyond), lag, T, axis=1)

        carry, w, total = state
        g_now = later(before, "constant")
        w = times(jnp.where((w == 0) & jnp.isnan(g_now), 0.0, g_now), w)
        carry, β = beta(carry, lag, later)
        return (carry, w, total + times(w, β * later(delta))), None

    before = jnp.pad(g[:, :-1], ((0, 0), (1, 0)))  # g of the step before: 0 beyond the row's end
    state = (first, jnp.ones_like(delta), delta)
    lags = jnp.arange(1, reach, dtype=jnp.int32)  # as int64 they would not lower outside of float64 mode
    return lax.scan(body, state, lags)[0][2] if reach > 1 else delta


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def bounded(delta: Array, g: Array, step: Array, cap: Array, bounds: tuple[float, ...], recursive: bool) -> Array:
    """Compute Δ [N, T] by its definition. `bounds` holds a bound on x for each lag; the trace ends after the last of them.

    The result has a gradient with respect to δ only.
    """
    limits = jnp.asarray(bounds, jnp.float64)

    def plain(delta: Array, g: Array, step: Array, cap: Array) -> Array:
        ratio = jnp.pad(step[:, :-1], ((0, 0), (1, 0)), constant_values=1.0)

        def beta(product: Array, lag: Array, later: Later) -> tuple[Array, Array]:
            product = product * later(ratio)
            read = jnp.minimum(product, later(cap))
            return read if recursive else product, jnp.minimum(read, limits[lag - 1])

        return by_lag(delta, g, len(bounds) + 1, jnp.ones_like(delta), beta)

    def kernel(delta: Array, g: Array, step: Array, cap: Array) -> Array:
        of_any_size = partial(xla_scaled_numbers.direct, bounds=limits, recursive=recursive)
        fine = jnp.all(in_range(g, step, jnp.minimum(cap, jnp.max(limits)), recursive, len(bounds) + 1))
        return lax.cond(fine, plain, of_any_size, delta, g, step, cap)

    return rows_together(kernel)(delta, g, step, cap)


def _bounded_forward(
    delta: Array, g: Array, step: Array, cap: Array, bounds: tuple[float, ...], recursive: bool
) -> tuple[Array, Factors]:
    return bounded(delta, g, step, cap, bounds, recursive), (g, step, cap)


def _bounded_backward(bounds: tuple[float, ...], recursive: bool, seen: Factors, gradient: Array) -> tuple[Array, ...]:
    kernel = partial(xla_scaled_numbers.direct, bounds=jnp.asarray(bounds), recursive=recursive, transposed=True)
    return (rows_together(kernel)(gradient, *seen), *map(jnp.zeros_like, seen))


bounded.defvjp(_bounded_forward, _bounded_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def linear_within(delta: Array, weight: Array, reach: int) -> Array:
    """Compute Δ_k = Σ_{t<k+reach} (weight_k ··· weight_{t-1}) δ_t."""

    def kernel(delta: Array, weight: Array) -> Array:
        return lax.cond(
            all_in_range(weight, reach), partial(_plainly_within, reach), partial(_scaled_within, reach), delta, weight
        )

    return rows_together(kernel)(delta, weight)


def _plainly_within(reach: int, delta: Array, weight: Array) -> Array:
    return by_lag(delta, weight, reach, (), lambda carry, lag, later: (carry, 1.0))


def _scaled_within(reach: int, source: Array, weight: Array, transposed: bool = False) -> Array:
    g, step = jnp.where(weight == 0, 0.0, 1.0), jnp.where(weight == 0, 1.0, weight)
    no_bounds = jnp.full(min(reach, source.shape[1]) - 1, jnp.inf)
    cap = jnp.full_like(source, jnp.inf)
    return xla_scaled_numbers.direct(source, g, step, cap, no_bounds, recursive=False, transposed=transposed)


def _within_forward(delta: Array, weight: Array, reach: int) -> tuple[Array, tuple[Array, Array]]:
    return linear_within(delta, weight, reach), (delta, weight)


def _within_backward(reach: int, seen: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    """Outside the range of float64 only δ has a gradient: that of the weights is NaN there, rather than wrong."""

    def plainly(gradient: Array, delta: Array, weight: Array) -> tuple[Array, Array]:
        return jax.vjp(partial(_plainly_within, reach), delta, weight)[1](gradient)

    def scaled(gradient: Array, delta: Array, weight: Array) -> tuple[Array, Array]:
        return _scaled_within(reach, gradient, weight, transposed=True), jnp.full_like(weight, jnp.nan)

    def kernel(gradient: Array, delta: Array, weight: Array) -> tuple[Array, Array]:
        return lax.cond(all_in_range(weight, reach), plainly, scaled, gradient, delta, weight)

    return rows_together(kernel)(gradient, *seen)


linear_within.defvjp(_within_forward, _within_backward)
