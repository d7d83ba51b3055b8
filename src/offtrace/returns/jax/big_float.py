"""Numbers of any size under JAX, f · 2ⁿ with f in float64 and n in int64, for products that float64 does not hold.

|f| is in [1, 2), or 0 with n at the `BOTTOM`, so that pairs are ordered by n and then by f. ∞ is 1 · 2^TOP. NaN stays in f.

Kernels compute with float64 first, where `trajectory.RANGE` and `RISE` say that it is exact. All else is done with these numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

Number = tuple[Array, Array]
"""f and n."""

TOP, BOTTOM = 1 << 40, -(1 << 40)
HALF_RANGE = 1020
SIGN_AND_DIGITS = -0x7FF0000000000001  # the bits of a float64 that are not its exponent


def split(x: Array) -> Number:
    """Return f and n of x, which may have either sign."""
    size = jnp.abs(x)
    small = size < 2.0**-900
    bits = lax.bitcast_convert_type(jnp.where(small, x * 2.0**200, x), jnp.int64)
    n = ((bits >> 52) & 0x7FF) - jnp.where(small, 1223, 1023)
    f = lax.bitcast_convert_type((bits & SIGN_AND_DIGITS) | 0x3FF0000000000000, jnp.float64)
    f = jnp.where(size > 0, f, x)  # 0 and NaN stay what they are
    return f, jnp.where(size == 0, BOTTOM, jnp.where(size == jnp.inf, TOP, n))


def times(x: Number, y: Number) -> Number:
    """Return the product of two numbers ≥ 0. It is zero if either is, even if the other is NaN."""
    f = jnp.where((x[0] == 0) | (y[0] == 0), 0.0, x[0] * y[0])
    over = f >= 2.0
    return jnp.where(over, f * 0.5, f), jnp.where(f == 0, BOTTOM, x[1] + y[1] + over.astype(jnp.int64))


def least(x: Number, y: Number) -> Number:
    """Return the smaller of two numbers ≥ 0, or NaN where x is NaN."""
    above = (x[0] == x[0]) & (x[0] != 0) & ((x[1] > y[1]) | ((x[1] == y[1]) & (x[0] > y[0])))
    return jnp.where(above, y[0], x[0]), jnp.where(above, y[1], x[1])


def plus(x: Number, y: Number) -> Number:
    """Return the sum of two numbers of either sign."""
    top = jnp.maximum(x[1], y[1])
    a, b = (f * _power_of_two(jnp.maximum(n - top, -HALF_RANGE)) for f, n in (x, y))
    f, n = split(a + b)
    return f, jnp.where(f == 0, BOTTOM, top + n)


def value(f: Array, n: Array) -> Array:
    """Return f · 2ⁿ as a float64; f may be of any size."""
    n = jnp.clip(n, -2 * HALF_RANGE, 2 * HALF_RANGE)
    half = n >> 1
    return f * _power_of_two(half) * _power_of_two(n - half)


def _power_of_two(n: Array) -> Array:
    return lax.bitcast_convert_type((n + 1023) << 52, jnp.float64)


def each(function: Callable[[Array], Array], x: Number) -> Number:
    """Return a function of both parts, such as a slice."""
    return function(x[0]), function(x[1])


def linear(delta: Array, weight: Array) -> Array:
    """Δ_k = δ_k + weight_k Δ_{k+1}, weight ≥ 0, step by step: this compiles much faster than a scan that is log T deep."""

    def body(later: Number, now: tuple[Number, Number]) -> tuple[Number, Number]:
        (w, m), d = now
        passed = jnp.where(w == 0, 0.0, w * later[0])
        total = plus(d, (passed, jnp.where(passed == 0, BOTTOM, m + later[1])))
        return total, total

    first = delta[:, 0]
    none = jnp.zeros_like(first), jnp.full_like(first, BOTTOM, jnp.int64)
    steps = each(jnp.transpose, split(weight)), each(jnp.transpose, split(delta))
    f, n = lax.scan(body, none, steps, reverse=True)[1]
    return value(f, n).T
