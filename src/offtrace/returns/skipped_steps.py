"""Steps that are no decisions, such as a tool's output between two turns: they are taken out of their rows, and put back after.

What is left closes up, so that every rule, kernel and kind of array passes over them, and lags count decisions only. An end at a
skipped step is that of the decision before it. Padding stays an end, also where it is marked to be skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic

import numpy as np

from offtrace.arrays import Array, Module, is_number
from offtrace.returns.backend import Backend
from offtrace.traces import Rule
from offtrace.traces.trace_argument import as_trace
from offtrace.trajectory import first_index, spell


class Closed(Generic[Array]):
    """The rows of a batch, [T] or [B, T], without the steps that are skipped: these stand at the row's end, as padding."""

    def __init__(self, backend: Backend[Array], skip: object, arrays: Mapping[str, object]) -> None:
        self.backend = backend
        xp, found = backend.xp, backend.array("skip", skip)
        check_skip(backend, found, arrays)
        valid = arrays.get("valid")
        valid = None if valid is None else backend.array("valid", valid) != 0
        self.skip = (found != 0) if valid is None else (found != 0) & valid
        self.valid = ~self.skip if valid is None else valid & ~self.skip
        place = xp.cumsum(self.skip | ~self.skip, -1)
        self.order = xp.argsort(xp.where(self.skip, place + found.shape[-1], place), -1)
        self.back = xp.argsort(self.order, -1)

    def without(self, arrays: Mapping[str, object]) -> dict[str, object]:
        """The arrays without what is skipped."""
        made: dict[str, object] = {}
        for name, value in arrays.items():
            if name == "skip":
                continue
            if value is None or (name == "gamma" and is_number(value)):
                made[name] = value
            elif name in ("terminated", "truncated"):
                made[name] = self._ends(self.backend.array(name, value))
            else:
                made[name] = self.backend.take(self.backend.array(name, value), self.order)
        return made | {"valid": self.backend.take(self.valid, self.order)}

    def _ends(self, flags: Array) -> Array:
        """The flags of decisions, each with those of the skipped steps between it and the next decision."""
        xp, take = self.backend.xp, self.backend.take
        skipped = xp.cumsum((flags != 0) & self.skip, -1)
        before, total = take(skipped, self.order), skipped[..., -1:]
        last = take(self.skip, self.order)
        after = xp.where(_ahead(xp, last, last[..., -1:] | True), total, _ahead(xp, before, total))
        return (take(flags, self.order) != 0) | (after > before)

    def rule(self, rule: Rule) -> Rule:
        """The rule, with what it holds for each step ordered as the arrays are."""
        if not rule.per_step:
            return rule
        order: Any = self.backend.as_parameter("order", self.order)
        if isinstance(order, np.ndarray):
            return as_trace(rule).mapped(lambda held: np.take_along_axis(held, order.reshape(np.shape(held)), -1))
        return as_trace(rule).mapped(lambda held: self.backend.take(self.backend.xp.asarray(held), order))

    def restored(self, out: Array) -> Array:
        """A result with 0 at the steps that were skipped."""
        return self.backend.take(out, self.back)


def _ahead(xp: Module, array: Array, end: Array) -> Array:
    """What stands one step later; `end` after the last."""
    return xp.concatenate([array[..., 1:], end], -1)


def check_skip(backend: Backend[Array], skip: Array, arrays: Mapping[str, object]) -> None:
    """An error where skip is not of the arrays' shape, or holds something else than flags."""
    if backend.letter(skip.dtype) not in "biu":
        raise TypeError(f"skip must be boolean or 0/1 integers, got {skip.dtype}: convert it, e.g. skip > 0.5")
    for name, value in arrays.items():
        if value is None or name == "skip" or (name == "gamma" and is_number(value)):
            continue
        shape = tuple(backend.array(name, value).shape)
        if shape != tuple(skip.shape):
            raise ValueError(f"skip has shape {tuple(skip.shape)} but {name} has shape {shape}: nothing is broadcast")
    if backend.letter(skip.dtype) != "b" and backend.looks(None, {"skip": skip}):
        seen = backend.as_numpy(skip)
        bad = (seen != 0) & (seen != 1)
        if bad.any():
            at = first_index(bad)
            raise ValueError(f"skip must hold 0 or 1, got {seen[at]} at index {spell(at)}")
