"""What `weights` and its kin take: log-probabilities of decisions, which of them are decisions, and where packed rows begin.

    log_pi, log_mu    log π(a_t|s_t), log μ(a_t|s_t), [T] or [B, T]; their dtypes may differ
    mask              true for decisions: booleans, or 0 and 1 of any dtype; elsewhere nothing is read, and the weight is 0
    segment           integer ids, [T] or [B, T], that do not fall along a row: decisions with the same id are a row of their own
    group             integer ids, [B]: rows that are normalised together
    advantage         [T] or [B, T], or [B]: one for each row

Unlike in a trajectory, a step that is no decision is no end: the product of ratios passes over it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple

import numpy as np

from offtrace.arrays import Array, ArrayKind, Module, Other
from offtrace.trajectory import first_index, spell

LEVELS = ("token", "prefix", "suffix", "sequence", "geometric")
ONE_A_ROW = ("sequence", "geometric")
"""The levels at which all decisions of a row have the same weight, so that a mean is one over rows."""


class Weighing(NamedTuple):
    """What is computed from the ratios, besides the trace: the options of `weights`, checked."""

    level: str
    lower: float = 0.0
    upper: float = float("inf")
    drop: bool = False
    """Whether a weight outside of the interval becomes 0, and not the nearest end."""
    normalize: str | None = None
    """None, "batch" or "group"."""
    process_group: object = None

    @property
    def bounded(self) -> bool:
        """Whether the interval acts."""
        return self.lower > 0.0 or self.upper < float("inf")


class Criterion(NamedTuple):
    """What `reject` looks at, and the interval in which it keeps a decision."""

    over: str
    """Either "token", or "sum", "mean" or "max" over a sequence, or "prefix sum" or "prefix mean"."""
    k: str
    """One of `ESTIMATES`, "ratio" or "difference"."""
    lower: float
    upper: float
    """Bounds of log ρ where k is "ratio"."""
    signed: bool = False
    """Whether `upper` acts where A > 0 only, and `lower` where A < 0."""

    def keeps(self, value: Array, advantage: Array | None) -> Array:
        """Whether a decision is kept, from its value and its advantage; what is not a number is not."""
        if not self.signed or advantage is None:
            return (value >= self.lower) & (value <= self.upper)
        known: Any = value == value
        return known & ((advantage >= 0) | (value >= self.lower)) & ((advantage <= 0) | (value <= self.upper))


ESTIMATES = ("k1", "k2", "k3")
"""Estimates of KL(μ, π) by one action: k1 = −log ρ, k2 = ½ (log ρ)², k3 = ρ − 1 − log ρ."""


def estimate(xp: Module, k: str, log_ratio: Array, log_mu: Array) -> Array:
    """What a criterion looks at, from log ρ and log μ: one of `ESTIMATES`, log ρ for "ratio", or π − μ for "difference"."""
    if k in ("k1", "ratio"):
        return -log_ratio if k == "k1" else log_ratio
    if k == "k2":
        return 0.5 * log_ratio * log_ratio
    return xp.expm1(log_ratio) - log_ratio if k == "k3" else xp.exp(log_mu) * xp.expm1(log_ratio)


class Decisions(NamedTuple, Generic[Array]):
    """Arrays that agree with each other; None for what was not given or is not read."""

    shape: tuple[int, ...]
    log_pi: Array | None = None
    log_mu: Array | None = None
    mask: Array | None = None
    segment: Array | None = None
    group: Array | None = None
    advantage: Array | None = None
    dtypes: tuple[Any, ...] = ()
    """Of the log-probabilities that were given, also where the rule does not read them."""

    def arrays(self) -> dict[str, Array]:
        """What is there, by name."""
        not_arrays = ("shape", "dtypes")
        return {name: a for name, a in self._asdict().items() if a is not None and name not in not_arrays}

    def mapped(self, function: Callable[[Array], Other]) -> Decisions[Other]:
        """The same of another kind, each array taken through a function."""
        return Decisions(self.shape, **{name: function(a) for name, a in self.arrays().items()}, dtypes=self.dtypes)


def agreed(kind: ArrayKind[Array], given: Mapping[str, object]) -> Decisions[Array]:
    """Hold arrays to what the module says of shapes, dtypes and devices. No value is looked at."""
    ready: dict[str, Any] = {}
    first, shape, device = "", (), None
    for name in ("log_pi", "log_mu", "mask", "greedy", "segment", "group", "advantage"):
        if given.get(name) is None:
            continue
        array = kind.array(name, given[name])
        ready[name] = array
        if not first:
            first, shape, device = name, tuple(array.shape), array.device if kind.has_devices else None
            if len(shape) not in (1, 2) or 0 in shape:
                raise ValueError(
                    f"{name} has shape {shape}: arrays must be [T] or [B, T], batch first, time last, and not empty"
                )
        elif kind.has_devices and array.device != device:
            raise ValueError(f"{name} is on {array.device} but {first} is on {device}: move it there")
        _check_shape_and_dtype(kind, name, array, first, shape)
    if not first:
        raise TypeError("there is no array: pass log_pi and log_mu, or the mask of the decisions")
    ready.pop("greedy", None)
    return Decisions(
        shape, **ready, dtypes=tuple(kind.native(a.dtype) for name, a in ready.items() if name.startswith("log_"))
    )


def _check_shape_and_dtype(kind: ArrayKind[Array], name: str, array: Array, first: str, shape: tuple[int, ...]) -> None:
    if name == "advantage" and len(shape) == 2 and tuple(array.shape) == shape[:1]:
        pass
    elif name == "group":
        if len(shape) != 2 or tuple(array.shape) != shape[:1]:
            raise ValueError(
                f"group has shape {tuple(array.shape)} but {first} has shape {shape}: it holds one id for each row of [B, T]"
            )
    elif tuple(array.shape) != shape:
        raise ValueError(
            f"{name} has shape {tuple(array.shape)} but {first} has shape {shape}: all must be [T] or all [B, T], batch first, "
            "time last; nothing is broadcast"
        )
    letter = kind.letter(array.dtype)
    if name in ("segment", "group") and letter not in "iu":
        raise TypeError(
            f"{name} must hold integer ids, got {array.dtype}: convert it, e.g. {kind.converting(name, 'int64')}"
        )
    if name.startswith(("log_", "advantage")) and kind.native(array.dtype) not in kind.reals:
        raise TypeError(
            f"{name} must be of a floating dtype, got {array.dtype}: convert it, e.g. {kind.converting(name, 'float32')}"
        )


def flags(mask: np.ndarray) -> np.ndarray:
    """The mask as booleans; an error where it is neither 0 nor 1."""
    if mask.dtype == np.bool_:
        return mask
    bad = (mask != 0) & (mask != 1)
    if bad.any():
        at = first_index(bad)
        raise ValueError(
            f"mask must hold 0 or 1, got {mask[at]} at index {spell(at)}: it says which steps are decisions, e.g. mask > 0.5"
        )
    return mask != 0


def check_offsets(cu: np.ndarray, total: int, name: str) -> None:
    """Raise where offsets fall, or do not go from 0 to the number of entries."""
    falls = np.flatnonzero(np.diff(cu) < 0)
    if len(falls):
        row = falls[0]
        raise ValueError(f"cu_seqlens falls at row {row}, from {cu[row]} to {cu[row + 1]}: rows follow each other")
    if cu[0] != 0 or cu[-1] != total:
        raise ValueError(f"cu_seqlens goes from {cu[0]} to {cu[-1]}, but {name} has the entries 0 to {total}")
