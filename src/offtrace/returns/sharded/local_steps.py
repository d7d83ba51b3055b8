"""The steps of one shard in normal form, as a trace sees them that comes in from the shard before and goes on to the next.

A trace that stands at step t−1 with x and the discount D is at step t with ratio_t x and into_t D, and is clipped at cap_t. There
are T + 1 steps: the last one has no δ, and leads out of the shard. A skipped step is the identity: into and ratio are 1, the cap
is ∞, and δ is 0.
"""

from __future__ import annotations

from typing import NamedTuple

from offtrace.arrays import Module, Tensor
from offtrace.returns.sharded.boundaries import Known

INFINITY = float("inf")


class Steps(NamedTuple):
    """Float64 [N, …] each: a row, or what stands for one."""

    delta: Tensor
    into: Tensor
    """What the discount is multiplied by on the way into the step; 0 where no trace comes in."""
    ratio: Tensor
    """What x is multiplied by on the way into the step."""
    cap: Tensor


class Factors(NamedTuple):
    """The factors of each step, [N, T]; 1, 1 and ∞ at skipped steps."""

    decay: Tensor
    ratio: Tensor
    cap: Tensor


def of_actions(xp: Module, delta: Tensor, factors: Factors, discount: Tensor, known: Known) -> Steps:
    """Steps on action values: on the way into a step the factors of its own action act."""
    one = xp.ones_like(delta[:, :1])
    # x is below the last cap already: a trace that starts at the last step has x = 1 there.
    out = Factors(one, one, xp.maximum(one, factors.cap[:, -1:]))
    return _steps(
        xp, delta, Factors(*(xp.concatenate([f, e], 1) for f, e in zip(factors, out, strict=True))), discount, known
    )


def of_states(xp: Module, delta: Tensor, factors: Factors, discount: Tensor, known: Known) -> Steps:
    """Steps on state values: on the way into a step the factors of the action before it act. `factors.cap` is [N, T + 1]."""
    one = xp.ones_like(delta[:, :1])
    decay, ratio = (xp.concatenate([one, f], 1) for f in (factors.decay, factors.ratio))
    return _steps(xp, delta, Factors(decay, ratio, factors.cap), discount, known)


def _steps(xp: Module, delta: Tensor, factors: Factors, discount: Tensor, known: Known) -> Steps:
    decay, ratio, cap = factors
    leaves = xp.where(known.passes & ~known.ended, xp.where(known.decision, discount, 1.0), 0.0)
    one = xp.ones_like(leaves[:, :1])
    comes_in = xp.concatenate([xp.where(known.passes, 1.0, 0.0) * one, one], 1)
    into = comes_in * decay * xp.concatenate([one, leaves], 1)
    delta = xp.concatenate([xp.where(known.decision, delta, 0.0), 0.0 * one], 1)
    shut = into == 0  # what no trace passes is not read: it may be NaN
    return Steps(delta, xp.where(shut, 0.0, into), xp.where(shut, 1.0, ratio), xp.where(shut, 1.0, cap))
