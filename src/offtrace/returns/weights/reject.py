"""Rejection: which decisions are kept, by how far π and μ are apart at them. It stands apart from the weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from offtrace._shared.suggestions import closest, ending
from offtrace.arrays import Array, Option
from offtrace.returns.array_kinds import backend_of
from offtrace.returns.weights.decisions import ESTIMATES, Criterion
from offtrace.traces.base import number

KNOWN = tuple(f"{over} {k}" for over in ("token", "sequence sum", "sequence mean", "sequence max") for k in ESTIMATES)

Bound = float | None
"""A bound of one criterion; None means none."""


def reject(
    *,
    log_pi: Array,
    log_mu: Array,
    by: str | Sequence[str],
    upper: Bound | Sequence[Bound] = None,
    lower: Bound | Sequence[Bound] = None,
    mask: Array | None = None,
    segment: Array | None = None,
    check: Option = None,
) -> Array:
    """Whether each decision is kept: booleans [T] or [B, T], False where there is no decision.

    `by` says what is looked at: "token k1", "sequence sum k2", "sequence mean k3", "sequence max k3", … in any combination, where

        k1 = −log ρ,   k2 = ½ (log ρ)²,   k3 = ρ − 1 − log ρ

    all estimate KL(μ, π) by an action of μ. A decision is kept where the number is at most `upper`, and at least `lower`, which
    only k1 has, since the others are never negative. By "token" each decision is judged by itself, by "sequence …" all decisions
    of a row, or of a segment, together. Several criteria at once are sequences of the same length; a decision must pass all.

    A decision whose log_mu is −inf, although the action was taken, is rejected, with a warning that counts them, and so is its
    sequence by "sequence …". The warning is left out where values are not looked at, as in `jit` and on a GPU without check=True.

    Nothing is multiplied into the weights, so that a mean can be one over what is kept: (w · A · keep).sum() / keep.sum(). Arrays
    are those of `weights`.

    >>> import numpy as np, offtrace as ot
    >>> taken = dict(log_pi=np.log([[0.9, 0.1], [0.5, 0.4]]), log_mu=np.log([[0.5, 0.5], [0.5, 0.5]]))
    >>> ot.reject(**taken, by="token k1", lower=-0.5, upper=1.0)
    array([[False, False],
           [ True,  True]])
    >>> ot.reject(**taken, by=["sequence mean k3", "token k2"], upper=[0.6, 0.2])
    array([[ True, False],
           [ True,  True]])
    """
    arrays = {"log_pi": log_pi, "log_mu": log_mu, "mask": mask, "segment": segment}
    for name in ("log_pi", "log_mu"):
        if arrays[name] is None:
            raise TypeError(f"{name} is missing: rejection goes by log π − log μ of the actions taken")
    return backend_of(arrays).reject(criteria(by, lower, upper), arrays, check=check)


def criteria(
    by: str | Sequence[str], lower: Bound | Sequence[Bound], upper: Bound | Sequence[Bound]
) -> tuple[Criterion, ...]:
    """The criteria, each an error if it is not one of those that there are, or has no bound that acts."""
    names = [by] if isinstance(by, str) else list(by)
    if not names:
        raise ValueError("by is empty: name at least one criterion, such as 'sequence mean k3'")
    bounds = list(zip(names, _each("lower", lower, names), _each("upper", upper, names), strict=True))
    return tuple(_criterion(*each) for each in bounds)


def _each(name: str, bound: Bound | Sequence[Bound], names: list[str]) -> list[Bound]:
    """A bound for each criterion."""
    if isinstance(bound, float | int) or bound is None or np.ndim(bound) == 0:  # pyright: ignore[reportArgumentType]
        found: list[Bound] = [bound] * len(names)  # pyright: ignore[reportAssignmentType]
        if len(names) > 1 and bound is not None:
            raise ValueError(
                f"{name} is one number for {len(names)} criteria: pass one for each, None where there is none"
            )
        return found
    made = list(bound)
    if len(made) != len(names):
        raise ValueError(f"{name} has {len(made)} numbers for {len(names)} criteria: pass one for each")
    return made


def _criterion(name: str, lower: Bound, upper: Bound) -> Criterion:
    if name not in KNOWN:
        hint = ending(closest(name, KNOWN))
        raise ValueError(f"by = {name!r} is not known{hint} It is one of: {', '.join(KNOWN)}")
    words = name.split()
    if lower is not None and words[-1] != "k1":
        raise ValueError(f"{name} is never negative and has no lower bound: leave lower out, or pass None for it")
    if lower is None and upper is None:
        raise ValueError(f"{name} has no bound, so that nothing is rejected: pass upper")
    low = -np.inf if lower is None else number("lower", lower, -np.inf, np.inf)
    high = np.inf if upper is None else number("upper", upper, -np.inf, np.inf)
    if low > high:
        raise ValueError(f"lower = {low:g} is above upper = {high:g}: every decision would be rejected")
    return Criterion(words[-2], words[-1], low, high)
