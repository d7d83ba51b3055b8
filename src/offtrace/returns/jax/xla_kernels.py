"""The kernels under JAX: static shapes, float64 [N, T], no loop over time wherever one can be had without.

    Δ_k = Σ_{t≥k} D_{k:t} min(cap_t, x_{k:t}) δ_t,     D_{k:t} = g_k ··· g_{t-1},     x_{k:t} from step[k] ··· step[t-1]

`step[t]` is ratio_{t+1}: what takes x from t to t+1, as g[t] takes D. Where a trace ends between t and t+1, g is 0 and step 1.

**linear**: cap = ∞. The reverse recursion Δ_k = δ_k + g_k step_k Δ_{k+1}: on the CPU step by step, elsewhere as an associative
scan, O(T) and log T deep.

**capped**: both kinds of cap, in O(T log² T) and O(log² T) deep. Rows are halved and halved again. A start k in a left half
arrives at the right half with X_k and D = W_k. In the right half, with P_t the product of ratios from the half's first step to t,

    recursive:     x_t = min(A_t, P_t X)        (min(a, b·x) is closed under composition; A_t is what X = ∞ would be at t)
    at read-out:   min(cap_t, P_t X)

so a start is clipped at t iff X · h_t ≥ 1. For a recursive cap h_t = max_{i≤t} P_i/cap_i never falls: once clipped, the trace
is the same as every other clipped one. For a cap at read-out the steps of the half are sorted by h_t = P_t/cap_t. Either way
the start is unclipped before some τ and clipped from there on, and its share of the right half is

    W_k (X_k Σ_{t<τ} D_t P_t δ_t + Σ_{t≥τ} D_t A_t δ_t),    τ by bisection.

Both sums run over just the terms that are wanted, so nothing cancels that would not in the definition.

The definition itself, lag after lag, is in `xla_by_lag`.

Where products may leave the range of float64 it is done with numbers of any size instead (`xla_scaled_numbers`). `lax.cond`
decides; vmap would do both and choose, so it gives a kernel more rows (`rows_together`).
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

from offtrace.returns.jax import xla_scaled_numbers
from offtrace.returns.jax.xla_scaled_numbers import LITTLE, MOST, MUCH

Arrays = TypeVarTuple("Arrays")
Out = TypeVar("Out")

Factors = tuple[Array, Array, Array]
"""g, step and cap."""
LEAF = 16  # up to this many steps a block is done lag by lag: unrolled, and one loop to the compiler
HUGE = 1e300  # products are held below it, so that no infinity meets a zero
CHUNK = 16  # of running sums
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


@jax.custom_vjp
def linear(delta: Array, weight: Array) -> Array:
    """Compute Δ_k = δ_k + weight_k Δ_{k+1}; an overflow does not pass a weight of zero."""
    return _linear(delta, weight)


@rows_together
@jax.jit  # as are the other kernels that differ by nothing else: so JAX traces each once, for all rules
def _linear(delta: Array, weight: Array) -> Array:
    return lax.platform_dependent(delta, weight, cpu=linear_by_steps, default=linear_by_doubling)


def linear_by_steps(delta: Array, weight: Array) -> Array:
    """Compute Δ step by step, for one core; once more with numbers of any size, if a product may have left the range."""

    def step(state: tuple[Array, Array], now: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        (later, left), (d, w) = state, now
        passed = jnp.where(w == 0, 0.0, w * later)
        total = d + passed
        lost = (jnp.abs(passed) < SMALLEST) & (w != 0) & (later != 0)
        return (total, left | lost | ~(jnp.abs(total) < jnp.inf)), total

    none = jnp.zeros_like(delta[:, 0])
    (_, left), out = lax.scan(step, (none, none != none), (delta.T, weight.T), reverse=True)
    return lax.cond(jnp.any(left), xla_scaled_numbers.linear, lambda *_: out.T, delta, weight)


def linear_by_doubling(delta: Array, weight: Array) -> Array:
    """Compute Δ by an associative scan, log T deep, for devices that do much at once."""
    return lax.cond(all_in_range(weight), _linear_in_range, xla_scaled_numbers.linear, delta, weight)


def all_in_range(weight: Array, reach: int | None = None) -> Array:
    """Tell whether float64 holds the products of up to reach − 1 weights in a row; a NaN is not in range.

    A cheap bound on how far the products can rise and fall comes first; only if it does not suffice is their path computed.
    """

    def exactly(log: Array) -> Array:
        rise, fall = _moves(log)
        return jnp.all((rise <= LITTLE) | ((rise <= MOST) & (fall <= MOST)))

    log = _log2(weight)
    up, down = _at_most(log, reach)
    # It is made of log, so that both branches vary over the same axes of a shard_map.
    return lax.cond(
        jnp.all((up <= LITTLE) | ((up <= MOST) & (down <= MOST))), lambda log: (log[0, 0] == 0) | True, exactly, log
    )


def _at_most(log: Array, reach: int | None = None) -> tuple[Array, Array]:
    """Return bounds [N] on how far sums of up to reach − 1 neighbours of a row rise and fall; NaN if the row holds one."""
    up, down = jnp.maximum(log, 0.0), jnp.maximum(-log, 0.0)
    if reach is None:
        return jnp.sum(up, axis=1), jnp.sum(down, axis=1)
    return (reach - 1) * jnp.max(up, axis=1), (reach - 1) * jnp.max(down, axis=1)


def _moves(log: Array) -> tuple[Array, Array]:
    """Return how far the running sums of a row rise and fall, [N] each."""
    L = jnp.pad(_running_sum(log), ((0, 0), (1, 0)))
    return jnp.max(L - lax.cummin(L, axis=1), axis=1), jnp.max(lax.cummax(L, axis=1) - L, axis=1)


def _linear_in_range(delta: Array, weight: Array) -> Array:
    def join(right: tuple[Array, Array], left: tuple[Array, Array]) -> tuple[Array, Array]:
        (w2, d2), (w1, d1) = right, left
        return w1 * w2, d1 + jnp.where(w1 == 0, 0.0, w1 * d2)  # products of weights are finite, δ need not be

    return lax.associative_scan(join, (weight, delta), reverse=True, axis=1)[1]


def times(a: Array, b: Array) -> Array:
    """Return a·b, which is 0 where a = 0, even if b is NaN or ∞. At a = 0 the gradient with respect to a is still b."""
    lost = ((a == 0) & ~jnp.isfinite(b)) | (jnp.isinf(a) & (b == 0))
    return jnp.where(lost, 0.0, a) * jnp.where(lost, 0.0, b)


def _linear_forward(delta: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    found = linear(delta, weight)
    return found, (weight, found)


def _linear_backward(seen: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    """The gradient is e_k = G_k + weight_{k-1} e_{k-1}, the same recursion forward in time; ∂/∂weight_k = e_k Δ_{k+1}."""
    weight, found = seen
    e = linear(gradient[:, ::-1], jnp.roll(weight, 1, axis=1)[:, ::-1])[:, ::-1]
    return e, e * jnp.pad(found[:, 1:], ((0, 0), (0, 1)))


linear.defvjp(_linear_forward, _linear_backward)


def _log2(x: Array) -> Array:
    """Return log₂ x, but 0 where x is 0: a zero ends the trace, so it does not move a product."""
    return jnp.log2(jnp.where(x == 0, 1.0, x))


def in_range(g: Array, step: Array, cap: Array, recursive: bool, reach: int | None = None) -> Array:
    """Tell for each row, [N], whether float64 holds everything in it that matters. A NaN is not in range.

    It does if products move little, or rise by little at most: what is lost below its range then stays negligible. If the caps
    are of ordinary size, so that they clip whatever is large, a product may rise by any amount as long as it does not come down
    by much again; and where it is clipped on its way, it may come down, but not out of range.
    """
    finite = jnp.all(cap < jnp.inf, axis=1)
    ordinary = jnp.all((cap == 0) | (cap == jnp.inf) | (jnp.abs(_log2(cap)) <= MUCH / 4), axis=1)
    fades_little = finite | (_at_most(_log2(g), reach)[1] <= MUCH)

    def fine(rise: Array, fall: Array) -> Array:
        within = (fall <= MUCH) & ((rise <= MUCH) | (finite & recursive)) & fades_little
        return ordinary & ((rise <= LITTLE) | within | (finite & (fall <= LITTLE)))

    log = _log2(step)
    cheaply = fine(*_at_most(log, reach))
    return lax.cond(jnp.all(cheaply), lambda log: cheaply, lambda log: fine(*_moves(log)), log)


@partial(jax.jit, static_argnames=("recursive", "transposed"))
def capped(delta: Array, g: Array, step: Array, cap: Array, *, recursive: bool, transposed: bool = False) -> Array:
    """Compute Δ [N, T] with a cap, recursive or at read-out; if `transposed`, `delta` is ∂L/∂Δ and the result is ∂L/∂δ."""

    def by_halves(delta: Array, *others: Array) -> Array:
        if not transposed:
            return _capped_in_range(delta, *others, recursive=recursive)
        return jax.vjp(lambda d: _capped_in_range(d, *others, recursive=recursive), delta)[1](delta)[0]

    by_lags = partial(xla_scaled_numbers.direct, recursive=recursive, transposed=transposed)
    return lax.cond(jnp.all(in_range(g, step, cap, recursive)), by_halves, by_lags, delta, g, step, cap)


def _capped_in_range(delta: Array, g: Array, step: Array, cap: Array, *, recursive: bool) -> Array:
    N, T = delta.shape
    halvings = 0
    while LEAF << halvings < T:
        halvings += 1
    m = -(-T // (1 << halvings))
    room = (0, 0), (0, (m << halvings) - T)
    delta, g, step, cap = (
        jnp.pad(a, room, constant_values=c).reshape(N, -1, m) for a, c in ((delta, 0), (g, 0), (step, 1), (cap, 1))
    )
    total, X, W = _leaf(delta, g, step, cap, recursive)
    P, D, A = _from_first(step, g, cap, recursive)
    h = jnp.where(cap == 0, HUGE, jnp.minimum(P / cap, HUGE))
    h = lax.cummax(h, axis=2) if recursive else h
    to_next = step[..., -1:], g[..., -1:]
    for _ in range(halvings):
        (P, P2), (D, D2), (A, A2), (h, h2), (d, d2) = (_halves(x) for x in (P, D, A, h, delta))
        (X, X2), (W, W2), (total, total2), (s, s2), (e, e2) = (_halves(x) for x in (X, W, total, *to_next))
        parts = h2, D2 * P2 * d2, D2 * A2 * d2
        if not recursive:
            parts = lax.sort(parts, dimension=2, num_keys=1, is_stable=False)
        total = _joined(total + jnp.where(W == 0, 0.0, W * _two_sums(X, *parts)), total2)
        # A trace crosses a whole half, and on to the next, as X → min(a, b X), and is discounted by G.
        b, b2 = (jnp.minimum(s * P[..., -1:], HUGE) for s, P in ((s, P), (s2, P2)))
        G, G2 = e * D[..., -1:], e2 * D2[..., -1:]
        X = jnp.minimum(X * b2, s2 * A2[..., -1:] if recursive else HUGE)
        X, W = _joined(X, X2), _joined(W * G2, W2)
        h2 = jnp.minimum(h2 * b, HUGE)
        if recursive:
            A2, h2 = jnp.minimum(A2, P2 * (s * A[..., -1:])), jnp.maximum(h2, h[..., -1:])
        P2 = jnp.minimum(P2 * b, HUGE)
        P, D, A, h = _joined(P, P2), _joined(D, D2 * G), _joined(A, A2), _joined(h, h2)
        delta, to_next = _joined(d, d2), (s2, e2)
    return total.reshape(N, -1)[:, :T]


def _halves(x: Array) -> tuple[Array, Array]:
    """Return the left and the right blocks of [N, blocks, m]."""
    return x[:, 0::2], x[:, 1::2]


def _joined(left: Array, right: Array) -> Array:
    return jnp.concatenate([left, right], axis=2)


def _leaf(delta: Array, g: Array, step: Array, cap: Array, recursive: bool) -> tuple[Array, Array, Array]:
    """Return Δ within each block, computed by lags, and X and W of each start at the first step of the next block."""
    m = delta.shape[2]
    x = w = jnp.ones_like(delta)
    total = delta
    ended = [(x[..., -1:], w[..., -1:])]  # of the starts that reach the block's last step, latest first
    for lag in range(1, m):
        x, w = x[..., : m - lag] * step[..., lag - 1 : -1], w[..., : m - lag] * g[..., lag - 1 : -1]
        y = jnp.minimum(x, cap[..., lag:])
        x = y if recursive else jnp.minimum(x, HUGE)
        total = total + jnp.pad(w * y * delta[..., lag:], ((0, 0), (0, 0), (0, lag)))
        ended.append((x[..., -1:], w[..., -1:]))
    X, W = (jnp.concatenate(parts[::-1], axis=2) for parts in zip(*ended, strict=True))
    return total, jnp.minimum(X * step[..., -1:], HUGE), W * g[..., -1:]


def _from_first(step: Array, g: Array, cap: Array, recursive: bool) -> tuple[Array, Array, Array]:
    """Return P, D and A of each block: the products from its first step on, and x of a trace that arrives above all caps."""
    P = D = jnp.ones_like(step[..., :1])
    A = cap[..., :1]
    found = [(P, D, A)]
    for t in range(1, step.shape[2]):
        r = step[..., t - 1 : t]
        P, D, A = jnp.minimum(P * r, HUGE), D * g[..., t - 1 : t], jnp.minimum(A * r, cap[..., t : t + 1])
        found.append((P, D, A))
    P, D, A = (jnp.concatenate(parts, axis=2) for parts in zip(*found, strict=True))
    return P, D, A if recursive else cap


def _two_sums(X: Array, h: Array, u: Array, v: Array) -> Array:
    """Return X Σ_{t<τ} u_t + Σ_{t≥τ} v_t, where τ is the first t with X h_t ≥ 1; h rises along the last axis."""
    m = h.shape[-1]
    τ = jnp.zeros(X.shape, jnp.int32)
    leap = 1 << (m.bit_length() - 1)
    while leap:
        ahead = τ + leap
        below = X * _entries(h, jnp.minimum(ahead, m) - 1) < 1.0
        τ = jnp.where(below & (ahead <= m), ahead, τ)
        leap >>= 1
    none = jnp.zeros_like(u[..., :1])
    before = jnp.concatenate([none, _running_sum(u)], axis=-1)
    after = jnp.concatenate([_running_sum(v[..., ::-1])[..., ::-1], none], axis=-1)
    return X * _entries(before, τ) + _entries(after, τ)


def _entries(x: Array, at: Array) -> Array:
    """Return the entries of the last axis at these places, none of which is outside."""
    return jnp.take_along_axis(x, at, axis=-1, mode="promise_in_bounds")


def _running_sum(x: Array) -> Array:
    """Return Σ_{i≤t} x_i along the last axis, within chunks and then over them. XLA's own takes a kernel for each doubling."""
    m = x.shape[-1]
    if m > CHUNK:
        rows = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -m % CHUNK)]).reshape(*x.shape[:-1], -1, CHUNK)
        within = _running_sum(rows)
        before = jnp.pad(_running_sum(within[..., -1])[..., :-1], [(0, 0)] * (x.ndim - 1) + [(1, 0)])
        return (within + before[..., None]).reshape(*x.shape[:-1], -1)[..., :m]
    shift = 1
    while shift < m:
        x = x + jnp.pad(x[..., :-shift], [(0, 0)] * (x.ndim - 1) + [(shift, 0)])
        shift *= 2
    return x
