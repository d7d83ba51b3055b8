"""Weights of one shard: those before and after it act by one map x ↦ min(a x, b) for each row, and two where rows are packed.

A shard's decisions stand together as one step, whose map is that of all of them. Where several rows are packed into one, its first
and its last row are such a step each, since only these go on in other shards. These steps are put before and behind the shard's
own, in the order of time, and weights are computed as if this were the row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from offtrace.returns.sharded.any_size import Tools
from offtrace.returns.sharded.exchange import Exchange, either
from offtrace.returns.weight_arrays import Weighing
from offtrace.returns.weight_scan import IDENTITY, INFINITY, Kind, Maps, ends, join_maps, starts, sums, weigh_maps

Tensor = Any


class Summary(NamedTuple):
    """A shard as the others see it, float64 [N, 1], or [N, 2] where rows are packed."""

    maps: Maps
    """Where no decision is, the count is 0."""
    segment: Tensor | None


def weights(
    tools: Tools,
    exchange: Exchange,
    maps: Maps,
    decision: Tensor,
    segment: Tensor | None,
    bounds: Tensor | None,
    recursive: bool,
    how: Weighing,
) -> Tensor:
    """The weights of this shard [N, T] in float64. `bounds` is that of `weigh`, for the whole row."""
    kind, xp = tools.scan, tools.xp
    if how.level == "token":
        return weigh_maps(kind, maps, decision, segment, bounds, recursive, how)
    ours = _summary(kind, maps, decision, segment, recursive)
    all_shards = _gathered(tools, exchange, ours)
    before = [_masked(xp, shard, i < exchange.rank) for i, shard in enumerate(all_shards)]
    after = [_masked(xp, shard, i > exchange.rank) for i, shard in enumerate(all_shards)]
    whole = Maps(
        *(
            xp.concatenate([*(s.maps[i] for s in before), 1.0 * maps[i], *(s.maps[i] for s in after)], 1)
            for i in range(len(maps))
        )
    )
    several = None
    if segment is not None:
        several = xp.concatenate([*(s.segment for s in before), 1.0 * segment, *(s.segment for s in after)], 1)
    decides = whole.count > 0
    indexed = whole._replace(count=tools.whole(whole.count))
    found = weigh_maps(kind, indexed, decides, several, bounds, recursive, how)
    width = before[0].maps.a.shape[1] * exchange.size
    return found[:, width : width + decision.shape[1]]


def _masked(xp: Any, shard: Summary, counts: Any) -> Summary:
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


def _gathered(tools: Tools, exchange: Exchange, ours: Summary) -> list[Summary]:
    xp = tools.xp
    parts = [*ours.maps] if ours.segment is None else [*ours.maps, ours.segment]
    found = exchange.gather("maps", xp.stack(parts, 0))
    shards: list[Summary] = []
    for i in range(exchange.size):
        *maps, last = (found[i][j] for j in range(len(parts)))
        shards.append(Summary(Maps(*maps, last), None) if ours.segment is None else Summary(Maps(*maps), last))
    return shards
