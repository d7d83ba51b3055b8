"""Layouts: [T, B] with time first, and [B, T, 1] as torchrl has it, turned into [B, T] and back. Views, no copies.

[N, 1] is N steps of one environment, with time first, or N rows of one step: it is refused until `time_major` says which.
Only `shape`, `swapaxes` and `reshape` are used, which NumPy, PyTorch and JAX spell alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from offtrace.traces import Rule
from offtrace.traces.arguments import as_trace
from offtrace.trajectory import is_number


def batch_first(
    trace: Rule | None, arrays: dict[str, Any], time_major: bool | None
) -> tuple[Any, dict[str, Any], Callable[[Any], Any]]:
    """The rule, if there is one, and the arrays as [T] or [B, T], and what brings a result into the layout that came in."""
    first = "reward" if "reward" in arrays else "terminated"
    given = arrays[first]
    shape = tuple(given.shape if hasattr(given, "shape") else np.shape(given))
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
    if not time_major and len(shape) != 3:
        return trace, arrays, _as_it_is

    def turned(name: str, array: Any) -> Any:
        if array is None or (name == "gamma" and is_number(array)):
            return array
        array = array if hasattr(array, "swapaxes") else np.asarray(array)
        if tuple(array.shape) != shape:
            raise ValueError(
                f"{name} has shape {tuple(array.shape)} but {first} has shape {shape}: nothing is broadcast"
            )
        array = array.reshape(shape[:2])
        return array.swapaxes(0, 1) if time_major else array

    def restore(out: Any) -> Any:
        return (out.swapaxes(0, 1) if time_major else out).reshape(shape)

    def of_rule(array: Any) -> Any:
        array = (
            array.reshape(shape[:2]) if tuple(array.shape) == shape else array
        )  # its last dimension of 1 may be left out
        return array.swapaxes(0, 1) if time_major else array

    if trace is not None and trace.per_step and len(as_trace(trace).shape or ()) > 1:
        trace = as_trace(trace).mapped(of_rule)
    return trace, {name: turned(name, array) for name, array in arrays.items()}, restore


def _as_it_is(out: Any) -> Any:
    return out
