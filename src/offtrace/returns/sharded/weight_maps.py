"""Weights of one shard: those before and after it act by one map x ↦ min(a x, b) for each row, and two where rows are packed.

A shard's decisions stand together as one step, whose map is that of all of them. Where several rows are packed into one, the
first and the last of them are such a step each, since only these go on in other shards. The steps of the other shards are put
before and behind a shard's own, in the order of time, and weights are computed as if this were the row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from offtrace.arrays import Module, Tensor
from offtrace.returns.sharded.any_size import Tools
from offtrace.returns.sharded.exchange import Exchange, either
from offtrace.returns.weight_arrays import Weighing
from offtrace.returns.weight_scan import IDENTITY, INFINITY, Kind, Maps, ends, join_maps, starts, sums, weigh_maps

if TYPE_CHECKING:
    import jax


class Summary(NamedTuple):
    """A shard as the others see it, float64 [N, 1], or [N, 2] where rows are packed."""

    maps: Maps
    """Where no decision is, the count is 0."""
    segment: Tensor | None


def gathered(
    tools: Tools, exchange: Exchange, maps: Maps, decision: Tensor, segment: Tensor | None, recursive: bool
) -> list[Summary]:
    """All shards as the others see them, in the order of time."""
    xp = tools.xp
    ours = _summary(tools.scan, maps, decision, segment, recursive)
    parts = [*ours.maps] if ours.segment is None else [*ours.maps, ours.segment]
    found = exchange.gather("maps", xp.stack(parts, 0))
    shards: list[Summary] = []
    for i in range(exchange.size):
        told = [found[i][j] for j in range(len(parts))]
        shards.append(Summary(Maps(*told[:4]), told[4] if len(told) > 4 else None))
    return shards


def weights(
    tools: Tools,
    exchange: Exchange,
    shards: list[Summary],
    maps: Maps,
    decision: Tensor,
    segment: Tensor | None,
    bounds: Tensor | None,
    recursive: bool,
    how: Weighing,
) -> Tensor:
    """The weights of this shard [N, T] in float64. `bounds` is that of `weigh`, for the whole row."""
    xp = tools.xp
    before = [_masked(xp, shard, i < exchange.rank) for i, shard in enumerate(shards)]
    after = [_masked(xp, shard, i > exchange.rank) for i, shard in enumerate(shards)]

    def in_a_row(of: Callable[[Summary], Tensor], ours: Tensor) -> Tensor:
        return xp.concatenate([*map(of, before), 1.0 * ours, *map(of, after)], 1)

    whole = Maps(*(in_a_row(lambda shard, i=i: shard.maps[i], ours) for i, ours in enumerate(maps)))
    ids = None if segment is None else in_a_row(lambda shard: shard.segment, segment)
    counted = whole._replace(count=tools.whole(whole.count))
    found = weigh_maps(tools.scan, counted, whole.count > 0, ids, bounds, recursive, how)
    first = sum(shard.maps.a.shape[1] for shard in before)
    return found[:, first : first + decision.shape[1]]


def _masked(xp: Module, shard: Summary, counts: bool | jax.Array) -> Summary:
    """The shard, or one without decisions."""
    none = Maps(*(xp.full_like(a, n) for a, n in zip(shard.maps, IDENTITY, strict=True)))
    return shard._replace(maps=either(xp, counts, shard.maps, none))


def _summary(kind: Kind, maps: Maps, decision: Tensor, segment: Tensor | None, recursive: bool) -> Summary:
    """The decisions of a shard together: all of them, or those of its first and of its last segment."""
    xp = kind.xp
    first, last = starts(kind, decision, segment), ends(kind, decision, segment)
    alone = maps if recursive else maps._replace(b=xp.full_like(maps.b, INFINITY))
    found = sums(kind, alone, first, lambda f, g: join_maps(xp, f, g), IDENTITY)
    found = found if recursive else found._replace(b=maps.b)  # a cap at read-out acts where the last decision is
    found = found._replace(count=1.0 * found.count * xp.ones_like(found.a))
    places = [_nth(kind, last, segment is not None), _nth(kind, last, False)]
    some, several = last.any(1)[:, None], (xp.where(last, 1, 0).sum(1) > 1)[:, None]
    chosen = [(places[1], some)] if segment is None else [(places[0], some), (places[1], several)]
    columns = [
        [xp.where(there, kind.take(a, place), xp.full_like(a[:, :1], none)) for place, there in chosen]
        for a, none in zip(found, IDENTITY, strict=True)
    ]
    ids = None
    if segment is not None:
        ids = xp.concatenate([kind.take(1.0 * segment * xp.ones_like(found.a), place) for place, _ in chosen], 1)
    return Summary(Maps(*(xp.concatenate(c, 1) for c in columns)), ids)


def _nth(kind: Kind, marked: Tensor, first: bool) -> Tensor:
    """The place of the first or the last marked step, [N, 1]."""
    place = kind.positions(marked)
    length = marked.shape[1]
    if first:
        return kind.xp.amin(kind.xp.where(marked, place, length - 1), 1)[:, None]
    return kind.xp.amax(kind.xp.where(marked, place, 0), 1)[:, None]
