"""What a shard must know of the steps after it before its own TD errors are known: whether an episode ends there, or goes on.

A skipped step passes everything on, so its end is that of the decision before it, which may stand in an earlier shard.
"""

from __future__ import annotations

from typing import NamedTuple

from offtrace.arrays import Tensor
from offtrace.returns.sharded.any_size import Tools
from offtrace.returns.sharded.exchange import Exchange, either
from offtrace.returns.weight_scan import sums


class Flags(NamedTuple):
    """Booleans [N, T]. Padding is not skipped."""

    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    skip: Tensor | None
    """None where no shard skips any step."""


class Ahead(NamedTuple):
    """What lies ahead of a step: ends at the skipped steps that come next, and whether the step after these is a decision."""

    terminated: Tensor
    truncated: Tensor
    opens: Tensor


class Known(NamedTuple):
    """What the flags of a row make of each step, booleans [N, T]."""

    terminated: Tensor
    """Whether the task has ended after this decision."""
    ended: Tensor
    """Whether the episode has ended after this step."""
    goes_on: Tensor
    """Whether a trace passes from this decision to the next one."""
    decision: Tensor
    """Whether the step is one: neither padding nor skipped."""
    passes: Tensor
    """Whether it is one, or is skipped: a trace does not pass padding."""


def gathered(tools: Tools, exchange: Exchange, flags: Flags) -> Ahead:
    """What the shards after this one say, [N] each."""
    xp, none = tools.xp, xp_false(flags.valid[:, 0])
    first = Ahead(*(a[:, 0] for a in _runs(tools, flags, Ahead(none, none, none))))
    only_skips = none if flags.skip is None else flags.skip.all(1)
    bits = (first.terminated, first.truncated, first.opens, only_skips)
    zero = xp.zeros_like(first.opens * 1.0)
    code = sum((xp.where(bit, zero + 2.0**i, zero) for i, bit in enumerate(bits)), zero)
    found = Ahead(none, none, none)
    codes = exchange.gather("ends", code)
    for shard in reversed(range(exchange.size)):
        *told, passes = (xp.floor(codes[shard] / 2.0**i) % 2 == 1 for i in range(4))
        both = Ahead(*(a | (passes & b) for a, b in zip(told, found, strict=True)))
        found = either(xp, shard > exchange.rank, both, found)
    return found


def xp_false(like: Tensor) -> Tensor:
    """False, in the shape of a boolean array."""
    return like & ~like


def _runs(tools: Tools, flags: Flags, after: Ahead) -> Ahead:
    """What lies ahead as seen from before each step, [N, T + 1]; the last column is what the later shards say."""
    xp = tools.xp
    if flags.skip is None:
        none = xp_false(flags.valid)
        columns = Ahead(none, none, flags.valid)
    else:
        columns = Ahead(flags.terminated & flags.skip, flags.truncated & flags.skip, flags.valid & ~flags.skip)
    parts = Ahead(*(xp.concatenate([a, end[:, None]], 1) for a, end in zip(columns, after, strict=True)))
    if flags.skip is None:
        return parts
    back = Ahead(*(xp.flip(a, (1,)) for a in parts))
    real = xp.flip(xp.concatenate([columns.opens | ~flags.valid, xp_false(flags.valid[:, :1])], 1), (1,))
    found = sums(tools.scan, back, real, lambda f, g: Ahead(*(a | b for a, b in zip(f, g, strict=True))), (False,) * 3)
    return Ahead(*(xp.flip(a, (1,)) for a in found))


def known(tools: Tools, flags: Flags, after: Ahead) -> Known:
    """What the flags of this shard and of those after it make of its steps."""
    ahead = Ahead(*(a[:, 1:] for a in _runs(tools, flags, after)))
    decision = flags.valid if flags.skip is None else flags.valid & ~flags.skip
    terminated = flags.terminated | ahead.terminated
    ended: Tensor = terminated | flags.truncated | ahead.truncated
    return Known(terminated, ended, decision & ~ended & ahead.opens, decision, flags.valid)
