"""Without a cap, the shards after a row's shard act on it by one affine map for each row.

With w_t = into_t ratio_t, T the step that leads out, and Δ' what the next shard has for a trace that leaves this one with x = 1,

    Δ_k = Σ_{k≤t<T} w_{k+1} ··· w_t δ_t + w_{k+1} ··· w_T Δ'

so a shard is known to those before it by two numbers of any size: the sum for a trace that comes in, and the product by which
what comes after it is multiplied. The sum over its own steps is that of the usual kernel; what comes in is added to it.
"""

from __future__ import annotations

from typing import NamedTuple

from offtrace.arrays import Tensor
from offtrace.returns.sharded.any_size import BOTTOM, ONE, Number, Tools, nothing, plus, split, times, total, value
from offtrace.returns.sharded.boundaries import xp_false
from offtrace.returns.sharded.exchange import Exchange, either
from offtrace.returns.sharded.local_steps import Steps
from offtrace.returns.weight_scan import sums


class Map(NamedTuple):
    """Δ' ↦ a + b Δ', in numbers of any size: a = f · 2ⁿ, b = g · 2ᵐ."""

    f: Tensor
    n: Tensor
    g: Tensor
    m: Tensor


IDENTITY = Map(0.0, BOTTOM, *ONE)


def _then(tools: Tools, first: Map, second: Map) -> Map:
    """The map of two stretches, the first before the second in time."""
    a, b = Number(first.f, first.n), Number(first.g, first.m)
    passed = times(tools, b, Number(second.f, second.n))
    return Map(*plus(tools, a, passed), *times(tools, b, Number(second.g, second.m)))


def summary(tools: Tools, row: Steps) -> Map:
    """The shard as those before it see it, [N]."""
    w = split(tools, row.into * row.ratio)
    own = times(tools, w, split(tools, row.delta))
    return total(tools, Map(*own, *w), lambda f, g: _then(tools, f, g), IDENTITY)


def coming(tools: Tools, exchange: Exchange, summary: Map) -> Number:
    """What the shards after this one have for a trace that leaves it, [N]."""
    xp = tools.xp
    all_maps = exchange.gather("affine maps", xp.stack(tuple(summary), 0))
    found = nothing(tools, summary.f)
    for shard in reversed(range(exchange.size)):
        f, n, g, m = (all_maps[shard][i] for i in range(4))
        with_it = plus(tools, Number(f, n), times(tools, Number(g, m), found))
        found = either(xp, shard > exchange.rank, with_it, found)
    return found


def correct(tools: Tools, row: Steps, coming: Number) -> Tensor:
    """Δ [N, T] of this shard."""
    xp = tools.xp
    w = (row.into * row.ratio)[:, 1:]  # what is multiplied by on the way to the next step
    own = tools.linear(row.delta[:, :-1], w)
    back = Number(*(xp.flip(a, (1,)) for a in split(tools, w)))
    products = sums(tools.scan, back, xp_false(w == 0), lambda f, g: times(tools, f, g), ONE)
    reached = Number(*(xp.flip(a, (1,)) for a in products))
    return own + value(tools, times(tools, reached, Number(*(a[:, None] for a in coming))))
