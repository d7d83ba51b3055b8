"""An array of one kind, NumPy's, PyTorch's or JAX's: its type, and what the kinds do not spell alike.

Nothing here imports PyTorch or JAX: only a type checker looks at their types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    import jax
    import torch

    Array = TypeVar("Array", np.ndarray, torch.Tensor, jax.Array)
    Other = TypeVar("Other", np.ndarray, torch.Tensor, jax.Array)
else:
    Array, Other = TypeVar("Array"), TypeVar("Other")

Module: TypeAlias = Any
"""What `xp` stands for: numpy, torch or jax.numpy, in what they spell alike."""
Tensor: TypeAlias = Any
"""An array of PyTorch's or JAX's, to code that serves for both and calls `xp` only."""
Option = Any
"""True, False or None. It is not typed so, because then a dict of arrays could not be spread: `targets(trace, **arrays)`."""

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
HALF = np.dtype(np.float16)
BOOL = np.dtype(np.bool_)


def is_number(value: object) -> bool:
    """Whether it is one number for all steps."""
    if isinstance(value, int | float):
        return True
    ndim = getattr(value, "ndim", None)
    return not (np.ndim(value) if ndim is None else ndim)  # pyright: ignore[reportArgumentType]


def one_discount(gamma: object) -> float:
    """gamma as a float in [0, 1]."""
    number = gamma if type(gamma) is float else _as_float(gamma)  # torch.compile does not follow the latter
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"gamma must lie in [0, 1], got {number!r}")
    return number


def _as_float(gamma: Any) -> float:
    refuse_text_and_flags(gamma)
    try:
        return float(gamma)
    except (TypeError, ValueError):
        raise TypeError(f"gamma must be a number, or for trajectories an array of their shape, got {gamma!r}") from None


def refuse_text_and_flags(gamma: object) -> None:
    """Refuse a discount that Python or NumPy would convert: a string, bytes, or a flag, also as an array of no dimension."""
    dtype = getattr(gamma, "dtype", None)
    if isinstance(gamma, str | bytes | bool) or getattr(dtype, "kind", "f") in "bSUO" or str(dtype) == "torch.bool":
        raise TypeError(
            f"gamma must be a number, or for trajectories an array of their shape, got {gamma!r}: write it as a float"
        )


class ArrayKind(ABC, Generic[Array]):
    """What the trajectory's contract asks of a kind of array. `returns.backend` adds what is computed."""

    reals: tuple[object, ...] = (HALF, *FLOATS)
    """The dtypes that real arrays may have."""
    reals_called = "float16, float32 or float64"
    single: object = FLOATS[0]
    double: object = FLOATS[1]
    has_devices = False
    """Whether an array has a `device`, which must be the same for all."""

    @abstractmethod
    def array(self, name: str, value: object) -> Array:
        """What came in as an array of this kind, if it is one or may be turned into one."""

    def letter(self, dtype: Any) -> str:
        """The kind of a dtype as NumPy has them: b, i and u are booleans and integers."""
        return dtype.kind

    def native(self, dtype: Any) -> object:
        """The dtype in native byte order."""
        return dtype

    def discount(self, gamma: Array | float) -> Array | float:
        """The one discount of all steps, checked where it is a plain number."""
        return one_discount(gamma)

    @abstractmethod
    def converting(self, name: str, dtype: object) -> str:
        """How a user converts an array to a dtype."""


class NumPyKind(ArrayKind[np.ndarray]):
    """NumPy arrays, and lists, which become NumPy arrays."""

    def array(self, name: str, value: object) -> np.ndarray:
        """A NumPy array of numbers, from whatever NumPy makes one of; but a mask is never lost in silence."""
        if type(value) is np.ndarray:
            array = value
        elif isinstance(value, np.ma.MaskedArray):
            raise TypeError(
                f"{name} is a masked array, whose mask would be lost: pass its data, and the mask as valid=~mask"
            )
        else:
            array = np.asarray(value)
        if array.dtype.kind == "c":
            raise TypeError(f"{name} is complex ({array.dtype}), and must be real: pass {name}.real if that is meant")
        if array.dtype.kind not in "fiub":
            raise TypeError(f"{name} is not an array of numbers, got {type(value).__name__} of dtype {array.dtype}")
        return array

    def native(self, dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
        """Return the dtype in native byte order: arrays from a file may have another one."""
        return dtype if dtype.isnative else dtype.newbyteorder("=")

    def converting(self, name: str, dtype: object) -> str:
        """Return the call of `astype` that converts it."""
        return f"{name}.astype(np.{dtype})"


NUMPY = NumPyKind()


def along_last_axis(vector: Any, ndim: int) -> Any:
    """A vector [N] as [1, …, 1, N]: JAX can be told to refuse arrays of fewer axes beside others (`jax_numpy_rank_promotion`)."""
    return vector.reshape((1,) * (ndim - 1) + (-1,))
