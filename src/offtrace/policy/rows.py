"""Sums along rows: of the decisions of a row, or of each of its segments, up to a decision or in all."""

from __future__ import annotations

from typing import Any, Generic

from offtrace.arrays import Array
from offtrace.policy.steps import Steps
from offtrace.returns.weights.scan import Single, at_the_end, ends, previous, running_sums, starts


class Rows(Generic[Array]):
    """The decisions of each row in their order; with `segment`, decisions with the same id are a row of their own."""

    def __init__(self, x: Steps[Array], decision: Array, segment: Array | None) -> None:
        self.x, self.decision = x, decision
        self.ids: Any = None if segment is None else self._in_rows(x.do.array("segment", segment))
        self.first: Any = None
        self.last: Any = None
        if segment is not None:
            rows = self._in_rows(decision)
            self.first, self.last = starts(x.do, rows, self.ids), ends(x.do, rows, self.ids)

    def _in_rows(self, array: Any) -> Any:
        return array.reshape(-1, self.x.shape[-1])

    def up_to(self, values: Array) -> Array:
        """The sum over the decisions of the row up to this one."""
        xp = self.x.xp
        values = xp.where(self.decision, values, 0.0)
        if self.first is None:
            return xp.cumsum(values, -1)
        return self._sums(values).reshape(self.x.shape)

    def _sums(self, values: Any) -> Any:
        return running_sums(self.x.do, Single(self._in_rows(values)), self.first, packed=True).one

    def total(self, values: Array) -> Array:
        """The sum over all decisions of the row, at each of its steps."""
        xp = self.x.xp
        values = xp.where(self.decision, values, 0.0)
        if self.first is None:
            return xp.broadcast_to(values.sum(-1)[..., None], tuple(self.decision.shape))
        return at_the_end(self.x.do, self._sums(values), self.last).reshape(self.x.shape)

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

    def before(self, values: Array, first: float) -> Array:
        """What stands at the decision before each, in the same row; `first` at the first."""
        x, rows = self.x, self._in_rows(self.decision)
        begins = starts(x.do, rows, self.ids)
        earlier = previous(x.do, self._in_rows(values), rows).two
        return x.xp.where(begins, first, earlier).reshape(x.shape)

    def how_many(self) -> Array:
        """How many rows, or segments of rows, have a decision."""
        there: Any = self.decision.any(-1) if self.first is None else self.first
        return there.sum()

    def ones(self) -> Array:
        """1 at each step, in the dtype of log π."""
        xp: Any = self.x.xp
        return xp.ones_like(self.x.constant("log_pi"))
