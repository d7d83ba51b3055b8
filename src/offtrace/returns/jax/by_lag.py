"""Δ under JAX by its definition, lag by lag, all starts side by side: for caps, horizons, bounds by lag and custom steps.

    Δ_k = Σ_{t≥k} D_{k:t} min(cap_t, x_{k:t}) δ_t,     D_{k:t} = g_k ··· g_{t-1},     x_{k:t} from step[k] ··· step[t-1]

`step[t]` is ratio_{t+1}: what takes x from t to t+1, as g[t] takes D. Where a trace ends between t and t+1, g is 0 and step 1.
Arrays are float64 [N, T].

With a cap the loop ends, as a rule after some tens of lags, once each start k has come to a step p after which either

    x never reaches the cap again:   x_{k:p} max_{t>p} x_{p:t} / cap_t ≤ 1; left is D_{k:p} x_{k:p} Σ_{t>p} D_{p:t} x_{p:t} δ_t
    or what is left is negligible:   D_{k:p} (max cap) Σ_{t>p} D_{p:t} |δ_t| is tiny against Δ_k

for the maximum and both sums obey the reverse recursion. The first is exact, and comes soon where x falls, as it does if actions
were drawn from μ; the second comes once the discount has faded. A gradient has the first only.

If a product leaves the range of float64, all is done again with numbers of any size (`big_float`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.tree_util import tree_map

from offtrace.returns.jax import big_float, triton_calls
from offtrace.returns.jax.kernels import all_in_range, recursion, rows_together, times
from offtrace.trajectory import HIGH_CAP, RANGE

Carry = TypeVar("Carry")
Later = Callable[[Array], Array]
"""`later(a)` is a [N, T] as it is seen `lag` steps after each start, a[k + lag]."""
Beta = Callable[[Carry, Array, Later], tuple[Carry, Array | float]]
"""`carry, β = beta(carry, lag, later)`."""
Factors = tuple[Array, Array, Array]
"""g, step and cap."""
LOST = 2  # the status of a walk; else 1 while there is something left
SHORT = 32  # on rows of up to this many steps a loop ends soon enough
NEGLIGIBLE = {True: 2.0**-34, False: 2.0**-60}
"""What is negligible against Δ, in single precision and in double."""


class Numbers(NamedTuple):
    """How a walk computes with weights, products and caps."""

    lags: int
    """How many lags are one pass over the arrays."""
    split: Callable[[Array], Any]
    times: Callable[[Any, Any], Any]
    least: Callable[[Any, Any], Any]
    term: Callable[[Any, Any, Array], Array]
    """w y δ."""
    is_zero: Callable[[Any], Array]


def _big_term(w: big_float.Number, y: big_float.Number, source: Array) -> Array:
    return jnp.where(w[0] == 0, 0.0, big_float.value(w[0] * y[0] * source, w[1] + y[1]))


PLAIN = Numbers(4, lambda a: a, jnp.multiply, jnp.minimum, lambda w, y, source: w * y * source, lambda w: w == 0)
BIG = Numbers(1, big_float.split, big_float.times, big_float.least, _big_term, lambda w: w[0] == 0)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def capped(
    delta: Array, g: Array, step: Array, cap: Array, bounds: tuple[float, ...] | None, recursive: bool, single: bool
) -> Array:
    """Compute Δ [N, T] with a cap, recursive or at read-out; if `single`, to float32.

    `bounds` holds a bound on x for each lag; the trace ends after the last of them. Without it, Triton's kernels do it on a GPU,
    if jax-triton is there. The result has a gradient with respect to δ only.
    """
    by_xla = rows_together(partial(_capped, bounds=bounds, recursive=recursive, single=single))
    if bounds is not None or not triton_calls.are_known():
        return by_xla(delta, g, step, cap)
    by_triton = rows_together(partial(triton_calls.capped, recursive=recursive, single=single))
    return lax.platform_dependent(delta, g, step, cap, cuda=by_triton, default=by_xla)


def _forward(
    delta: Array, g: Array, step: Array, cap: Array, bounds: tuple[float, ...] | None, recursive: bool, single: bool
) -> tuple[Array, Factors]:
    return capped(delta, g, step, cap, bounds, recursive, single), (g, step, cap)


def _backward(
    bounds: tuple[float, ...] | None, recursive: bool, single: bool, seen: Factors, gradient: Array
) -> tuple[Array, ...]:
    """Δ is linear in δ: its gradient is the transpose."""
    transposed = rows_together(partial(_capped, bounds=bounds, recursive=recursive, single=single, transposed=True))
    return (transposed(gradient, *seen), *map(jnp.zeros_like, seen))


capped.defvjp(_forward, _backward)


@partial(jax.jit, static_argnames=("bounds", "recursive", "single", "transposed"))
def _capped(
    *given: Array, bounds: tuple[float, ...] | None, recursive: bool, single: bool, transposed: bool = False
) -> Array:
    """Compute Δ of δ, g, step and cap; or if `transposed`, ∂L/∂δ of ∂L/∂Δ instead of δ. All rules share one trace of it."""
    limits = None if bounds is None else jnp.asarray(bounds, jnp.float64)
    small = NEGLIGIBLE[single]
    walk = partial(_walk, limits=limits, small=small, recursive=recursive, transposed=transposed)

    def together(*arrays: Array) -> Array:
        in_time = tuple(a.T for a in arrays)  # time first: a lag is then a slice in one piece
        out, lost = walk(PLAIN, *in_time[:4], rest=in_time[4:])
        return lax.cond(lost, lambda *given: walk(BIG, *given)[0], lambda *_: out, *in_time[:4]).T

    N, T = given[0].shape
    arrays = given if limits is not None or T <= SHORT else (*given, *_rest(*given))
    few = max(4, 512 // T, N // 64)  # more rows take longer, as the CPU's nearest caches do not hold them
    if few >= N:
        return together(*arrays)

    def some_at_a_time(*arrays: Array) -> Array:
        groups = (jnp.pad(a, ((0, -N % few), (0, 0))).reshape(-1, few, T) for a in arrays)
        return lax.map(lambda some: together(*some), tuple(groups)).reshape(-1, T)[:N]

    return lax.platform_dependent(*arrays, cpu=some_at_a_time, default=together)


def _rest(delta: Array, g: Array, step: Array, cap: Array) -> tuple[Array, Array, Array]:
    """Return the maximum and both sums of the module's first lines, of what comes after each step p."""
    after = partial(jnp.pad, pad_width=((0, 0), (0, 1)))
    delta, below, step = after(delta[:, 1:]), after(1.0 / cap[:, 1:]), jnp.where(g == 0, 0.0, step)
    most = recursion(times(step, below), step, jnp.maximum)
    return most, recursion(g * step * delta, g * step), recursion(g * jnp.abs(delta), g)


