"""Weights of decisions: the product π/μ of the past, the future or the row, corrected by any trace in normal form. And rejection:
which decisions are kept, by how far π and μ are apart at them; nothing of it is multiplied into the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from offtrace._shared.suggestions import closest, ending
from offtrace.arrays import Array, Option
from offtrace.returns.array_kinds import backend_of
from offtrace.returns.weights.decisions import ESTIMATES, LEVELS, Criterion, Weighing
from offtrace.returns.weights.ragged import packed_rows, padded_rows
from offtrace.traces import Trace
from offtrace.traces.base import number, option
from offtrace.traces.trace_argument import as_trace

OUTSIDE = ("truncate", "mask")
NORMALIZE = ("batch", "group")
OVER = {
    "token": "token", "prefix": "prefix sum", "prefix sum": "prefix sum", "prefix mean": "prefix mean",
    "sequence": "sum", "sequence sum": "sum", "sequence mean": "mean", "sequence max": "max",
}  # fmt: skip
"""What a criterion is taken over, by its words; a product of ratios is the sum of their logarithms."""
KNOWN = (
    *(f"{over} {k}" for over in OVER if over not in ("prefix", "sequence") for k in ESTIMATES),
    *(f"{over} ratio" for over in OVER if not over.endswith("sum")),
    "token difference",
)

Bound = float | None
"""A bound of one criterion; None means none."""


def weights(
    trace: Trace,
    *,
    log_pi: Array | None = None,
    log_mu: Array | None = None,
    mask: Array | None = None,
    level: str = "prefix",
    segment: Array | None = None,
    lower: float | None = None,
    upper: float | None = None,
    outside: str = "truncate",
    normalize: str | None = None,
    group: Array | None = None,
    process_group: object = None,
    greedy: Array | None = None,
    cu_seqlens: Any = None,
    max_seqlen: int | None = None,
    check: Option = None,
) -> Array:
    """The weight of each decision, [T] or [B, T] as the arrays: how much it counts, since μ acted and π is meant. No gradient.

    For the decisions 1, 2, … of a row, with a trace that starts one step before it (x_0 = 1):

    - "token": decay_i min(cap_i, ratio_i), as if each decision were a separate row
    - "prefix": decay_1 ··· decay_i min(cap_i, x_i), x_i = ratio_i x_{i-1}, which a recursive trace clips at cap_i. Uncapped it is
      ρ_1 ··· ρ_i, the right weight of a decision
    - "suffix": the same of the actions after i
    - "sequence": the prefix at the row's last decision, at each decision; "geometric": its root by the number of decisions

    `mask`, booleans or 0/1 of any dtype, is true for decisions. Elsewhere, in padding and in holes alike, nothing is read, the
    weight is 0, and the product passes over. `segment` holds integer ids, which do not fall along a row: decisions with the same
    id are a row of their own. Products of ratios may leave the range of floats and come back; nothing is clamped.

    `lower` and `upper` bound the weights: `outside="truncate"` sets a weight that is outside to the nearer bound, `"mask"` to 0.
    `normalize="batch"` then divides by the mean over all decisions, or over all rows at the levels "sequence" and "geometric",
    `"group"` by that over the rows with the same id in `group` [B]. With `process_group`, of torch.distributed, the mean is
    one over all its processes. Where all weights are 0 they stay 0.

    Rows of unequal length need no padding: with `cu_seqlens` [n + 1], where each begins, arrays are flat [N]. Or pass lists of
    arrays, or nested tensors. The result has the same form, and exactly the numbers of padded rows. On a GPU `max_seqlen`, the
    length of the longest row, saves waiting for the device; inside `jit` it is needed.

    The log-probabilities may differ in dtype: each is read as it is, all is computed in float64, and the result has the wider
    dtype, as the library of the arrays promotes them. `greedy` and `check` are those of `targets`.

    >>> import numpy as np, offtrace as ot
    >>> rho = np.log([[0.5, 4.0, 9.0, 2.0]])
    >>> taken = dict(log_pi=rho, log_mu=np.zeros((1, 4)), mask=np.array([[1, 1, 0, 1]]))
    >>> ot.weights(ot.ImportanceSampling(), **taken, level="prefix")
    array([[0.5, 2. , 0. , 4. ]])
    >>> ot.weights(ot.NonMarkovRetrace(lam=1.0), **taken, level="prefix")
    array([[0.5, 1. , 0. , 1. ]])
    >>> ot.weights(ot.TruncatedIS(bound=2.0), **taken, level="token")
    array([[0.5, 2. , 0. , 2. ]])
    """
    trace = as_trace(trace)
    if trace.custom:
        raise TypeError(f"{trace.title!r} has no normal form, which weights need: write it with `factors`, as a Trace")
    how = options(level, lower, upper, outside, normalize, group, process_group)
    arrays = {"log_pi": log_pi, "log_mu": log_mu, "mask": mask, "segment": segment, "group": group, "greedy": greedy}
    packed = packed_rows(arrays, cu_seqlens, max_seqlen)
    if packed is None:
        return backend_of(arrays).weights(trace, arrays, how, check=check)
    if not check:
        flat = backend_of(packed.flat).weights_of_packed(trace, packed.arrays, packed.cu_seqlens, how)
        if flat is not None:
            return packed.form(flat)
    rows, in_form = packed.padded(max_seqlen, check)
    return in_form(backend_of(rows).weights(trace, rows, how, check=check))


def options(
    level: str,
    lower: float | None,
    upper: float | None,
    outside: str,
    normalize: str | None,
    group: object,
    process_group: object,
) -> Weighing:
    """The options, each an error if it is not one of those that there are."""
    _one_of("level", level, LEVELS)
    _one_of("outside", outside, OUTSIDE)
    if normalize is not None:
        _one_of("normalize", normalize, NORMALIZE)
    low = 0.0 if lower is None else _bound("lower", lower)
    high = np.inf if upper is None else _bound("upper", upper)
    if low > high:
        raise ValueError(f"lower = {low:g} is above upper = {high:g}: no weight lies between them")
    if (normalize == "group") != (group is not None):
        raise TypeError('normalize="group" and group=…, an id for each row, go together: pass both or neither')
    if process_group is not None and normalize is None:
        raise TypeError('process_group is that over which weights are normalised: pass normalize="batch" or "group"')
    return Weighing(level, low, high, outside == "mask", normalize, process_group)


def _bound(name: str, value: object) -> float:
    bound = option(name, value, 0.0, np.inf)
    if not isinstance(bound, float):
        raise TypeError(f"{name} is traced by JAX, but a program is compiled for its bounds: pass {name} as a float")
    return bound


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        hint = ending(closest(str(value), known))
        raise ValueError(f"{name} = {value!r} is not known{hint} It is one of: {', '.join(known)}")


def reject(
    *,
    log_pi: Array,
    log_mu: Array,
    by: str | Sequence[str],
    upper: Bound | Sequence[Bound] = None,
    lower: Bound | Sequence[Bound] = None,
    mask: Array | None = None,
    segment: Array | None = None,
    advantage: Array | None = None,
    cu_seqlens: Any = None,
    max_seqlen: int | None = None,
    check: Option = None,
) -> Array:
    """Whether each decision is kept: booleans [T] or [B, T], False where there is no decision.

    `by` says what is looked at: "token k1", "sequence sum k2", "prefix mean k3", "sequence max k3", … in any combination, where

        k1 = −log ρ,   k2 = ½ (log ρ)²,   k3 = ρ − 1 − log ρ

    all estimate KL(μ, π) by an action of μ. A decision is kept where the number is at most `upper`, and at least `lower`, which
    k2 and k3 lack, since they are never negative. By "token" each decision is judged by itself, by "prefix …" with those before
    it, by "sequence …" all decisions of a row, or of a segment, together. Several criteria at once are sequences of the same
    length; a decision must pass all.

    Bounds of ratios need no signs: "token ratio" is ρ, "prefix ratio" and "sequence ratio" are products, "prefix mean ratio" and
    "sequence mean ratio" their roots, "sequence max ratio" is the largest. "token difference" is π − μ.

    With `advantage`, [B, T] or one for each row [B], bounds of ratios and of the difference depend on its sign: `upper` acts only
    where it is positive, `lower` only where it is negative, so that no decision is rejected which moves π back towards μ. DPPO's
    mask is by="token difference"; OPSM's is by="sequence mean ratio" with lower=exp(−δ).

    A decision whose log_mu is −inf, although the action was taken, is rejected, with a warning that counts them, and so is its
    sequence by "sequence …". The warning is left out where values are not looked at, as in `jit` and on a GPU without check=True.

    Nothing is multiplied into the weights, so that a mean can be one over what is kept: (w · A · keep).sum() / keep.sum(). Arrays
    are those of `weights`, `cu_seqlens` and `max_seqlen` too.

    >>> import numpy as np, offtrace as ot
    >>> taken = dict(log_pi=np.log([[0.9, 0.1], [0.5, 0.4]]), log_mu=np.log([[0.5, 0.5], [0.5, 0.5]]))
    >>> ot.reject(**taken, by="token k1", lower=-0.5, upper=1.0)
    array([[False, False],
           [ True,  True]])
    >>> ot.reject(**taken, by=["sequence mean k3", "token k2"], upper=[0.6, 0.2])
    array([[ True, False],
           [ True,  True]])
    """
    arrays = {"log_pi": log_pi, "log_mu": log_mu, "mask": mask, "segment": segment, "advantage": advantage}
    for name in ("log_pi", "log_mu"):
        if arrays[name] is None:
            raise TypeError(f"{name} is missing: rejection goes by log π − log μ of the actions taken")
    arrays, in_form = padded_rows(arrays, cu_seqlens, max_seqlen, check)
    chosen = criteria(by, lower, upper, signed=advantage is not None)
    return in_form(backend_of(arrays).reject(chosen, arrays, check=check))


def criteria(
    by: str | Sequence[str], lower: Bound | Sequence[Bound], upper: Bound | Sequence[Bound], *, signed: bool = False
) -> tuple[Criterion, ...]:
    """The criteria, each an error if it is not one of those that there are, or has no bound that acts."""
    names = [by] if isinstance(by, str) else list(by)
    if not names:
        raise ValueError("by is empty: name at least one criterion, such as 'sequence mean k3'")
    bounds = list(zip(names, _each("lower", lower, names), _each("upper", upper, names), strict=True))
    chosen = tuple(_criterion(*each, signed=signed) for each in bounds)
    if signed and not any(criterion.signed for criterion in chosen):
        raise TypeError("advantage has no part here: by its sign go criteria of ratios, and 'token difference'")
    return chosen


def _each(name: str, bound: Bound | Sequence[Bound], names: list[str]) -> list[Bound]:
    """A bound for each criterion."""
    if bound is None or np.ndim(bound) == 0:  # pyright: ignore[reportArgumentType]
        if len(names) > 1 and bound is not None:
            raise ValueError(
                f"{name} is one number for {len(names)} criteria: pass one for each, None where there is none"
            )
        return [bound] * len(names)  # pyright: ignore[reportReturnType]
    bounds: list[Bound] = [*bound]  # pyright: ignore
    if len(bounds) != len(names):
        raise ValueError(f"{name} has {len(bounds)} numbers for {len(names)} criteria: pass one for each")
    return bounds


def _criterion(name: str, lower: Bound, upper: Bound, *, signed: bool) -> Criterion:
    _one_of("by", name, KNOWN)
    over, k = name.rsplit(" ", 1)
    if lower is not None and k in ("k2", "k3"):
        raise ValueError(f"{name} is never negative and has no lower bound: leave lower out, or pass None for it")
    if lower is None and upper is None:
        raise ValueError(f"{name} has no bound, so that nothing is rejected: pass upper")
    low = -np.inf if lower is None else number("lower", lower, -np.inf, np.inf)
    high = np.inf if upper is None else number("upper", upper, -np.inf, np.inf)
    if low > high:
        raise ValueError(f"lower = {low:g} is above upper = {high:g}: every decision would be rejected")
    if k == "ratio":
        if (lower is not None and low < 0) or high < 0:
            raise ValueError(
                f"{name} has a bound below 0, and ratios are not negative: give ratios, not their logarithms"
            )
        low, high = (math.log(bound) if bound > 0 else -math.inf for bound in (low, high))
    return Criterion(OVER[over], k, low, high, signed and k in ("ratio", "difference"))
