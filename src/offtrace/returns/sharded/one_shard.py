"""Targets and corrections of one shard, by array operations that PyTorch and JAX spell alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from offtrace.arrays import Module, Tensor
from offtrace.returns.sharded import affine_maps, boundaries, short_rows
from offtrace.returns.sharded.any_size import Tools
from offtrace.returns.sharded.boundaries import Flags, Known
from offtrace.returns.sharded.exchange import Exchange, One, either
from offtrace.returns.sharded.local_steps import INFINITY, Factors, Steps, of_actions, of_states
from offtrace.returns.weight_scan import sums
from offtrace.traces.base import UncorrectedReturn

OfDecisions = Callable[[Tensor], Any]
"""From the booleans [N, T] that say where there is a decision."""


class Form(NamedTuple):
    """What of a rule decides how shards of a row are put together."""

    per_decision: bool
    recursive: bool
    uncorrected: UncorrectedReturn | None
    room: int | None = None
    """How many steps may stand for a shard; None where there may be any number."""


class Shard(NamedTuple):
    """The arrays of one shard, real ones in float64, [N, T]."""

    real: Mapping[str, Tensor]
    gamma: Tensor | float
    flags: Flags

    def one_step(self, xp: Module, known: Known) -> Tensor:
        """r + γ next_value; 0 where there is no decision."""
        real, decision = self.real, known.decision
        ahead = xp.where(decision & ~known.terminated, real["next_value"], 0.0)
        return xp.where(decision, real["reward"], 0.0) + self.discount(xp, decision) * ahead

    def discount(self, xp: Module, decision: Tensor) -> Tensor:
        """γ [N, T], which is not read where there is no decision."""
        return xp.where(decision, self.gamma, xp.zeros_like(self.real["reward"]))


def known(tools: Tools, exchange: Exchange, flags: Flags) -> Known:
    """What the flags of all shards make of each step of this one."""
    return boundaries.known(tools, flags, boundaries.gathered(tools, exchange, flags))


def of_factors(xp: Module, made: tuple[object, object, object], shard: Shard) -> Factors:
    """The factors of a rule as arrays, without effect at skipped steps."""
    flags, nothing = shard.flags, xp.zeros_like(shard.real["reward"])
    whole = (nothing + f for f in made)
    if flags.skip is None:
        return Factors(*whole)
    return Factors(*(xp.where(flags.skip, none, f) for f, none in zip(whole, (1.0, 1.0, INFINITY), strict=True)))


def correct(
    tools: Tools, exchange: Exchange, form: Form, shard: Shard, known: Known, factors: Factors, *, add_q: bool
) -> Tensor:
    """q + Δ, or Δ, [N, T], and 0 where there is no decision."""
    xp, decision = tools.xp, known.decision
    one_step, γ, q = shard.one_step(xp, known), shard.discount(xp, decision), shard.real.get("q")
    if form.uncorrected is not None:
        # G_k = r_k + γ_k [(1−λ) v_{k+1} + λ G_{k+1}]; δ is what does not come from G_{k+1}.
        γ = form.uncorrected.lam * γ
        delta = one_step - γ * xp.where(known.goes_on, shard.real["next_value"], 0.0)
    else:
        delta = one_step - q
    out = _by_kernel(tools, exchange, form, of_actions(xp, delta, factors, γ, known))
    if add_q != (form.uncorrected is not None):
        out = out + q if add_q else out - q
    return xp.where(decision, out, 0.0)


def _by_kernel(tools: Tools, exchange: Exchange, form: Form, row: Steps) -> Tensor:
    """Δ [N, T]."""
    if form.per_decision:
        coming = affine_maps.coming(tools, exchange, affine_maps.summary(tools, row))
        return affine_maps.correct(tools, row, coming)
    T, room = row.delta.shape[1] - 1, form.room
    entering = short_rows.entering(tools, exchange, row, form.recursive)
    short, count = short_rows.shorten(tools, row, entering, form.recursive)
    if room is not None and room <= T:
        short, count = short_rows.within(tools, short, count, room)
    whole = short_rows.joined(tools, exchange, row, exchange.share_steps(short, count))
    return short_rows.correct(tools, whole, T, form.recursive)


def on_states(
    tools: Tools,
    exchange: Exchange,
    form: Form,
    shard: Shard,
    known: Known,
    factors: Factors,
    weight: Tensor,
    lam: Tensor | float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Target, advantage and correction of state values, [N, T]; `weight` is the ratio that δ carries, λ that of the advantage."""
    xp, decision = tools.xp, known.decision
    v, γ = xp.where(decision, shard.real["value"], 0.0), shard.discount(xp, decision)
    weight = xp.where(decision, weight, 0.0)
    delta = shard.one_step(xp, known) - v
    factors = factors._replace(cap=_caps_before(tools, exchange, form, factors.cap, decision))
    found = _by_kernel(tools, exchange, form, of_states(xp, weight * delta, factors, γ, known))
    target = xp.where(decision, v + found, 0.0)
    following = _following(tools, exchange, target, shard.flags)
    ahead = xp.where(known.goes_on, following - shard.real["next_value"], 0.0)
    advantage = weight * xp.where(weight == 0, 0.0, delta + γ * xp.where(decision, lam, 0.0) * ahead)  # not 0 · ∞
    return target, xp.where(decision, advantage, 0.0), xp.where(decision, found, 0.0)


