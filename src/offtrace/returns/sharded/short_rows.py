"""With a cap, a shard is known to those before it by a shorter row: the steps at which a trace that comes in may be clipped.

What a trace that comes in with x is worth in a shard is piecewise linear in x. With L = Σ log ratio and G = L − log cap, the
breakpoints of a recursive cap are the record highs of G: a trace that passes one of them is clipped at it, or has been clipped
higher, so nothing below it acts any more. With a cap at read-out each step is a breakpoint of its own. Either way a step matters
only if it clips some of the traces that come in and not the others, and the smallest x of these and the largest are known from
the shards before. With the largest x that comes into a shard, or the smallest, the one that leaves it is

    largest:  max(low, min(high, a x))        smallest:  min(least, b x)        (such maps compose)

Between two such steps a stretch is one step: its δ is the sum of the stretch for x = 1, or for a trace at its cap, its ratio and
its discount are the products. Once the smallest trace has been clipped at a recursive cap, all go on as one, and what is left of
the shard is one stretch. The short row is a row in normal form, so it is put behind the rows before it, and the usual kernels run
over both. Its last step, without δ, leads out of the shard.
"""

from __future__ import annotations

from typing import NamedTuple

from offtrace.arrays import Module, Tensor
from offtrace.returns.sharded.any_size import Tools, total
from offtrace.returns.sharded.boundaries import xp_false
from offtrace.returns.sharded.exchange import Exchange, either
from offtrace.returns.sharded.local_steps import INFINITY, Steps
from offtrace.returns.weight_scan import sums

BUCKET = 360.0
"""A stretch ends where the logarithm of a product moves on by about this much, so that its products are floats."""


class Ends(NamedTuple):
    """From the traces that come in to those that leave, in logarithms: max(low, min(high, a x)), and min(least, b x)."""

    a: Tensor
    low: Tensor
    high: Tensor
    b: Tensor
    least: Tensor


class Entering(NamedTuple):
    """The logarithms of the largest and of the smallest x of the traces that come in, [N]; −∞ and ∞ where there is none."""

    largest: Tensor
    smallest: Tensor


class Stretch(NamedTuple):
    """From the first step of a stretch to some step: what x and the discount are multiplied by, and δ, and its sum."""

    ratio: Tensor
    discount: Tensor
    worth: Tensor
    total: Tensor


class Line(NamedTuple):
    """x ↦ min(a x, b), in logarithms."""

    a: Tensor
    b: Tensor


def _sum(xp: Module, a: Tensor, b: Tensor) -> Tensor:
    """log(e^a e^b), where 0 · ∞ is 0."""
    return xp.where((a == -INFINITY) | (b == -INFINITY), -INFINITY, a + b)


def _apply(xp: Module, f: Ends, x: Entering) -> Entering:
    return Entering(
        xp.maximum(f.low, xp.minimum(f.high, _sum(xp, f.a, x.largest))), xp.minimum(f.least, f.b + x.smallest)
    )


def entering(tools: Tools, exchange: Exchange, row: Steps, recursive: bool) -> Entering:
    """The largest and the smallest x with which a trace may come into this shard."""
    xp = tools.xp
    shut = (row.into == 0) | (row.ratio == 0)
    ratio = xp.log(xp.where(shut, 1.0, row.ratio))
    start = xp.zeros_like(ratio)  # a trace that starts here has x = 1
    cap = xp.log(row.cap) if recursive else start + INFINITY
    shut = shut | (cap == -INFINITY)
    parts = Ends(
        xp.where(shut, -INFINITY, ratio), start, xp.maximum(start, cap),
        xp.where(shut, INFINITY, ratio), xp.where(shut, 0.0, xp.minimum(start, cap)),
    )  # fmt: skip

    def then(f: Ends, g: Ends) -> Ends:
        low, high = (_apply(xp, g, Entering(x, f.least)).largest for x in (f.low, f.high))
        return Ends(_sum(xp, f.a, g.a), low, high, f.b + g.b, xp.minimum(g.least, g.b + f.least))

    found = total(tools, parts, then, (0.0, -INFINITY, INFINITY, 0.0, INFINITY))
    none = Ends(*(xp.full_like(found.a, x) for x in (-INFINITY, -INFINITY, -INFINITY, INFINITY, INFINITY)))
    leaves = row.into[:, -1] != 0
    told = exchange.gather(
        "largest and smallest traces", xp.stack([xp.where(leaves, *x) for x in zip(found, none, strict=True)], 0)
    )
    x = Entering(none.a, none.b)
    for shard in range(exchange.size):
        x = either(xp, shard < exchange.rank, _apply(xp, Ends(*(told[shard][i] for i in range(5))), x), x)
    largest, smallest = x  # a ratio that is not known may be any
    return Entering(
        xp.where(largest == largest, largest, INFINITY), xp.where(smallest == smallest, smallest, -INFINITY)
    )


