"""Weights by array operations that PyTorch and JAX spell alike: for GPUs, and wherever a program is traced.

A decision is the map x ↦ min(a x, b) with a = ratio and b = cap, a step that is none is the identity (1, ∞). Maps compose,

    (a₁, b₁), then (a₂, b₂):   (a₁ a₂, min(a₂ b₁, b₂)),      where 0 · ∞ counts as ∞ in the second place,

so that all prefixes come from a scan that is log T deep, and all suffixes from one that goes backward. Everything is a logarithm
in float64, since products leave the range of floats: an error of x is at most one unit in the last place of its largest
logarithm on the way. A scan starts again where a row of a packed row begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from offtrace.arrays import Module, Tensor
from offtrace.returns.backend import Backend
from offtrace.returns.operations import Operations, Rows, factors
from offtrace.returns.weights.decisions import ONE_A_ROW, Criterion, Weighing, estimate
from offtrace.traces import Trace

INFINITY = float("inf")
Parts = TypeVar("Parts", bound=tuple[Tensor, ...])


Indexing: TypeAlias = Operations | Backend[Any]
"""Sums along rows need `xp` and `take` of a library, which both have."""


class Maps(NamedTuple):
    """Logarithms of a, b and the decays, and how many decisions are in a map, [N, T] each."""

    a: Tensor
    b: Tensor
    decay: Tensor
    count: Tensor


IDENTITY = Maps(0.0, INFINITY, 0.0, 0)


def sums(
    do: Indexing, parts: Parts, first: Tensor, combine: Callable[[Parts, Parts], Parts], none: tuple[float, ...]
) -> Parts:
    """All parts up to each step, put together by `combine(before, after)`, from the last `first` on."""
    begun = first
    for d in _powers(first.shape[1]):
        before = type(parts)(*(_shifted(do.xp, a, d, n) for a, n in zip(parts, none, strict=True)))
        both = combine(before, parts)
        parts = type(parts)(*(do.xp.where(begun, a, c) for a, c in zip(parts, both, strict=True)))
        begun = begun | _shifted(do.xp, begun, d, False)
    return parts


def _powers(T: int) -> Iterator[int]:
    d = 1
    while d < T:
        yield d
        d *= 2


def _shifted(xp: Module, array: Tensor, d: int, fill: float) -> Tensor:
    """What stands d steps before; `fill` before the row."""
    return xp.concatenate([xp.full_like(array[:, :d], fill), array[:, :-d]], 1)


def _places(xp: Module, like: Tensor) -> Tensor:
    """0, 1, … along each row."""
    return xp.cumsum(like | True, -1) - 1


def _flipped(do: Indexing, array: Tensor) -> Tensor:
    return do.xp.flip(array, (1,))


class Single(NamedTuple):
    """One array that a scan carries."""

    one: Tensor


class Pair(NamedTuple):
    """Two arrays that a scan carries."""

    one: Tensor
    two: Tensor


def running_sums(do: Indexing, values: Parts, first: Tensor, *, packed: bool) -> Parts:
    """Sums of each part up to each step; of packed rows from the last `first` on."""
    if not packed:
        return type(values)(*(do.xp.cumsum(a, -1) for a in values))
    none = (0.0,) * len(values)
    return sums(do, values, first, lambda f, g: type(f)(*(a + b for a, b in zip(f, g, strict=True))), none)


def previous(do: Indexing, values: Tensor, decision: Tensor) -> Pair:
    """Whether there is a decision earlier in the row, and what stands at the last of them."""
    xp = do.xp
    latest = sums(do, Pair(decision, values), xp.zeros_like(decision), lambda f, g: _latest(xp, f, g), (False, 0))
    return Pair(_shifted(xp, latest.one, 1, False), _shifted(xp, latest.two, 1, 0))


def starts(do: Indexing, decision: Tensor, segment: Tensor | None) -> Tensor:
    """The first decision of each row, or of each segment."""
    if segment is None:
        return decision & (do.xp.cumsum(decision, -1) == 1)
    before = previous(do, segment, decision)
    return decision & ~(before.one & (before.two == segment))


def _latest(xp: Module, before: Pair, after: Pair) -> Pair:
    """The later decision of two, where there is one."""
    return Pair(before.one | after.one, xp.where(after.one, after.two, before.two))


def ends(do: Indexing, decision: Tensor, segment: Tensor | None) -> Tensor:
    """The last decision of each row, or of each segment."""
    back = None if segment is None else _flipped(do, segment)
    return _flipped(do, starts(do, _flipped(do, decision), back))


def at_the_end(do: Indexing, values: Tensor, last: Tensor) -> Tensor:
    """What stands at the last decision of each row, at all of its decisions."""
    xp, T = do.xp, last.shape[1]
    back, place = _flipped(do, last), _places(xp, last)
    latest = sums(do, Pair(back, place), xp.zeros_like(back), lambda f, g: _latest(xp, f, g), (False, 0))
    return do.take(values, T - 1 - _flipped(do, latest.two))


def weigh(
    do: Operations, trace: Trace, logs: Mapping[str, Tensor], decision: Tensor, segment: Tensor | None, how: Weighing
) -> Tensor:
    """The weights [N, T] in float64, within the interval, not normalised. `logs` are the log-probabilities, of any dtype."""
    xp, T = do.xp, decision.shape[1]
    read = {name: xp.where(decision, do.asarray(log, decision), 0.0) for name, log in logs.items()}
    decay, ratio, cap = (xp.log(f) for f in factors(do, trace, Rows(read, decision, decision, None)))
    a, d = (xp.where(decision, f, 0.0) for f in (ratio, decay))
    maps = Maps(a, xp.where(decision, cap, INFINITY), d, xp.where(decision, 1, 0))
    recursive = trace.recursive
    first = decision if how.level == "token" else starts(do, decision, segment)
    last = decision if how.level in ("token", "prefix") else ends(do, decision, segment)
    if how.level == "suffix" and not recursive:
        maps = maps._replace(b=xp.where(last, maps.b, INFINITY))
    if how.level == "suffix":
        maps = _suffixes(do, maps, first)
    elif how.level != "token":
        alone = maps if recursive else maps._replace(b=xp.full_like(maps.b, INFINITY))
        scanned = sums(do, alone, first, lambda f, g: join_maps(xp, f, g), IDENTITY)
        maps = scanned if recursive else scanned._replace(b=maps.b)
    x = xp.minimum(maps.a, maps.b)
    lags = trace.bounds_by_lag(T + 1)
    if lags is not None:  # d_n for n = 0, 1, …, T decisions, 0 from the horizon on
        bounds = do.asarray([INFINITY, *lags, *[0.0] * T][: T + 1], decision)
        x = xp.minimum(x, xp.log(bounds)[maps.count])
    log = _sum(xp, maps.decay, x)
    if how.level in ONE_A_ROW:
        log = log / xp.where(decision, maps.count, 1) if how.level == "geometric" else log
        log = at_the_end(do, log, last)
    return xp.where(decision, _held(xp, how, xp.exp(log)), 0.0)


def _suffixes(do: Operations, maps: Maps, first: Tensor) -> Maps:
    """The maps of the decisions after each step, of the same row."""
    xp = do.xp
    back = Maps(*(_flipped(do, a) for a in maps))
    begins = _shifted(xp, _flipped(do, first), 1, False)  # the next step begins another row
    scanned = sums(do, back, begins, lambda f, g: join_maps(xp, g, f), IDENTITY)
    after = (
        xp.where(begins, xp.full_like(a, n), _shifted(xp, a, 1, n)) for a, n in zip(scanned, IDENTITY, strict=True)
    )
    return Maps(*(_flipped(do, a) for a in after))


def _sum(xp: Module, a: Tensor, b: Tensor) -> Tensor:
    """log(e^a e^b), where 0 · ∞ is 0."""
    return xp.where((a == -INFINITY) | (b == -INFINITY), -INFINITY, a + b)


def join_maps(xp: Module, f: Maps, g: Maps) -> Maps:
    """The map f, then g."""
    passed = xp.where(f.b == INFINITY, INFINITY, _sum(xp, g.a, f.b))
    return Maps(_sum(xp, f.a, g.a), xp.minimum(passed, g.b), _sum(xp, f.decay, g.decay), f.count + g.count)


def _held(xp: Module, how: Weighing, weights: Tensor) -> Tensor:
    """Weights, bounded by the interval."""
    if not how.bounded:
        return weights
    if how.drop:
        return xp.where((weights < how.lower) | (weights > how.upper), 0.0, weights)
    return xp.clip(weights, how.lower, how.upper)


def kept(
    do: Operations,
    criteria: tuple[Criterion, ...],
    log_pi: Tensor,
    log_mu: Tensor,
    decision: Tensor,
    segment: Tensor | None,
    advantage: Tensor | None,
) -> Tensor:
    """Whether each decision passes all criteria, [N, T]. What is not a number passes none, nor does a log μ of −∞."""
    xp = do.xp
    log_pi, log_mu = do.asarray(log_pi, decision), do.asarray(log_mu, decision)
    log_ratio = xp.where(decision, log_pi - xp.where(log_mu == -INFINITY, xp.nan, log_mu), 0.0)
    passed = decision
    for criterion in criteria:
        none = -INFINITY if criterion.over == "max" else 0.0
        value = xp.where(decision, estimate(xp, criterion.k, log_ratio, log_mu), none)
        if criterion.over != "token":
            value = over_sequences(do, criterion.over, value, decision, segment)
        passed = passed & criterion.keeps(value, advantage)
    return passed


def over_sequences(do: Operations, over: str, value: Tensor, decision: Tensor, segment: Tensor | None) -> Tensor:
    """The sum, mean or maximum over a row, a segment of it, or a prefix, as `over` says, at each of its decisions."""
    xp, prefix, is_mean = do.xp, over.startswith("prefix"), over.endswith("mean")
    one = xp.where(decision, 1.0, 0.0)
    if segment is None:
        if over == "max":
            return xp.amax(value, -1)[:, None]
        total, count = (xp.cumsum(a, -1) if prefix else a.sum(-1)[:, None] for a in (value, one))
        return total / xp.where(count > 0, count, 1.0) if is_mean else total
    join, none = (xp.maximum, -INFINITY) if over == "max" else (xp.add, 0.0)
    first = starts(do, decision, segment)
    both = sums(do, Pair(value, one), first, lambda f, g: Pair(join(f.one, g.one), f.two + g.two), (none, 0))
    joined = both.one / both.two if is_mean else both.one
    return joined if prefix else at_the_end(do, joined, ends(do, decision, segment))
