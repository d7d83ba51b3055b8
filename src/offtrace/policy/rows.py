"""Sums along rows: of the decisions of a row, or of each of its segments, up to a decision or in all."""

from __future__ import annotations

from typing import Any, Generic

from offtrace.arrays import Array
from offtrace.policy.steps import Steps


class Rows(Generic[Array]):
    """The decisions of each row in their order; with `segment`, decisions with the same id are a row of their own."""

    def __init__(self, x: Steps[Array], decision: Array, segment: Array | None) -> None:
        self.x, self.decision = x, decision
        self.order: Any = None
        self.back: Any = None
        self.start: Any = None
        self.end: Any = None
        if segment is not None:
            self._find_segments(x.do.array("segment", segment))

    def _find_segments(self, segment: Any) -> None:
        """Decisions come first in each row, so that a segment is a stretch, from `start` to `end`."""
        x, take = self.x, self.x.do.take
        self.order = x.decisions_first(self.decision)
        self.back = x.xp.argsort(self.order, -1)
        there: Any = take(self.decision, self.order)
        ids = take(segment, self.order)
        same: Any = ids[..., 1:] == ids[..., :-1]
        first = x.xp.concatenate([there[..., :1] | True, ~same | ~there[..., 1:]], -1)
        last = x.xp.concatenate([first[..., 1:], there[..., :1] | True], -1)
        ordinal: Any = x.xp.cumsum(first | False, -1) - 1
        self.start = take(x.decisions_first(first), ordinal)
        self.end = take(x.decisions_first(last), ordinal)

    def up_to(self, values: Array) -> Array:
        """The sum over the decisions of the row up to this one."""
        xp, take = self.x.xp, self.x.do.take
        if self.order is None:
            return xp.cumsum(xp.where(self.decision, values, 0.0), -1)
        closed: Any = take(xp.where(self.decision, values, 0.0), self.order)
        total: Any = xp.cumsum(closed, -1)
        return take(total - take(total - closed, self.start), self.back)

    def total(self, values: Array) -> Array:
        """The sum over all decisions of the row, at each of its steps."""
        xp, take = self.x.xp, self.x.do.take
        if self.order is None:
            return xp.broadcast_to(xp.where(self.decision, values, 0.0).sum(-1)[..., None], tuple(self.decision.shape))
        closed: Any = take(xp.where(self.decision, values, 0.0), self.order)
        total: Any = xp.cumsum(closed, -1)
        return take(take(total, self.end) - take(total - closed, self.start), self.back)

    def count(self) -> Array:
        """How many decisions the row has, at each of its steps."""
        return self.total(self.ones())

    def count_or_one(self) -> Array:
        """The same to divide by."""
        count: Any = self.count()
        return self.x.xp.where(count > 0, count, 1.0)

    def position(self) -> Array:
        """1, 2, … for the decisions of a row."""
        return self.up_to(self.ones())

    def ones(self) -> Array:
        """1 at each step, in the dtype of log π."""
        return self.x.xp.ones_like(self.x.constant("log_pi"))
