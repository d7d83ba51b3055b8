"""Layouts: [T, B] with time first, and a trailing [..., 1] as torchrl has it, turned into [B, T] and back. Views, no copies.

Only `shape`, `swapaxes` and `reshape` are used, which NumPy, PyTorch and JAX spell alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from offtrace.traces import VariableLambda


def batch_first(
    trace: Any, arrays: dict[str, Any], time_major: bool
) -> tuple[Any, dict[str, Any], Callable[[Any], Any]]:
    """The rule, if there is one, and the arrays as [T] or [B, T], and what brings a result into the layout that came in."""
    given = arrays["reward"]
    if not time_major and getattr(given, "ndim", 2) != 3:
        return trace, arrays, _as_it_is
    shape = tuple(np.shape(given))
    trailing = len(shape) == 3 and shape[2] == 1
    if len(shape) == 3 and not trailing:
        raise ValueError(
            f"reward has shape {shape}: arrays must be [T] or [B, T], or either with a last dimension of 1"
        )
    if time_major and len(shape) < 2:
        raise ValueError(
            f"reward has shape {shape}, but time_major=True is for [T, B] or [T, B, 1]: one row needs none"
        )

    def turned(name: str, array: Any) -> Any:
        if array is None or (name == "gamma" and not np.ndim(array)):
            return array
        array = array if hasattr(array, "swapaxes") else np.asarray(array)
        if tuple(array.shape) != shape:
            raise ValueError(
                f"{name} has shape {tuple(array.shape)} but reward has shape {shape}: nothing is broadcast"
            )
        array = array.reshape(shape[:2])
        return array.swapaxes(0, 1) if time_major else array

    def restore(out: Any) -> Any:
        return (out.swapaxes(0, 1) if time_major else out).reshape(shape)

    if isinstance(trace, VariableLambda) and trace.lam.ndim > 1:  # its last dimension of 1 may be left out
        lam = trace.lam.reshape(shape[:2]) if tuple(trace.lam.shape) == shape else trace.lam
        trace = replace(trace, lam=lam.swapaxes(0, 1) if time_major else lam)
    return trace, {name: turned(name, array) for name, array in arrays.items()}, restore


def _as_it_is(out: Any) -> Any:
    return out
