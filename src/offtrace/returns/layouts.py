"""Layouts: [T, B] with time first, and [B, T, 1] as torchrl has it, turned into [B, T] and back. Views, no copies.

[N, 1] is N steps of one environment, with time first, or N rows of one step: it is refused until `time_major` says which.
Only `shape`, `swapaxes` and `reshape` are used, which NumPy, PyTorch and JAX spell alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from offtrace.arrays import Array, is_number
from offtrace.traces import Rule
from offtrace.traces.trace_argument import as_trace

if TYPE_CHECKING:
    import jax
    import torch


class Layout(NamedTuple):
    """How the arrays came in: the first one's name, their shape, and whether time stands first."""

    first: str
    shape: tuple[int, ...]
    time_major: bool

    @property
    def usual(self) -> bool:
        """Whether nothing is to be turned: [T] or [B, T]."""
        return not self.time_major and len(self.shape) != 3

    def batch_first(self, array: np.ndarray | torch.Tensor | jax.Array) -> np.ndarray | torch.Tensor | jax.Array:
        """An array of this layout as [B, T]. A last dimension of 1 may have been left out."""
        if tuple(array.shape) == self.shape:
            array = array.reshape(self.shape[:2])
        return array.swapaxes(0, 1) if self.time_major else array

    def restored(self, out: Array) -> Array:
        """A result [B, T] in this layout."""
        if self.usual:
            return out
        return (out.swapaxes(0, 1) if self.time_major else out).reshape(self.shape)


def layout_of(arrays: Mapping[str, object], time_major: bool | None) -> Layout:
    """The layout of what was given, by its first array."""
    first = "reward" if "reward" in arrays else "terminated"
    shape = _shape(arrays[first])
    if len(shape) == 3 and shape[2] != 1:
        raise ValueError(
            f"{first} has shape {shape}: arrays must be [T] or [B, T], or [B, T, 1] with a last dimension of 1"
        )
    if time_major is None and len(shape) in (2, 3) and shape[1] == 1 and shape[0] > 1:
        raise ValueError(
            f"{first} has shape {shape}, which is {shape[0]} steps of one environment or {shape[0]} rows of one step: "
            "pass time_major=True for the steps, time_major=False for the rows, or the steps as flat arrays [T]"
        )
    if time_major and len(shape) < 2:
        raise ValueError(
            f"{first} has shape {shape}, but time_major=True is for [T, B] or [T, B, 1]: one row needs none"
        )
    return Layout(first, shape, bool(time_major))


def _shape(array: object) -> tuple[int, ...]:
    return tuple(array.shape if hasattr(array, "shape") else np.shape(array))  # pyright: ignore


def batch_first(layout: Layout, arrays: Mapping[str, object]) -> Mapping[str, object]:
    """The arrays as [T] or [B, T]; nothing is broadcast."""
    if layout.usual:
        return arrays
    turned: dict[str, object] = {}
    for name, array in arrays.items():
        if array is None or (name == "gamma" and is_number(array)):
            turned[name] = array
            continue
        if _shape(array) != layout.shape:
            raise ValueError(
                f"{name} has shape {_shape(array)} but {layout.first} has shape {layout.shape}: nothing is broadcast"
            )
        turned[name] = layout.batch_first(array if hasattr(array, "swapaxes") else np.asarray(array))  # pyright: ignore
    return turned


def rule_batch_first(layout: Layout, rule: Rule) -> Rule:
    """The rule, with what it holds for each step turned as the arrays are."""
    if layout.usual or not rule.per_step or len(as_trace(rule).shape or ()) < 2:
        return rule
    return as_trace(rule).mapped(layout.batch_first)
