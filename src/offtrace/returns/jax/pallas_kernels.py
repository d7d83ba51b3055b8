"""Caps under JAX on an NVIDIA GPU: a kernel of our own instead of XLA's many.

A program has M starts side by side in each of ROWS rows, a row to a thread, and goes from step to step, in float64 (`_plain`):

    x_{k:t} = ratio_t x_{k:t-1}, clipped where the cap is recursive,      Δ_k = (1 / W_k) Σ_{t≥k} W_t δ_t min(cap_t, x_{k:t}),

where W is the product of h from the program's first start on: one number for a row. Where a trace ends, h is 0 and ratio is 1.
It stops where no row has a trace left.

Where float32 is wanted (`_scaled`), x is kept as X = x / P in float32, where P is a product of ratios, one number for a row, in
float64: a pair (start, step) costs a minimum and a multiply-add, Σ_t (W_t P_t δ_t) min(cap_t / P_t, X). After eight steps X
takes over a power of two of P. What leaves the range of this shows in a few numbers for each row, as in `triton.caps`: then
the program does its starts again with numbers of any size (`_exact`), as it does for rows that float64 does not hold.

The kernel is Pallas, by way of Triton; where JAX has that no more, XLA's stays. Where jax-triton is installed, the kernels that
PyTorch has take its place (`triton_calls`): their time does not grow with the square of T.
"""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from offtrace.returns.jax import triton_calls, xla_kernels, xla_scaled_numbers
from offtrace.returns.jax.xla_kernels import Factors, rows_together

INTERPRET = False  # runs the kernel on any device, slowly: for tests
ROWS, STARTS, UNROLLED = 32, 16, 8
LONGEST = 4096  # rows that are swept in float32: a sum of more numbers would lose too many digits
SMALLEST = 1e-18  # a row with an h below it is odd: so W_k cannot vanish within a program's starts
MOST, LEAST, LOST, BACK = 1e18, 1e-36, 100, 30
"""Of float32: how large products of eight ratios may be, and how small the weights of a program's starts; the powers of two by
which a trace may be lost, and by which it may then come back."""
HIGHEST = 3e38  # of float32


def least(a: Array, b: Array | int) -> Array:
    """Return the smaller one. In float64 jnp.minimum, which minds NaN, takes twice as long."""
    return jnp.where(a < b, a, b)


def most(a: Array, b: Array | int) -> Array:
    """Return the larger one."""
    return jnp.where(a > b, a, b)


Steps = tuple[Array, Array, Array, Array]
"""δ, h, ratio and cap."""


def _eight(arrays: Steps, t: Array) -> list[Steps]:
    """Load δ, h, ratio, cap of eight steps at once, so that there is one wait for all; the arrays are [steps, ROWS]."""
    delta, h, ratio, cap = arrays
    return [(delta[t + j], h[t + j], ratio[t + j], cap[t + j]) for j in range(UNROLLED)]


