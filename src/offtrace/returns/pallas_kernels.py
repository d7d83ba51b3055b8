"""Caps under JAX on an NVIDIA GPU: one kernel instead of XLA's many.

A program has M starts side by side in each of ROWS rows, a row to a thread, and goes from step to step, in float64:

    x_{k:t} = ratio_t x_{k:t-1}, clipped where the cap is recursive,      Δ_k = (1 / W_k) Σ_{t≥k} W_t δ_t min(cap_t, x_{k:t}),

where W is the product of h from the program's first start on: one number for a row. Where a trace ends, ratio is 0 and h is 1.
It stops where no row has a trace left. The kernel is Pallas, by way of Triton; where JAX has that no more, XLA's stays.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from offtrace.returns import jax_kernels

pl: Any
pallas_triton: Any
try:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as pallas_triton
except ImportError:  # pragma: no cover
    pl = pallas_triton = None

INTERPRET = False  # runs the kernel on any device, slowly: for tests
ROWS, STARTS, UNROLLED = 32, 16, 8
SMALLEST = 1e-18  # an h below it ends a trace: so W_k cannot vanish within a program's starts


def least(a: Any, b: Any) -> Any:
    """The smaller one: jnp.minimum, which minds NaN, takes twice as long."""
    return jnp.where(a < b, a, b)


def _sweep(delta: Any, h: Any, ratio: Any, cap: Any, out: Any, *, recursive: bool, M: int, steps: int) -> None:
    """Δ of a program's starts; the arrays are [steps, ROWS], `out` is [ROWS, M]."""
    first = pl.program_id(1) * M
    rows = out.shape[0]
    i = lax.broadcasted_iota(jnp.int32, (M, rows), 0)
    ones, zeros = jnp.ones(rows, jnp.float64), jnp.zeros((M, rows), jnp.float64)

    def eight(t: Any) -> list[tuple[Any, ...]]:
        """What is read of eight steps, asked for at once, so that the wait is one."""
        return [tuple(a[t + j] for a in (ratio, h, cap, delta)) for j in range(UNROLLED)]

    def joining(block: Any, state: Any) -> Any:
        """Steps at which a start joins each: until then its x is 0."""
        x, acc, W = state
        for j, (r, decay, c, d) in enumerate(eight(first + block * UNROLLED)):
            joins = i == block * UNROLLED + j
            W = W * decay
            x = jnp.where(r == 0, 0.0, x * r)
            y = jnp.where(joins, 1.0, least(x, c))
            acc = acc + W * d * y
            x = y if recursive else jnp.where(joins, 1.0, x)
        return x, acc, W

    def going_on(state: Any) -> Any:
        t, x, acc, W, left = state
        for r, decay, c, d in eight(t):
            left = jnp.where(r == 0, 0.0, left)
            W = W * decay * left
            x = x * r
            y = least(x, c)
            acc = acc + W * d * y
            x = y if recursive else x
        return t + UNROLLED, x, acc, W, left

    def weighed(block: Any, state: Any) -> Any:
        """Δ = acc / W_k, each W_k found again."""
        acc, W = state
        for j in range(UNROLLED):
            W = W * h[first + block * UNROLLED + j]
            acc = jnp.where(i == block * UNROLLED + j, acc * (1.0 / W), acc)
        return acc, W

    blocks = M // UNROLLED
    x, acc, W = lax.fori_loop(0, blocks, joining, (zeros, zeros, ones))
    state = lax.while_loop(lambda s: (s[0] < steps) & (jnp.max(s[4]) > 0), going_on, (first + M, x, acc, W, ones))
    out[...] = lax.fori_loop(0, blocks, weighed, (state[2], ones))[0].T


def _on_gpu(delta: Any, g: Any, step: Any, cap: Any, recursive: bool) -> Any:
    """Δ [N, T], of arrays as in `jax_kernels`."""
    N, T = delta.shape
    rows = min(ROWS, 1 << (N - 1).bit_length())
    M = max(UNROLLED, min(STARTS, 1 << (T - 1).bit_length()))
    room = (0, -N % rows), (0, -T % M)
    into = ((0, 0), (1, 0))
    h, ratio = jnp.pad(g[:, :-1], into), jnp.pad(step[:, :-1], into)
    ends = (h < SMALLEST) | (ratio == 0)
    h, ratio = jnp.where(ends, 1.0, h), jnp.where(ends, 0.0, ratio)
    arrays = [
        jnp.pad(a, room, constant_values=c).T
        for a, c in ((delta, 0), (h, 1), (ratio, 0), (jnp.minimum(cap, jax_kernels.HUGE), 1))
    ]
    steps, width = arrays[0].shape
    read = pl.BlockSpec((steps, rows), lambda b, s: (0, b))
    out = pl.pallas_call(
        partial(_sweep, recursive=recursive, M=M, steps=steps),
        out_shape=jax.ShapeDtypeStruct((width, steps), jnp.float64),
        grid=(width // rows, steps // M),
        in_specs=[read] * 4,
        out_specs=pl.BlockSpec((rows, M), lambda b, s: (b, s)),
        compiler_params=pallas_triton.CompilerParams(num_warps=1, num_stages=1),
        interpret=INTERPRET,
    )(*arrays)
    return out[:N, :T]


def _rows_together(recursive: bool) -> Any:
    """The kernel, which vmap gives more rows instead of more programs."""

    @custom_vmap
    def call(delta: Any, g: Any, step: Any, cap: Any) -> Any:
        with jax_kernels.in_float64():
            return _on_gpu(delta, g, step, cap, recursive)

    @call.def_vmap
    def rule(size: int, mapped: Any, *arrays: Any) -> Any:
        full = [a if m else jnp.broadcast_to(a, (size, *a.shape)) for a, m in zip(arrays, mapped, strict=True)]
        T = full[0].shape[-1]
        return call(*(a.reshape(-1, T) for a in full)).reshape(full[0].shape), True

    return call


@cache
def _is_known() -> bool:
    """Whether there is a GPU here that Pallas compiles for."""
    try:
        getattr(pallas_triton, "get_gpu_info", str)()
        return pallas_triton is not None and bool(jax.local_devices(backend="cuda"))
    except (RuntimeError, ValueError):
        return False


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def capped(delta: Any, g: Any, step: Any, cap: Any, recursive: bool) -> Any:
    """Δ [N, T] with a cap, by what is fastest on the device; it has a gradient with respect to δ."""
    by_xla = partial(jax_kernels.capped, recursive=recursive)
    if INTERPRET:
        return _rows_together(recursive)(delta, g, step, cap)
    if not _is_known():
        return by_xla(delta, g, step, cap)
    return lax.platform_dependent(delta, g, step, cap, cuda=_rows_together(recursive), default=by_xla)


def _forward(delta: Any, g: Any, step: Any, cap: Any, recursive: bool) -> Any:
    return capped(delta, g, step, cap, recursive), (delta, g, step, cap)


def _backward(recursive: bool, seen: Any, gradient: Any) -> Any:
    """Δ is linear in δ: the gradient is the transposed sweep, which JAX makes of XLA's."""
    delta, *rest = seen
    _, pull = jax.vjp(lambda d: jax_kernels.capped(d, *rest, recursive=recursive), delta)
    return (*pull(gradient), *map(jnp.zeros_like, rest))


capped.defvjp(_forward, _backward)