def _caps_before(tools: Tools, exchange: Exchange, form: Form, cap: Tensor, decision: Tensor) -> Tensor:
    """The cap of the last action before each step, [N, T + 1]: one at read-out acts over skipped steps and shards."""
    xp = tools.xp
    none = xp.full_like(cap[:, :1], INFINITY)
    if form.recursive or form.per_decision:
        return xp.concatenate([none, cap], 1)
    there = xp.concatenate([boundaries.xp_false(decision[:, :1]) | True, decision], 1)

    def filled(first: Tensor) -> Tensor:
        caps = One(xp.concatenate([first, xp.where(decision, cap, 0.0)], 1))
        return sums(tools.scan, caps, there, lambda f, g: One(f.array + g.array), (0.0,)).array

    last = filled(none)[:, -1]
    told = exchange.gather("last caps", xp.where(decision.any(1), last, -1.0))
    before = One(none[:, 0])
    for shard in range(exchange.size):
        seen = One(xp.where(told[shard] < 0, before.array, told[shard]))
        before = either(xp, shard < exchange.rank, seen, before)
    return filled(before.array[:, None])


def _following(tools: Tools, exchange: Exchange, target: Tensor, flags: Flags) -> Tensor:
    """The target of the step after each one [N, T], which may be in a later shard, and where skipped steps are passed over."""
    xp, none = tools.xp, target[:, 0] * 0.0
    skip = flags.skip
    only_skips = none if skip is None else xp.where(skip.all(1), none + 1.0, none)
    first = _back(tools, xp.concatenate([target, none[:, None]], 1), skip)[:, 0]
    all_first = exchange.gather("first targets", xp.stack([first, only_skips], 0))
    coming = One(none)
    for shard in reversed(range(exchange.size)):
        seen = One(xp.where(all_first[shard][1] == 1.0, coming.array, all_first[shard][0]))
        coming = either(xp, shard > exchange.rank, seen, coming)
    return _back(tools, xp.concatenate([target, coming.array[:, None]], 1), skip)[:, 1:]


def _back(tools: Tools, v: Tensor, skip: Tensor | None) -> Tensor:
    """What stands at each step or, if it is skipped, at the next one that is not; v is 0 at skipped steps."""
    xp = tools.xp
    if skip is None:
        return v
    real = xp.flip(xp.concatenate([~skip, boundaries.xp_false(skip[:, :1])], 1), (1,))
    found = sums(tools.scan, One(xp.flip(v, (1,))), real, lambda f, g: One(f.array + g.array), (0.0,))
    return xp.flip(found.array, (1,))