def _walk(
    numbers: Numbers, source: Array, g: Array, step: Array, cap: Array,
    *, limits: Array | None, recursive: bool, transposed: bool, small: float = 0.0, rest: tuple[Array, ...] = (),
) -> tuple[Array, Array]:  # fmt: skip
    """Return Δ [T, N], or its transpose, and whether a product has left the range of float64. Time first."""
    T, lags = len(source), numbers.lags
    reach = T if limits is None else min(T, len(limits) + 1)
    beyond = partial(jnp.pad, pad_width=((0, reach + lags), (0, 0)))
    factors = [numbers.split(a) for a in (beyond(g), beyond(step, constant_values=1), beyond(cap, constant_values=1))]
    ahead = [beyond(a) for a in rest]
    bounds = None if limits is None else numbers.split(jnp.pad(limits, (0, lags)))  # 0: the trace has ended
    highest = jnp.max(cap)

    def at(a: Any, lag: Array) -> Any:
        return tree_map(lambda part: lax.dynamic_slice_in_dim(part, lag, T), a)

    def at_lag(a: Any, lag: Array) -> Any:
        return tree_map(lambda part: part[lag], a)

    def body(state: tuple[Array, Any, Any, Array, Array]) -> tuple[Array, Any, Any, Array, Array]:
        lag, x, w, total, _ = state
        low = x
        for i in range(lags):
            now = lag + i
            w, x = numbers.times(w, at(factors[0], now - 1)), numbers.times(x, at(factors[1], now - 1))
            y = numbers.least(x, at(factors[2], now))
            x = y if recursive else x
            if bounds is not None:
                y = numbers.least(y, at_lag(bounds, now - 1))
            if transposed:
                term = at(total, now) + numbers.term(w, y, source)
                total = lax.dynamic_update_slice_in_dim(total, term, now, 0)
            else:
                total = total + numbers.term(w, y, at(padded, now))
            low = jnp.minimum(low, x) if numbers is PLAIN else low
        ended = numbers.is_zero(w)
        status = jnp.where(ended, 0, 1)
        if rest:
            most, _, size = (at(a, lag + lags - 1) for a in ahead)
            status = jnp.where((highest <= HIGH_CAP) & (x * most <= 1.0), 0, status)
            if not transposed:
                status = jnp.where(w * highest * size <= small * jnp.abs(total), 0, status)
        if numbers is PLAIN:
            faint = (highest > HIGH_CAP) & (w < 2.0**-RANGE)
            status = jnp.where(~ended & ((low < 2.0**-RANGE) | (x > 2.0**RANGE) | faint), LOST, status)
        return lag + lags, x, w, total, jnp.max(status)

    padded, one = beyond(source), numbers.split(jnp.ones_like(source))
    total = padded if transposed else source
    state = jnp.int32(1), one, one, total, jnp.max(jnp.where(source == source, 1, 1))
    lag, x, w, total, status = lax.while_loop(lambda s: (s[0] < reach) & (s[4] == 1), body, state)
    total = total[:T]
    if rest:
        most, linear, _ = (at(a, lag - 1) for a in ahead)
        share = jnp.where((w != 0) & (highest <= HIGH_CAP) & (x * most <= 1.0), w * x, 0.0)
        total = total + (_spread(share * source, lag - 1, g * step) if transposed else share * linear)
    return total, (status == LOST) | ~jnp.all(jnp.abs(total) < jnp.inf)


