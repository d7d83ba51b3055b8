"""Numbers of any size, f · 2ⁿ, by array operations that PyTorch and JAX spell alike: products over a shard leave the floats.

Both parts are float64, so that a pair is sent as two numbers. |f| is in [½, 1), or 0 with n at the `BOTTOM`. NaN stays in f.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from offtrace.arrays import Module, Tensor
from offtrace.returns.weight_scan import Kind, Parts

BOTTOM = -1e15
HALF_RANGE = 1000.0


class Tools(NamedTuple):
    """What PyTorch and JAX do not spell alike."""

    scan: Kind
    power_of_two: Callable[[Tensor], Tensor]
    """2ⁿ for whole n in float64, −1000 ≤ n ≤ 1000."""
    whole: Callable[[Tensor], Tensor]
    """Whole numbers of float64 as integers."""
    linear: Callable[[Tensor, Tensor], Tensor]
    """Δ_k = δ_k + weight_k Δ_{k+1}, of δ and weight, float64 [N, T]."""
    capped: Callable[[Tensor, Tensor, Tensor, Tensor, bool], Tensor]
    """Δ_k = Σ_t D_{k:t} min(cap_t, x_{k:t}) δ_t, of δ, g, ratio, cap, [N, T], and whether the cap is recursive."""

    @property
    def xp(self) -> Module:
        """torch or jax.numpy."""
        return self.scan.xp


class Number(NamedTuple):
    """f · 2ⁿ."""

    f: Tensor
    n: Tensor


ONE = Number(0.5, 1.0)


def split(tools: Tools, x: Tensor) -> Number:
    """A float64 as a number of any size."""
    xp = tools.xp
    fine = (x != 0) & (abs(x) < float("inf"))
    f, n = xp.frexp(xp.where(fine, x, 0.5))
    return Number(xp.where(fine, f, x), xp.where(fine, n * xp.ones_like(x), xp.where(x == 0, BOTTOM, 0.0)))


def nothing(tools: Tools, like: Tensor) -> Number:
    """0, in the shape of an array."""
    return Number(tools.xp.zeros_like(like), tools.xp.full_like(like, BOTTOM))


def times(tools: Tools, a: Number, b: Number) -> Number:
    """The product. It is 0 where either is, even if the other is NaN."""
    xp = tools.xp
    f = xp.where((a.f == 0) | (b.f == 0), 0.0, a.f * b.f)
    low = abs(f) < 0.5  # the product of two is at least ¼
    return Number(xp.where(low, 2.0 * f, f), xp.where(f == 0, BOTTOM, a.n + b.n - xp.where(low, 1.0, 0.0)))


def plus(tools: Tools, a: Number, b: Number) -> Number:
    """The sum."""
    xp = tools.xp
    top = xp.maximum(a.n, b.n)
    f, n = split(tools, _shifted(tools, a.f, a.n - top) + _shifted(tools, b.f, b.n - top))
    return Number(f, xp.where(f == 0, BOTTOM, n + top))


def value(tools: Tools, a: Number) -> Tensor:
    """The number as a float64: infinite or 0 only where it is beyond them."""
    return _shifted(tools, a.f, a.n)


def _shifted(tools: Tools, f: Tensor, n: Tensor) -> Tensor:
    """f · 2ⁿ, in two steps, since 2ⁿ alone may be beyond the floats."""
    n = tools.xp.clip(n, -2.0 * HALF_RANGE, 2.0 * HALF_RANGE)
    half = tools.xp.floor(0.5 * n)
    return f * tools.power_of_two(half) * tools.power_of_two(n - half)


def total(tools: Tools, parts: Parts, combine: Callable[[Parts, Parts], Parts], none: tuple[float, ...]) -> Parts:
    """All parts of a row [N, T], put together by `combine(before, after)`, as [N]: by halves, so that few roundings add up."""
    xp = tools.xp
    length = parts[0].shape[1]
    while length > 1:
        if length % 2:
            fill = (xp.full_like(a[:, :1], n) for a, n in zip(parts, none, strict=True))
            parts = type(parts)(*(xp.concatenate([a, end], 1) for a, end in zip(parts, fill, strict=True)))
        left, right = (type(parts)(*(a[:, side::2] for a in parts)) for side in (0, 1))
        parts = combine(left, right)
        length = parts[0].shape[1]
    return type(parts)(*(a[:, 0] for a in parts))
