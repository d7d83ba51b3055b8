"""Weights by array operations that PyTorch and JAX spell alike: for GPUs, and wherever a program is traced.

A decision is the map x ↦ min(a x, b) with a = ratio and b = cap, a step that is none is the identity (1, ∞). Maps compose,

    (a₁, b₁), then (a₂, b₂):   (a₁ a₂, min(a₂ b₁, b₂)),      where 0 · ∞ counts as ∞ in the second place,

so that all prefixes come from a scan that is log T deep, and all suffixes from one that goes backward. Everything is a logarithm
in float64, since products leave the range of floats: an error of x is at most one unit in the last place of its largest
logarithm on the way. A scan starts anew where a row of a packed row begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from offtrace.arrays import Module, Tensor
from offtrace.returns.weights.decisions import ONE_A_ROW, Criterion, Weighing, estimate

INFINITY = float("inf")
Parts = TypeVar("Parts", bound=tuple[Tensor, ...])


class Kind(NamedTuple):
    """What PyTorch and JAX do not spell alike."""

    xp: Module
    take: Callable[[Tensor, Tensor], Tensor]
    """Entries of the last axis at indices."""
    positions: Callable[[Tensor], Tensor]
    """0, 1, … along the last axis of an array, in its shape, as integers."""


class Maps(NamedTuple):
    """Logarithms of a, b and the decays, and how many decisions are in a map, [N, T] each."""

    a: Tensor
    b: Tensor
    decay: Tensor
    count: Tensor


IDENTITY = Maps(0.0, INFINITY, 0.0, 0)


def sums(
    kind: Kind, parts: Parts, first: Tensor, combine: Callable[[Parts, Parts], Parts], none: tuple[float, ...]
) -> Parts:
    """All parts up to each step, put together by `combine(before, after)`, from the last `first` on."""
    begun = first
    for d in _powers(first.shape[1]):
        before = type(parts)(*(_shifted(kind.xp, a, d, n) for a, n in zip(parts, none, strict=True)))
        both = combine(before, parts)
        parts = type(parts)(*(kind.xp.where(begun, a, c) for a, c in zip(parts, both, strict=True)))
        begun = begun | _shifted(kind.xp, begun, d, False)
    return parts


def _powers(T: int) -> Iterator[int]:
    d = 1
    while d < T:
        yield d
        d *= 2


def _shifted(xp: Module, array: Tensor, d: int, fill: float) -> Tensor:
    """What stands d steps before; `fill` before the row."""
    return xp.concatenate([xp.full_like(array[:, :d], fill), array[:, :-d]], 1)


def _flipped(kind: Kind, array: Tensor) -> Tensor:
    return kind.xp.flip(array, (1,))


class Pair(NamedTuple):
    """Two arrays that a scan carries."""

    one: Tensor
    two: Tensor


def starts(kind: Kind, decision: Tensor, segment: Tensor | None) -> Tensor:
    """The first decision of each row, or of each segment."""
    xp = kind.xp
    ids = xp.zeros_like(kind.positions(decision)) if segment is None else segment
    never = xp.zeros_like(decision)
    found = sums(kind, Pair(decision, ids), never, lambda f, g: _latest(xp, f, g), (False, 0))
    before = _shifted(xp, found.one, 1, False)
    return decision & ~(before & (_shifted(xp, found.two, 1, 0) == ids))


def _latest(xp: Module, before: Pair, after: Pair) -> Pair:
    """The later decision of two, where there is one."""
    return Pair(before.one | after.one, xp.where(after.one, after.two, before.two))


def ends(kind: Kind, decision: Tensor, segment: Tensor | None) -> Tensor:
    """The last decision of each row, or of each segment."""
    back = None if segment is None else _flipped(kind, segment)
    return _flipped(kind, starts(kind, _flipped(kind, decision), back))


def at_the_end(kind: Kind, values: Tensor, last: Tensor) -> Tensor:
    """What stands at the last decision of each row, at all of its decisions."""
    xp, T = kind.xp, last.shape[1]
    back, place = _flipped(kind, last), kind.positions(last)
    found = sums(kind, Pair(back, place), xp.zeros_like(back), lambda f, g: _latest(xp, f, g), (False, 0))
    return kind.take(values, T - 1 - _flipped(kind, found.two))


def weigh(
    kind: Kind,
    decay: Tensor,
    ratio: Tensor,
    cap: Tensor,
    decision: Tensor,
    segment: Tensor | None,
    bounds: Tensor | None,
    recursive: bool,
    how: Weighing,
) -> Tensor:
    """The weights [N, T] in float64, held to the interval, but not normalised.

    `bounds` holds log d_n for n = 0, 1, …, T decisions, −∞ from the horizon on.
    """
    return weigh_maps(kind, maps_of(kind, decay, ratio, cap, decision), decision, segment, bounds, recursive, how)


def maps_of(kind: Kind, decay: Tensor, ratio: Tensor, cap: Tensor, decision: Tensor) -> Maps:
    """The map of each step."""
    xp = kind.xp
    none = decision & ~decision
    a, d = (xp.where(decision, xp.log(f), 0.0) for f in (ratio, decay))
    return Maps(a, xp.where(decision, xp.log(cap), INFINITY), d, xp.where(decision, none + 1, none + 0))


def weigh_maps(
    kind: Kind,
    maps: Maps,
    decision: Tensor,
    segment: Tensor | None,
    bounds: Tensor | None,
    recursive: bool,
    how: Weighing,
) -> Tensor:
    """What `weigh` makes of maps. Several decisions of a row may stand together as one."""
    xp = kind.xp
    first = decision if how.level == "token" else starts(kind, decision, segment)
    last = decision if how.level in ("token", "prefix") else ends(kind, decision, segment)
    if how.level == "suffix" and not recursive:
        maps = maps._replace(b=xp.where(last, maps.b, INFINITY))
    if how.level == "suffix":
        maps = _suffixes(kind, maps, first)
    elif how.level != "token":
        alone = maps if recursive else maps._replace(b=xp.full_like(maps.b, INFINITY))
        found = sums(kind, alone, first, lambda f, g: join_maps(xp, f, g), IDENTITY)
        maps = found if recursive else found._replace(b=maps.b)
    x = xp.minimum(maps.a, maps.b)
    if bounds is not None:
        x = xp.minimum(x, bounds[maps.count])
    log = _sum(xp, maps.decay, x)
    if how.level in ONE_A_ROW:
        log = log / xp.where(decision, maps.count, 1) if how.level == "geometric" else log
        log = at_the_end(kind, log, last)
    return xp.where(decision, _held(xp, how, xp.exp(log)), 0.0)


def _suffixes(kind: Kind, maps: Maps, first: Tensor) -> Maps:
    """The maps of the decisions after each step, of the same row."""
    xp = kind.xp
    back = Maps(*(_flipped(kind, a) for a in maps))
    begins = _shifted(xp, _flipped(kind, first), 1, False)  # the next step begins another row
    found = sums(kind, back, begins, lambda f, g: join_maps(xp, g, f), IDENTITY)
    after = (xp.where(begins, xp.full_like(a, n), _shifted(xp, a, 1, n)) for a, n in zip(found, IDENTITY, strict=True))
    return Maps(*(_flipped(kind, a) for a in after))


def _sum(xp: Module, a: Tensor, b: Tensor) -> Tensor:
    """log(e^a e^b), where 0 · ∞ is 0."""
    return xp.where((a == -INFINITY) | (b == -INFINITY), -INFINITY, a + b)


def join_maps(xp: Module, f: Maps, g: Maps) -> Maps:
    """The map f, then g."""
    passed = xp.where(f.b == INFINITY, INFINITY, _sum(xp, g.a, f.b))
    return Maps(_sum(xp, f.a, g.a), xp.minimum(passed, g.b), _sum(xp, f.decay, g.decay), f.count + g.count)


def _held(xp: Module, how: Weighing, weights: Tensor) -> Tensor:
    """Weights held to the interval."""
    if not how.bounded:
        return weights
    if how.drop:
        return xp.where((weights < how.lower) | (weights > how.upper), 0.0, weights)
    return xp.clip(weights, how.lower, how.upper)


def kept(
    kind: Kind, criteria: tuple[Criterion, ...], log_ratio: Tensor, decision: Tensor, segment: Tensor | None
) -> Tensor:
    """Whether each decision passes all criteria, [N, T]. What is not a number passes none."""
    xp = kind.xp
    first, last = starts(kind, decision, segment), ends(kind, decision, segment)
    count = xp.where(decision, 1.0, 0.0)
    found = decision
    for over, k, lower, upper in criteria:
        none = -INFINITY if over == "max" else 0.0
        value = xp.where(decision, estimate(xp, k, log_ratio), none)
        if over != "token":
            join = xp.maximum if over == "max" else xp.add
            parts = Pair(value, count)
            total = sums(kind, parts, first, lambda f, g, join=join: Pair(join(f.one, g.one), f.two + g.two), (none, 0))
            value = at_the_end(kind, total.one / total.two if over == "mean" else total.one, last)
        found = found & (value >= lower) & (value <= upper)
    return found