def _spread(share: Array, lag: Array, product: Array) -> Array:
    """Return e_t = product_{t-1} (e_{t-1} + share_{t-1}), [T, N], of shares that have come as many steps far as `lag` says."""
    T = len(share)
    arrived = lax.dynamic_slice_in_dim(jnp.pad(share, ((T, 0), (0, 0))), T - lag, T)
    earlier, product = (jnp.pad(a, ((1, 0), (0, 0)))[:-1] for a in (product * arrived, product))
    return recursion(earlier[::-1].T, product[::-1].T).T[::-1]


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


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def linear_within(delta: Array, weight: Array, reach: int) -> Array:
    """Compute Δ_k = Σ_{t<k+reach} (weight_k ··· weight_{t-1}) δ_t."""
    return _within(delta, weight, reach)


def _within(source: Array, weight: Array, reach: int, transposed: bool = False) -> Array:
    """Compute Δ of δ, or ∂L/∂δ of ∂L/∂Δ: weights are discounts, x is 1, and no cap acts."""

    def kernel(source: Array, weight: Array) -> Array:
        one, bounds = jnp.ones_like(source), (math.inf,) * (min(reach, source.shape[1]) - 1)
        given = source, weight, one, jnp.full_like(one, jnp.inf)
        return _capped(*given, bounds=bounds, recursive=False, single=False, transposed=transposed)

    return rows_together(kernel)(source, weight)


def _within_forward(delta: Array, weight: Array, reach: int) -> tuple[Array, tuple[Array, Array]]:
    return linear_within(delta, weight, reach), (delta, weight)


def _within_backward(reach: int, seen: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    """Outside the range of float64 only δ has a gradient: that of the weights is NaN there, rather than wrong."""

    def of_weights(gradient: Array, delta: Array, weight: Array) -> Array:
        plain = partial(by_lag, delta, reach=reach, first=(), beta=lambda carry, lag, later: (carry, 1.0))
        return jnp.where(all_in_range(weight), jax.vjp(plain, weight)[1](gradient)[0], jnp.nan)

    return _within(gradient, seen[1], reach, transposed=True), rows_together(of_weights)(gradient, *seen)


linear_within.defvjp(_within_forward, _within_backward)
