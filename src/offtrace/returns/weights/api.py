"""Weights of decisions: the product π/μ of the past, the future or the row, corrected by any trace in normal form."""

from __future__ import annotations

import numpy as np

from offtrace._shared.suggestions import closest, ending
from offtrace.arrays import Array, Option
from offtrace.returns.array_kinds import backend_of
from offtrace.returns.weights.decisions import LEVELS, Weighing
from offtrace.traces import Trace
from offtrace.traces.base import option
from offtrace.traces.trace_argument import as_trace

OUTSIDE = ("truncate", "mask")
NORMALIZE = ("batch", "group")


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
    check: Option = None,
) -> Array:
    """The weight of each decision, [T] or [B, T] as the arrays: how much it counts, since μ acted and π is meant. No gradient.

    For the decisions 1, 2, … of a row, with a trace that starts one step before it (x_0 = 1):

    - "token": decay_i min(cap_i, ratio_i), as if each decision were a row of its own
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
    return backend_of(arrays).weights(trace, arrays, how, check=check)


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
    found = option(name, value, 0.0, np.inf)
    if not isinstance(found, float):
        raise TypeError(f"{name} is traced by JAX, but a program is compiled for its bounds: pass {name} as a float")
    return found


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        hint = ending(closest(str(value), known))
        raise ValueError(f"{name} = {value!r} is not known{hint} It is one of: {', '.join(known)}")
