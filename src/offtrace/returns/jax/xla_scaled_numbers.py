"""Numbers of any size under JAX, f · 2ⁿ with f in float64 and n in int64, and the kernels for rows that float64 does not hold.

|f| is in [1, 2), or 0 with n at the `BOTTOM`, so that pairs are ordered by n and then by f. ∞ is 1 · 2^TOP. NaN stays in f.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

Number = tuple[Array, Array]
"""f and n."""

TOP, BOTTOM = 1 << 40, -(1 << 40)
HALF_RANGE = 1020
SIGN_AND_DIGITS = -0x7FF0000000000001  # the bits of a float64 that are not its exponent
LITTLE, MUCH, MOST = 70.0, 500.0, 900.0
"""Powers of two: a product that is lost below the range of float64 and then grows by less than `LITTLE` stays negligible; what
moves by less than `MOST` either way stays within it, and if by less than `MUCH`, so does a product of two."""


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


def _each(function: Callable[[Array], Array], x: Number) -> Number:
    return function(x[0]), function(x[1])


def _power_of_two(n: Array) -> Array:
    return lax.bitcast_convert_type((n + 1023) << 52, jnp.float64)


def value(f: Array, n: Array) -> Array:
    """Return f · 2ⁿ as a float64; f may be of any size."""
    n = jnp.clip(n, -2 * HALF_RANGE, 2 * HALF_RANGE)
    half = n >> 1
    return f * _power_of_two(half) * _power_of_two(n - half)


def plus(x: Number, y: Number) -> Number:
    """Return the sum of two numbers of either sign."""
    top = jnp.maximum(x[1], y[1])
    a, b = (f * _power_of_two(jnp.maximum(n - top, -HALF_RANGE)) for f, n in (x, y))
    f, n = split(a + b)
    return f, jnp.where(f == 0, BOTTOM, top + n)


def linear(delta: Array, weight: Array) -> Array:
    """Δ_k = δ_k + weight_k Δ_{k+1}, weight ≥ 0, step by step: this compiles much faster than a scan that is log T deep."""

    def body(later: Number, now: tuple[Number, Number]) -> tuple[Number, Number]:
        (w, m), d = now
        passed = jnp.where(w == 0, 0.0, w * later[0])
        found = plus(d, (passed, jnp.where(passed == 0, BOTTOM, m + later[1])))
        return found, found

    first = delta[:, 0]
    none = jnp.zeros_like(first), jnp.full_like(first, BOTTOM, jnp.int64)
    steps = _each(jnp.transpose, split(weight)), _each(jnp.transpose, split(delta))
    f, n = lax.scan(body, none, steps, reverse=True)[1]
    return value(f, n).T


State = tuple[Array, Number, Number, Array]
"""The lag, x, the weight w, and the sum so far, of all starts."""


@partial(jax.jit, static_argnames=("recursive", "transposed"))
def direct(
    source: Array,
    g: Array,
    step: Array,
    cap: Array,
    bounds: Array | None = None,
    *,
    recursive: bool,
    transposed: bool = False,
) -> Array:
    """Compute Δ [N, T] of δ by its definition, or the transpose: one lag after the other, all starts side by side.

    `bounds` holds a bound on x for each lag; the trace ends after the last of them.
    """
    T = source.shape[1]
    reach = T if bounds is None else min(T, len(bounds) + 1)
    if reach == 1:
        return source
    more = ((0, 0), (0, reach))
    padded = {name: jnp.pad(a, more) for name, a in (("g", g), ("step", step), ("cap", cap), ("source", source))}
    parts = {name: split(padded[name]) for name in ("g", "step", "cap")}
    limits = None if bounds is None else split(jnp.asarray(bounds))

    def later(a: Array, lag: Array) -> Array:
        return lax.dynamic_slice_in_dim(a, lag, T, axis=1)

    def body(state: State) -> State:
        lag, x, w, total = state
        before, now = partial(later, lag=lag - 1), partial(later, lag=lag)
        w = times(w, _each(before, parts["g"]))
        inside = lax.broadcasted_iota(jnp.int32, source.shape, 1) + lag < T
        w = jnp.where(inside, w[0], 0.0), w[1]
        x = times(x, _each(before, parts["step"]))
        y = least(x, _each(now, parts["cap"]))
        x = y if recursive else x
        if limits is not None:
            y = least(y, _each(lambda a: a[lag - 1], limits))
        if transposed:
            found = jnp.where(w[0] == 0, 0.0, value(w[0] * y[0] * source, w[1] + y[1]))
            found = lax.dynamic_slice_in_dim(jnp.pad(found, ((0, 0), (reach, 0))), reach - lag, T, axis=1)
        else:
            found = jnp.where(w[0] == 0, 0.0, value(w[0] * y[0] * now(padded["source"]), w[1] + y[1]))
        return lag + 1, x, w, total + found

    one = jnp.ones_like(source), jnp.zeros_like(source, jnp.int64)
    state = jnp.int32(1), one, one, source
    return lax.while_loop(lambda s: (s[0] < reach) & jnp.any(s[2][0] != 0), body, state)[3]
