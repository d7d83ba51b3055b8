"""Critics that predict values in another scale.

A transform h maps returns to what a network predicts. `targets(…, transform=h)` takes q and next_value as the network gives them,
forms δ in the space of returns, and gives back h of the target:

    δ_t = r_t + γ_t (1 − terminated_t) h⁻¹(next_value_t) − h⁻¹(q_t),      target_k = h(h⁻¹(q_k) + Δ_k)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from offtrace.arrays import Array, Module
from offtrace.returns.backend import Backend
from offtrace.traces.base import number


class Transform(ABC):
    """An increasing function h and its inverse, by functions that NumPy, PyTorch and JAX spell alike.

    >>> class Halved(Transform):
    ...     def forward(self, xp, returns):
    ...         return returns / 2
    ...     def inverse(self, xp, values):
    ...         return 2 * values
    """

    @abstractmethod
    def forward(self, xp: Module, returns: Any) -> Any:
        """h: from returns to values."""

    @abstractmethod
    def inverse(self, xp: Module, values: Any) -> Any:
        """h⁻¹: from values to returns."""


@dataclass(frozen=True)
class SignedHyperbolic(Transform):
    """h(x) = sign(x) (√(|x| + 1) − 1) + εx (Pohlen et al. 2018, Observe and look further; R2D2, Kapturowski et al. 2019).

    Both directions are written without a difference of nearly equal numbers, so that float32 keeps its digits.

    >>> import numpy as np
    >>> h = SignedHyperbolic()
    >>> h.forward(np, np.array([-8.0, 0.0, 99.0])).tolist(), h.inverse(np, h.forward(np, np.array([99.0]))).tolist()
    ([-2.008, 0.0, 9.099], [99.0])
    """

    eps: float = 1e-3

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", number("eps", self.eps, 0.0, np.inf))

    def forward(self, xp: Module, returns: Any) -> Any:
        """√(|x| + 1) − 1 = |x| / (√(|x| + 1) + 1)."""
        return returns / (xp.sqrt(abs(returns) + 1.0) + 1.0) + self.eps * returns

    def inverse(self, xp: Module, values: Any) -> Any:
        """|x| = (√(|x| + 1) − 1)(√(|x| + 1) + 1), where √(|x| + 1) solves a quadratic equation."""
        root = xp.sqrt(1.0 + 4.0 * self.eps * (abs(values) + 1.0 + self.eps))
        slope = 2.0 / (1.0 + 2.0 * self.eps + root)  # (√(|x| + 1) − 1) / |h(x)|
        return values * slope * (abs(values) * slope + 2.0)


@dataclass(frozen=True)
class SymLog(Transform):
    """h(x) = sign(x) log(1 + |x|), the signed logarithm (Hafner et al. 2023, DreamerV3; rlax's signed_logp1).

    >>> import numpy as np
    >>> SymLog().forward(np, np.array([-1.0, 0.0])).round(3).tolist()
    [-0.693, 0.0]
    """

    def forward(self, xp: Module, returns: Any) -> Any:
        """By halves, so that the derivative at 0 is 1."""
        above, below = _halves(xp, returns)
        return xp.log1p(above) - xp.log1p(-below)

    def inverse(self, xp: Module, values: Any) -> Any:
        """sign(y) (e^|y| − 1)."""
        above, below = _halves(xp, values)
        return xp.expm1(above) - xp.expm1(-below)


def _halves(xp: Module, x: Any) -> tuple[Any, Any]:
    """What is above 0, and what is below it; 0 elsewhere."""
    return xp.where(x < 0, 0.0, x), xp.where(x < 0, x, 0.0)


def to_returns(do: Backend[Array], transform: Transform, arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays of a call with values as returns. Half precision is transformed in float32."""
    as_transform(transform)
    there = {name: arrays[name] for name in ("q", "value", "next_value") if arrays.get(name) is not None}
    return arrays | {name: _within(do, transform.inverse, name, array) for name, array in there.items()}


def to_values(do: Backend[Array], transform: Transform, returns: Array) -> Array:
    """h of returns, in their dtype."""
    return _within(do, transform.forward, "target", returns)


def _within(do: Backend[Array], function: Any, name: str, given: Any) -> Any:
    array: Any = do.array(name, given)
    if do.letter(array.dtype) in "biu":
        raise TypeError(f"{name} must be of a floating dtype, got {array.dtype}")
    wide = do.cast(array, do.xp.float32) if array.dtype.itemsize < 4 else array
    with np.errstate(all="ignore") if do.xp is np else nullcontext():  # NaN may stand where nothing is read
        return do.cast(function(do.xp, wide), array.dtype)


def as_transform(transform: object) -> Transform:
    """The transform, if it is one."""
    if not isinstance(transform, Transform):
        raise TypeError(f"transform must be one such as offtrace.SignedHyperbolic(), got {transform!r}")
    return transform
