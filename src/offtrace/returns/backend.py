"""What differs between NumPy, PyTorch and JAX: one `Backend` for each kind of array.

The seam lies here because all else is the same for every kind: what the arrays mean and how they are checked
(`offtrace.trajectory`, `weights.decisions`), which of them a rule reads, layouts and skipped steps (`inputs`), and the public
calls (`api`, `action_values`, `weights`, `diagnose`). A backend is chosen by the arrays that come in (`array_kinds`),
and none is imported before an array of its kind has come. Another backend is one class and one entry there; another computation
is one method here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from offtrace.arrays import Array, ArrayKind, Module, is_number
from offtrace.returns.mixtures import Mixture
from offtrace.returns.weights.decisions import Criterion, Weighing
from offtrace.traces import Trace
from offtrace.trajectory import Agreed


class Backend(ArrayKind[Array]):
    """How arrays of one kind are computed with. Arrays are [T] or [B, T] and are given by name; None means not given."""

    word: ClassVar[str]
    """What one such array is called."""
    converter: ClassVar[str]
    """The function that a user makes such an array with."""
    differentiates: ClassVar[bool] = True
    """Whether there are gradients."""
    xp: Module
    """The module with `where`, `asarray`, `isfinite`, `log`, … for such arrays."""

    @abstractmethod
    def correct(
        self, trace: Trace, x: Agreed[Array], *, add_q: bool | None, differentiable: bool, check: bool | None
    ) -> tuple[Array, ...]:
        """q + Δ, or Δ; with None for `add_q` target, advantage and correction of state values."""

    @abstractmethod
    def coefficients(self, trace: Trace, arrays: Mapping[str, object]) -> Array:
        """β_{k:t} of one trajectory [T] as [T, T]."""

    @abstractmethod
    def mixed(self, x: Mixture) -> Array:
        """The masses [B, T, N] of the projected mixtures, in the dtype of those that come in or in float64."""

    @abstractmethod
    def weights(self, trace: Trace, arrays: Mapping[str, object], how: Weighing, *, check: bool | None) -> Array:
        """The weight of each decision, [T] or [B, T]; the arrays are those of `weights.decisions`, and `greedy`."""

    def weights_of_packed(
        self, trace: Trace, arrays: Mapping[str, object], cu_seqlens: object, how: Weighing
    ) -> Array | None:
        """The weights of packed rows, flat and without a look at values; None where rows must be padded first."""
        return None

    @abstractmethod
    def reject(self, criteria: tuple[Criterion, ...], arrays: Mapping[str, object], *, check: bool | None) -> Array:
        """Whether each decision is kept, as booleans; the arrays are those of `weights.decisions`."""

    @abstractmethod
    def as_numpy(self, array: Array) -> np.ndarray:
        """The array on the host, without gradient: its own memory, where that may be. bfloat16 becomes float32."""

    def as_parameter(self, name: str, array: object) -> object:
        """An array as a rule holds it, one number for each step: as a NumPy array, unless it may be traced."""
        return self.as_numpy(self.array(name, array))

    @abstractmethod
    def looks(self, check: bool | None, arrays: Mapping[str, object]) -> bool:
        """Whether values are to be looked at, by what a user says with `check`."""

    @abstractmethod
    def take(self, array: Array, index: Array) -> Array:
        """The entries of the last axis at indices [..., 1]."""

    @abstractmethod
    def placed(self, values: Array, at: Array, size: int) -> Array:
        """Values [N] at these places of a flat array of zeros."""

    @abstractmethod
    def summed(self, values: Array, at: Array, size: int) -> Array:
        """Flat array whose entries are sums of the values [N] that go to this place."""

    @abstractmethod
    def largest(self, values: Array, at: Array, size: int) -> Array:
        """Flat array whose entries are the largest of the values [N] that go to this place; −∞ where there is none."""

    @abstractmethod
    def cast(self, array: Array, dtype: Any) -> Array:
        """The array in another dtype."""

    @abstractmethod
    def constant(self, array: Array) -> Array:
        """The array without gradient."""

    def at_once(self, function: Callable[..., dict[str, Array]], arrays: dict[str, Array]) -> dict[str, Array]:
        """function(self, **arrays), as one program where each of its operations would else be a program by itself."""
        return function(self, **arrays)

    def all_as_numpy(self, arrays: Mapping[str, object]) -> dict[str, Any]:
        """The arrays as NumPy arrays. None and a gamma that is a number stay."""
        return {
            name: a if a is None or (name == "gamma" and is_number(a)) else self.as_numpy(self.array(name, a))
            for name, a in arrays.items()
        }