def _plain(arrays: Steps, first: Array, M: int, recursive: bool) -> Array:
    """Compute Δ [M, ROWS] of the starts from `first` on, in float64."""
    steps, rows = arrays[0].shape
    i = lax.broadcasted_iota(jnp.int32, (M, rows), 0)
    ones, zeros = jnp.ones(rows, jnp.float64), jnp.zeros((M, rows), jnp.float64)

    def joining(block: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        """Go over steps at each of which one start joins; until then its x is 0."""
        x, acc, W = state
        for j, (d, h, r, c) in enumerate(_eight(arrays, first + block * UNROLLED)):
            joins = i == block * UNROLLED + j
            W = jnp.where(h == 0, W, W * h)
            x = jnp.where(h == 0, 0.0, x * r)
            y = jnp.where(joins, 1.0, least(x, c.astype(jnp.float64)))
            acc = acc + W * d * y
            x = y if recursive else jnp.where(joins, 1.0, x)
        return x, acc, W

    def going_on(state: Steps) -> Steps:
        t, x, acc, W = state
        for d, h, r, c in _eight(arrays, t):
            W = W * h
            x = x * r
            y = least(x, c.astype(jnp.float64))
            acc = acc + W * d * y
            x = y if recursive else x
        return t + UNROLLED, x, acc, W

    def weighed(block: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        """Divide by W_k, which is computed again for each start: Δ = acc / W_k."""
        acc, W = state
        for j in range(UNROLLED):
            h = arrays[1][first + block * UNROLLED + j]
            W = jnp.where(h == 0, W, W * h)
            acc = jnp.where(i == block * UNROLLED + j, acc * (1.0 / W), acc)
        return acc, W

    blocks = M // UNROLLED
    x, acc, W = lax.fori_loop(0, blocks, joining, (zeros, zeros, ones))
    state = lax.while_loop(lambda s: (s[0] < steps) & (jnp.max(s[3]) > 0), going_on, (first + M, x, acc, W))
    return lax.fori_loop(0, blocks, weighed, (state[2], ones))[0]


def _exact(arrays: Steps, first: Array, M: int, recursive: bool) -> Array:
    """Compute Δ [M, ROWS] of the starts from `first` on, with x and w of any size."""
    steps, rows = arrays[0].shape
    k = first + lax.broadcasted_iota(jnp.int32, (M, rows), 0)
    ones, zeros = jnp.ones((M, rows), jnp.float64), jnp.zeros((M, rows), jnp.float64)

    def body(state: xla_scaled_numbers.State) -> xla_scaled_numbers.State:
        t, x, w, total = state
        d, h, r, c = (a[t].astype(jnp.float64) for a in arrays)
        started = k < t
        later = xla_scaled_numbers.times(w, xla_scaled_numbers.split(h))
        w = jnp.where(started, later[0], w[0]), jnp.where(started, later[1], w[1])
        later = xla_scaled_numbers.times(x, xla_scaled_numbers.split(r))
        y = xla_scaled_numbers.least(later, xla_scaled_numbers.split(c))
        later = y if recursive else later
        x = jnp.where(started, later[0], x[0]), jnp.where(started, later[1], x[1])
        found = jnp.where(started & (w[0] != 0), xla_scaled_numbers.value(w[0] * y[0] * d, w[1] + y[1]), 0.0)
        return t + 1, x, w, total + jnp.where(k == t, d, found)

    one = ones, jnp.zeros((M, rows), jnp.int64)
    return lax.while_loop(
        lambda s: (s[0] < steps) & (jnp.max(jnp.abs(s[2][0])) > 0), body, (first + 0, one, one, zeros)
    )[3]


def _exponent(x: Array) -> Array:
    """Return n of x = m · 2ⁿ > 0, with m in [1, 2)."""
    return (lax.bitcast_convert_type(x, jnp.int64) >> 52).astype(jnp.int32) - 1023


def _mantissa(x: Array) -> Array:
    """Return m of x = m · 2ⁿ > 0, with m in [1, 2)."""
    bits = lax.bitcast_convert_type(x, jnp.int64)
    return lax.bitcast_convert_type((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000, jnp.float64)


class Scaled(NamedTuple):
    """The state of a sweep. x, acc and unit belong to starts, [M, ROWS] in float32; the others to rows, [ROWS]."""

    x: Array
    """X = x / P of each start."""
    acc: Array
    """The sum so far of each start."""
    unit: Array
    """W_k of each start."""
    P: Array
    """The product of ratios, in float64."""
    W: Array
    """The product of h, in float64; 0 where no trace is left."""
    lowest: Array
    """The power of two of the lowest trace. There is always one: x ↦ min(a, b x) keeps the order of traces."""
    highest: Array
    """The power of two of the highest trace."""
    lost: Array
    """The least that `lowest` has been."""
    over: Array
    """The most that `highest` has been."""
    back: Array
    """The power of two that a trace may have grown by since it was too small."""
    fall: Array
    """The power of two that a trace may have fallen by since it was too large."""
    odd: Array
    """1 where something left the range."""


def _scaled(arrays: Steps, first: Array, M: int, recursive: bool) -> tuple[Array, Array]:
    """Compute Δ [M, ROWS] of the starts from `first` on, in float32; also tell whether something left its range."""
    steps, rows = arrays[0].shape
    i = lax.broadcasted_iota(jnp.int32, (M, rows), 0)
    ones, none = jnp.ones(rows, jnp.float64), jnp.zeros((M, rows), jnp.float32)

    def weight(block: Array, W: Array) -> Array:
        for j in range(UNROLLED):
            h = arrays[1][first + block * UNROLLED + j]
            W = jnp.where(h == 0, W, W * h)
        return W

    def eight(t: Array, s: Scaled, joining: bool) -> Scaled:
        x, part, unit, P, W, odd = s.x, none, s.unit, s.P, s.W, s.odd
        low = high = P.astype(jnp.float32)
        for j, (d, h, r, c) in enumerate(_eight(arrays, t)):
            P = P * r
            W = jnp.where(h == 0, W, W * h) if joining else W * h
            p = P.astype(jnp.float32)
            low, high = jnp.minimum(low, p), jnp.maximum(high, p)
            inverse = 1.0 / p
            e = (W * P).astype(jnp.float32) * d
            y = jnp.minimum(x, jnp.minimum(c * inverse, HIGHEST))
            if joining:  # until then its x is 0
                size, joins = jnp.abs(e), i == t - first + j
                odd = jnp.where((size < MOST**2) & ((d == 0) | (size > MOST**-2)), odd, 1)
                y = jnp.where(joins, inverse, jnp.where(h == 0, 0.0, y))
                x = jnp.where(joins, inverse, jnp.where(h == 0, 0.0, x))
                unit = jnp.where(joins, W.astype(jnp.float32), unit)
            part = part + e * y  # few are added up at a time: the sum of a long row keeps its digits
            x = y if recursive else x
        n, P = _exponent(P), _mantissa(P)
        lowest, highest = least(s.lowest + n, 0), most(s.highest + n, 0)
        lost, over = least(s.lost, lowest), most(s.over, highest)
        back = jnp.where(lost < -LOST, most(s.back + n, 0), 0)
        fall = jnp.where(over > LOST, least(s.fall + n, 0), 0)
        fine = (high < MOST) & (low > 1.0 / MOST) & (back + _exponent(W) - _exponent(last) < BACK)
        fine = fine if recursive else fine & (fall > -BACK)
        left = s.W > 0  # if not, part may be anything
        odd = jnp.where(fine | ~left, odd, 1)
        acc = s.acc + jnp.where(left, part, jnp.float32(0))
        x = x * lax.bitcast_convert_type((n + 127) << 23, jnp.float32)  # 2ⁿ
        return Scaled(x, acc, unit, P, W, lowest, highest, lost, over, back, fall, odd)

    W = lax.fori_loop(0, M // UNROLLED, weight, ones)
    last = jnp.sqrt(W)  # the weights of the first and of the last start are made to be as far from 1
    zero = jnp.zeros(rows, jnp.int32)
    odd = jnp.where(W < LEAST, 1, zero)
    state = Scaled(none, none, none, ones, 1.0 / last, zero, zero, zero, zero, back=zero, fall=zero, odd=odd)
    state = lax.fori_loop(0, M // UNROLLED, lambda block, s: eight(first + block * UNROLLED, s, True), state)
    state = lax.while_loop(
        lambda ts: (ts[0] < steps) & (jnp.max(ts[1].W) > 0),
        lambda ts: (ts[0] + UNROLLED, eight(*ts, False)),
        (first + M, state),
    )[1]
    return state.acc / state.unit, jnp.max(state.odd) > 0


def _turn(*arrays: Array) -> None:
    """Transpose the first three arrays [rows, steps] into the last three. XLA would transpose every array they are made of."""
    for a, turned in zip(arrays[:3], arrays[3:], strict=True):
        turned[...] = a[...].T


def _sweep(
    delta: Array, h: Array, ratio: Array, cap: Array, odd: Array, out: Array, *, recursive: bool, groups: int
) -> None:
    """Compute Δ of a program's starts into `out` [ROWS, M]. The arrays are [steps, ROWS]; `odd` marks rows beyond float64."""
    from jax.experimental import pallas as pl

    M = out.shape[1]
    given = (delta, h, ratio, cap), pl.program_id(0) // groups * M, M, recursive
    beyond = jnp.max(odd[...]) > 0
    if out.dtype == jnp.float64:

        @pl.when(~beyond)
        def _() -> None:
            out[...] = _plain(*given).T
    else:
        found, left = _scaled(*given)
        beyond = beyond | left
        out[...] = found.T

    @pl.when(beyond)
    def _() -> None:
        out[...] = _exact(*given).T.astype(out.dtype)


def _on_gpu(delta: Array, g: Array, step: Array, cap: Array, *, recursive: bool, single: bool) -> Array:
    """Compute Δ [N, T] of arrays as in `xla_kernels`; to float32 only, if `single`."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as pallas_triton

    N, T = delta.shape
    kind = jnp.float32 if single and T <= LONGEST else jnp.float64
    rows = min(ROWS, 1 << (N - 1).bit_length())
    M = max(UNROLLED, min(STARTS, 1 << (T - 1).bit_length()))
    into, room = ((0, 0), (1, 0)), ((0, -N % rows), (0, -T % M))
    h, ratio = jnp.pad(g[:, :-1], into), jnp.pad(step[:, :-1], into, constant_values=1.0)
    odd = ~xla_kernels.in_range(g, step, cap, recursive) | jnp.any((h < SMALLEST) & (h > 0), axis=1)
    delta, h, ratio, cap = (
        jnp.pad(a, room, constant_values=c)
        for a, c in ((delta.astype(kind), 0), (h, 0), (ratio, 1), (cap.astype(kind), 1))
    )
    odd = jnp.pad(odd.astype(jnp.int32), room[0])
    width, steps = delta.shape
    groups = width // rows
    call = partial(
        pl.pallas_call,
        grid=(groups * (steps // M),),  # in one dimension: the others end at 65535
        compiler_params=pallas_triton.CompilerParams(num_warps=1, num_stages=1),
        interpret=INTERPRET,
    )
    rowwise = pl.BlockSpec((rows, M), lambda p: (p % groups, p // groups))
    stepwise = pl.BlockSpec((M, rows), lambda p: (p // groups, p % groups))
    turned = call(
        _turn,
        out_shape=[jax.ShapeDtypeStruct((steps, width), a.dtype) for a in (delta, h, ratio)],
        in_specs=[rowwise] * 3,
        out_specs=[stepwise] * 3,
    )(delta, h, ratio)
    out = call(
        partial(_sweep, recursive=recursive, groups=groups),
        out_shape=jax.ShapeDtypeStruct((width, steps), kind),
        in_specs=[pl.BlockSpec((steps, rows), lambda p: (0, p % groups))] * 4
        + [pl.BlockSpec((rows,), lambda p: (p % groups,))],
        out_specs=rowwise,
    )(*turned, cap.T, odd)
    return out[:N, :T].astype(jnp.float64)


@cache
def _is_known() -> bool:
    """Tell whether there is a GPU here that Pallas compiles for."""
    try:
        if not jax.local_devices(backend="cuda"):
            return False
        from jax.experimental.pallas import triton as pallas_triton

        getattr(pallas_triton, "get_gpu_info", str)()  # raises for a GPU that it does not know
    except (ImportError, RuntimeError, ValueError):
        return False
    return True


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def capped(delta: Array, g: Array, step: Array, cap: Array, recursive: bool, single: bool) -> Array:
    """Compute Δ [N, T] with a cap by what is fastest on the device; to the digits of float32 only, if `single`.

    The result has a gradient with respect to δ only.
    """
    by_xla = rows_together(partial(xla_kernels.capped, recursive=recursive))
    by_kernel = triton_calls.capped if triton_calls.are_known() and not INTERPRET else _on_gpu
    on_gpu = rows_together(partial(by_kernel, recursive=recursive, single=single))
    if INTERPRET:
        return on_gpu(delta, g, step, cap)
    if not (triton_calls.are_known() or _is_known()):
        return by_xla(delta, g, step, cap)
    return lax.platform_dependent(delta, g, step, cap, cuda=on_gpu, default=by_xla)


def _forward(delta: Array, g: Array, step: Array, cap: Array, recursive: bool, single: bool) -> tuple[Array, Factors]:
    return capped(delta, g, step, cap, recursive, single), (g, step, cap)


def _backward(recursive: bool, single: bool, seen: Factors, gradient: Array) -> tuple[Array, ...]:
    """The gradient is the transposed sweep, since Δ is linear in δ; JAX makes it of XLA's kernel."""
    transposed = rows_together(partial(xla_kernels.capped, recursive=recursive, transposed=True))
    return (transposed(gradient, *seen), *map(jnp.zeros_like, seen))


capped.defvjp(_forward, _backward)