class Plan(NamedTuple):
    """How the steps of a shard are put together, [N, T + 1]."""

    clips: Tensor
    """Whether a step clips some of the traces that come in."""
    head: Tensor
    """Whether a stretch begins at the step."""
    ratio: Tensor
    """What x is multiplied by on the way into the step."""
    worth: Tensor
    """What δ is multiplied by, other than the discount, as against the step before, in the same stretch."""


def shorten(tools: Tools, row: Steps, entering: Entering, recursive: bool) -> tuple[Steps, Tensor]:
    """The short row of a shard as steps [N, T + 1], of which the first `count` [N] are its own, and the others change nothing."""
    xp = tools.xp
    alive = xp.cumsum((row.into == 0) | (row.ratio == 0) | ((row.cap == 0) & recursive), 1) == 0
    ratio, into, cap = (xp.where(alive, x, 1.0) for x in (row.ratio, row.into, row.cap))
    row, x = Steps(row.delta, into, ratio, cap), Entering(*(a[:, None] for a in entering))
    plan = (_recursive if recursive else _at_readout)(tools, row, Line(xp.log(ratio), xp.log(cap)), x)
    head = (plan.head | _moves(xp, xp.cumsum(xp.log(plan.ratio), 1)) | _moves(xp, xp.cumsum(xp.log(into), 1))) & alive
    always = xp_false(head[:, :1]) | True
    head = xp.concatenate([always & alive[:, :1], head[:, 1:-1], always], 1)  # the last step leads out
    stretch = _stretches(tools, row, plan, head, alive)
    one = xp.ones_like(into[:, :1])
    before = Stretch(*(_before(xp, s, one) for s in stretch))
    into = xp.where(alive, into * before.discount, 0.0)
    cap = cap if recursive else xp.where(plan.clips, cap, INFINITY)
    return _taken(tools, Steps(before.total, into, plan.ratio * before.ratio, cap), head)


def _recursive(tools: Tools, row: Steps, line: Line, entering: Entering) -> Plan:
    """Stretches begin where the largest trace is clipped, until the smallest one has been: from there on all are the same."""
    xp = tools.xp

    def then(f: Line, g: Line) -> Line:
        return Line(f.a + g.a, xp.minimum(xp.where(f.b == INFINITY, INFINITY, f.b + g.a), g.b))

    found = sums(tools.scan, line, xp_false(row.into == 0), then, (0.0, INFINITY))
    largest = xp.minimum(_sum(xp, found.a, entering.largest), found.b)
    before = _before(xp, largest, entering.largest)
    one = _before(xp, found.a + entering.smallest >= found.b, xp_false(found.a[:, :1] == 0)) & (before > -INFINITY)
    clips = (_sum(xp, before, line.a) > line.b) & ~one
    ratio = xp.where(one, xp.exp(xp.where(one, largest - before, 0.0)), row.ratio)
    return Plan(clips, clips, ratio, ratio)


def _at_readout(tools: Tools, row: Steps, line: Line, entering: Entering) -> Plan:
    """A step that clips some traces and not others is by itself. Those that clip none, or all, make stretches with their like."""
    xp = tools.xp
    L = xp.cumsum(line.a, 1)
    some = _sum(xp, L, entering.largest) > line.b
    every = some & (L + entering.smallest >= line.b) & (row.cap > 0)
    like = xp.where(every, 2, xp.where(some & (row.delta != 0), 1, 0))
    head = (like == 1) | (like != _before(xp, like, like[:, :1]))
    worth = xp.where(every, row.cap / _before(xp, row.cap, row.cap[:, :1]), row.ratio)
    return Plan(like > 0, head, row.ratio, xp.where(head, 1.0, worth))


def _moves(xp: Module, log: Tensor) -> Tensor:
    """Whether a product has left the range of numbers that it was in at the step before."""
    bucket = xp.floor((log + 0.5 * BUCKET) / BUCKET)
    return bucket != _before(xp, bucket, bucket[:, :1] * 0.0)


def _before(xp: Module, array: Tensor, first: Tensor) -> Tensor:
    """What stands one step before; `first` before the row."""
    return xp.concatenate([first, array[:, :-1]], 1)


def _stretches(tools: Tools, row: Steps, plan: Plan, head: Tensor, alive: Tensor) -> Stretch:
    """The stretch up to each step. Steps that nothing reaches change nothing."""
    xp = tools.xp
    inner = alive & ~head
    ratio, discount, worth = (xp.where(inner, x, 1.0) for x in (plan.ratio, row.into, plan.worth))
    parts = Stretch(ratio, discount, worth, xp.where(alive, worth * discount * row.delta, 0.0))

    def then(f: Stretch, g: Stretch) -> Stretch:
        passed = f.worth * f.discount * g.total
        return Stretch(f.ratio * g.ratio, f.discount * g.discount, f.worth * g.worth, f.total + passed)

    return sums(tools.scan, parts, head, then, (1.0, 1.0, 1.0, 0.0))


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
