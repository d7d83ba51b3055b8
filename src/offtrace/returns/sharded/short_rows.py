"""With a cap, a shard is known to those before it by a shorter row: the steps at which a trace that comes in may be clipped.

What a trace that comes in with x is worth in a shard is piecewise linear in x. With L = Σ log ratio and G = L − log cap, the
breakpoints of a recursive cap are the record highs of G: a trace that passes one of them is clipped at it, or has been clipped
higher, so nothing below it acts any more. With a cap at read-out each step is a breakpoint of its own. Either way a step matters
only if some trace reaches its cap, and the largest x that comes in is known from the shards before:

    at the end of a shard the largest x is max(low, min(high, a x)), x the largest that came in       (such maps compose)

Between two breakpoints nothing is clipped, so a stretch is one step: its δ is the sum of the stretch for x = 1, its ratio and
discount are the products. The short row is a row in normal form, so it is put behind the rows before it, and the usual kernels
run over both. A last step, without δ, leads out of the shard.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from offtrace.returns.sharded.any_size import Tools, total
from offtrace.returns.sharded.boundaries import xp_false
from offtrace.returns.sharded.exchange import Exchange, One, either
from offtrace.returns.sharded.local_steps import INFINITY, Steps
from offtrace.returns.weight_scan import sums

Tensor = Any
BUCKET = 360.0
"""A stretch ends where the logarithm of a product moves on by about this much, so that its products are floats."""


class Clamp(NamedTuple):
    """x ↦ max(low, min(high, a x)), in logarithms."""

    a: Tensor
    low: Tensor
    high: Tensor


class Stretch(NamedTuple):
    """From the first step of a stretch to some step: the products of ratios and discounts, and the sum for x = 1."""

    ratio: Tensor
    discount: Tensor
    total: Tensor


class Line(NamedTuple):
    """x ↦ min(a x, b), in logarithms."""

    a: Tensor
    b: Tensor


def _sum(xp: Any, a: Tensor, b: Tensor) -> Tensor:
    """log(e^a e^b), where 0 · ∞ is 0."""
    return xp.where((a == -INFINITY) | (b == -INFINITY), -INFINITY, a + b)


def _apply(xp: Any, f: Clamp, x: Tensor) -> Tensor:
    return xp.maximum(f.low, xp.minimum(f.high, _sum(xp, f.a, x)))


def largest(tools: Tools, exchange: Exchange, row: Steps, recursive: bool) -> Tensor:
    """The logarithm of the largest x with which a trace may come into this shard, [N]; −∞ where none does."""
    xp = tools.xp
    ratio = xp.log(xp.where(row.into == 0, 0.0, row.ratio))
    zero = xp.zeros_like(ratio)
    high = xp.maximum(zero, xp.log(row.cap)) if recursive else zero + INFINITY

    def then(f: Clamp, g: Clamp) -> Clamp:
        return Clamp(_sum(xp, f.a, g.a), _apply(xp, g, f.low), _apply(xp, g, f.high))

    found = total(tools, Clamp(ratio, zero, high), then, (0.0, -INFINITY, INFINITY))
    shut = row.into[:, -1] == 0
    maps = exchange.gather("largest traces", xp.stack([xp.where(shut, -INFINITY, a) for a in found], 0))
    x = One(xp.full_like(found.a, -INFINITY))
    for shard in range(exchange.size):
        after = One(_apply(xp, Clamp(*(maps[shard][i] for i in range(3))), x.array))
        x = either(xp, shard < exchange.rank, after, x)
    return xp.where(x.array == x.array, x.array, INFINITY)  # a ratio that is not known may be any


def shorten(tools: Tools, row: Steps, largest: Tensor, recursive: bool) -> tuple[Steps, Tensor]:
    """The short row of a shard as steps [N, T + 1], of which the first `count` [N] are its own, and the others change nothing."""
    xp = tools.xp
    alive = xp.cumsum((row.into == 0) | (row.ratio == 0) | ((row.cap == 0) & recursive), 1) == 0
    a, d, cap = (xp.log(xp.where(alive, x, 1.0)) for x in (row.ratio, row.into, row.cap))
    clips, L = _clips(tools, Line(a, cap), largest[:, None], recursive)
    clips = clips & alive & ((row.delta != 0) | recursive)
    head = clips | _moves(xp, L) | _moves(xp, xp.cumsum(d, 1))
    if not recursive:  # the stretch after a clipped step is not clipped with it
        head = head | _before(xp, clips, xp_false(clips[:, :1]))
        row = row._replace(cap=xp.where(clips, row.cap, INFINITY))
    always = xp_false(head[:, :1]) | True
    head = xp.concatenate([always & alive[:, :1], (head & alive)[:, 1:-1], always], 1)  # the last step leads out
    stretch = _stretches(tools, row, head, alive)
    one = xp.ones_like(row.into[:, :1])
    before = Stretch(*(_before(xp, s, one) for s in stretch))
    into = xp.where(alive, row.into * before.discount, 0.0)
    ratio, cap = (xp.where(alive, x, 1.0) for x in (row.ratio * before.ratio, row.cap))
    return _taken(tools, Steps(before.total, into, ratio, cap), head)


def _clips(tools: Tools, line: Line, largest: Tensor, recursive: bool) -> tuple[Tensor, Tensor]:
    """Whether the largest trace that comes in is clipped at each step, and Σ log ratio up to it, all in logarithms."""
    xp = tools.xp
    never = xp_false(line.a == 0)
    if not recursive:
        L = xp.cumsum(line.a, 1)
        return _sum(xp, L, largest) > line.b, L

    def then(f: Line, g: Line) -> Line:
        return Line(f.a + g.a, xp.minimum(xp.where(f.b == INFINITY, INFINITY, f.b + g.a), g.b))

    found = sums(tools.scan, line, never, then, (0.0, INFINITY))
    x = xp.minimum(_sum(xp, found.a, largest), found.b)
    return _sum(xp, _before(xp, x, largest), line.a) > line.b, found.a


def _moves(xp: Any, log: Tensor) -> Tensor:
    """Whether a product has left the range of numbers that it was in at the step before."""
    bucket = xp.floor((log + 0.5 * BUCKET) / BUCKET)
    return bucket != _before(xp, bucket, bucket[:, :1] * 0.0)


def _before(xp: Any, array: Tensor, first: Tensor) -> Tensor:
    """What stands one step before; `first` before the row."""
    return xp.concatenate([first, array[:, :-1]], 1)


def _stretches(tools: Tools, row: Steps, head: Tensor, alive: Tensor) -> Stretch:
    """The stretch up to each step. Steps that nothing reaches change nothing."""
    xp = tools.xp
    inner = alive & ~head
    ratio, discount = (xp.where(inner, x, 1.0) for x in (row.ratio, row.into))
    parts = Stretch(ratio, discount, xp.where(alive, ratio * discount * row.delta, 0.0))

    def then(f: Stretch, g: Stretch) -> Stretch:
        return Stretch(f.ratio * g.ratio, f.discount * g.discount, f.total + f.ratio * f.discount * g.total)

    return sums(tools.scan, parts, head, then, (1.0, 1.0, 0.0))


def _taken(tools: Tools, at_heads: Steps, head: Tensor) -> tuple[Steps, Tensor]:
    """The steps at heads in front, and how many they are. The sum of a stretch stands at the head of the next one."""
    xp, take = tools.xp, tools.scan.take
    place = tools.scan.positions(head)
    length = head.shape[1]
    order = xp.argsort(xp.where(head, place, place + length), 1)
    count = xp.where(head, 1, 0).sum(1)
    mine = place < count[:, None]
    delta, into, ratio, cap = (take(a, order) for a in at_heads)
    delta = xp.concatenate([delta[:, 1:], delta[:, :1] * 0.0], 1)
    delta = xp.where(place < count[:, None] - 1, delta, 0.0)
    last = at_heads.cap[:, -1:]  # x is below it already, so that it does not act again
    into, ratio = (xp.where(mine, a, 1.0) for a in (into, ratio))
    return Steps(delta, into, ratio, xp.where(mine, cap, last)), count


def within(tools: Tools, short: Steps, count: Tensor, room: int) -> tuple[Steps, Tensor]:
    """The first `room` steps. Where a row has more, what a trace meets after these is not known: NaN."""
    xp = tools.xp
    short = Steps(*(a[:, :room] for a in short))
    lost = (count > room)[:, None] & (tools.scan.positions(short.delta) == room - 1)
    return short._replace(delta=xp.where(lost, float("nan"), short.delta)), xp.clip(count, 0, room)


def joined(tools: Tools, exchange: Exchange, row: Steps, others: list[Steps]) -> Steps:
    """This shard's steps, and the short rows of the shards after it."""
    xp = tools.xp
    parts = [row]
    for shard, short in enumerate(others):
        if isinstance(exchange.rank, int) and shard <= exchange.rank:
            continue
        still = xp.ones_like(short.delta)
        idle = Steps(0.0 * still, still, still, still * row.cap[:, -1:])
        parts.append(either(xp, shard > exchange.rank, short, idle))
    return Steps(*(xp.concatenate(columns, 1) for columns in zip(*parts, strict=True)))


def correct(tools: Tools, whole: Steps, T: int, recursive: bool) -> Tensor:
    """Δ of the first T steps."""
    xp = tools.xp
    shut = (whole.into == 0) | (whole.ratio == 0) | ((whole.cap == 0) & recursive)
    into, ratio = xp.where(shut, 0.0, whole.into), xp.where(shut, 1.0, whole.ratio)
    g = xp.concatenate([into[:, 1:], 0.0 * into[:, :1]], 1)
    return tools.capped(whole.delta, g, ratio, whole.cap, recursive)[:, :T]
