"""Several critics, objectives or agents in one call: arrays with one more axis, first [K, B, T] or last [B, T, K].

Arrays without that axis are shared by all K. Everything becomes K·B rows, which one call computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple

import numpy as np

from offtrace.arrays import Array, is_number
from offtrace.returns.backend import Backend
from offtrace.traces import Rule
from offtrace.traces.trace_argument import as_trace

STACKS = ("first", "last")


class Stacked(NamedTuple, Generic[Array]):
    """How the arrays were stacked."""

    backend: Backend[Array]
    stack: str
    """Where the axis of K is."""
    time_major: bool
    size: int
    """K."""
    shape: tuple[int, ...]
    """That of arrays which all K share."""

    def rows(self, name: str, array: Any) -> Any:
        """An array as [K·B, T]."""
        xp = np if isinstance(array, np.ndarray) else self.backend.xp
        shape, K = tuple(array.shape), self.size
        full = (K, *self.shape) if self.stack == "first" else (*self.shape, K)
        if shape == self.shape:
            array = xp.broadcast_to(array[None], (K, *shape))
        elif shape != full:
            raise ValueError(
                f"{name} has shape {shape}: with stack={self.stack!r} it must be {full}, or {self.shape} if all {K} share it"
            )
        elif self.stack == "last":
            array = xp.moveaxis(array, -1, 0)
        array = array.swapaxes(1, 2) if self.time_major else array
        return array.reshape(-1, array.shape[-1])

    def index_given(self, at: tuple[int, ...]) -> tuple[int, ...]:
        """An index of [K·B, T] as one of the stacked arrays."""
        B = math.prod(self.shape) // self.shape[-1 if not self.time_major else 0]
        k, b = divmod(at[0], B)
        inner = (at[1],) if len(self.shape) == 1 else (at[1], b) if self.time_major else (b, at[1])
        return (k, *inner) if self.stack == "first" else (*inner, k)

    def restored(self, out: Any) -> Any:
        """A result [K·B, T] in the shape of the stacked arrays."""
        out = out.reshape(self.size, *(self.shape[::-1] if self.time_major else self.shape))
        out = out.swapaxes(1, 2) if self.time_major else out
        return self.backend.xp.moveaxis(out, 0, -1) if self.stack == "last" else out


def stacked_of(
    backend: Backend[Array], arrays: Mapping[str, Any], stack: str, time_major: bool | None
) -> Stacked[Array]:
    """How arrays are stacked, of which those with most dimensions are."""
    if stack not in STACKS:
        raise ValueError(f"stack must be 'first', for [K, B, T], or 'last', for [B, T, K], got {stack!r}")
    shapes = {name: tuple(array.shape) for name, array in arrays.items() if is_array(name, array)}
    first = max(shapes, key=lambda name: len(shapes[name]))
    shape = shapes[first]
    if len(shape) not in ((3,) if time_major else (2, 3)):
        raise ValueError(
            f"{first} has shape {shape}: with stack={stack!r} it must have an axis more than "
            f"{'[T, B]' if time_major else '[B, T] or [T]'}"
        )
    size, inner = (shape[0], shape[1:]) if stack == "first" else (shape[-1], shape[:-1])
    return Stacked(backend, stack, bool(time_major), size, inner)


def is_array(name: str, value: object) -> bool:
    """Whether it is an array of steps, and neither missing nor one discount for all."""
    return not (value is None or (name == "gamma" and is_number(value)))


def in_rows(stacked: Stacked[Any], rule: Rule, arrays: Mapping[str, Any]) -> tuple[Rule, dict[str, Any]]:
    """The rule and the arrays as [K·B, T]."""
    if rule.per_step:
        rule = as_trace(rule).mapped(lambda held: stacked.rows("what the rule holds", held))
    return rule, {name: stacked.rows(name, a) if is_array(name, a) else a for name, a in arrays.items()}
