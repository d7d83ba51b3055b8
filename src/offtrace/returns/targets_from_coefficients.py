"""Targets for coefficients that are simply given: c_t for each decision, whatever rule they come from."""

from __future__ import annotations

from typing import Any

from offtrace.arrays import Array
from offtrace.returns.api import targets
from offtrace.returns.array_kinds import backend_of
from offtrace.traces.given_coefficients import GivenCoefficients


def targets_from_c(c: Array, *, horizon: int | None = None, **arrays: Any) -> Array:
    """target_k = q_k + Σ_{t≥k} (γ_k ··· γ_{t-1}) (c_{k+1} ··· c_t) δ_t, for any c ≥ 0 of the batch's shape.

    c of a start is not used. With a `horizon` n, the sum ends before t = k + n. The other arguments are those of `targets`,
    without log_pi and log_mu. c is of their kind; a tensor c is a constant, which has no gradient.

    >>> import numpy as np, offtrace as ot
    >>> no, zero = np.zeros(3, bool), np.zeros(3)
    >>> ot.targets_from_c(np.array([9.0, 0.5, 2.0]), reward=np.ones(3), q=zero, next_value=zero,
    ...                   terminated=no, truncated=no, gamma=1.0)
    array([2.5, 3. , 1. ])
    """
    for name in ("log_pi", "log_mu"):
        if name in arrays:
            raise TypeError(f"{name} has no part in targets_from_c: c is given")
    options = ("time_major", "differentiable", "check")
    backend = backend_of({"c": c, **{n: a for n, a in arrays.items() if n not in options}})
    if arrays.get("differentiable") and getattr(c, "requires_grad", False):
        raise TypeError("c requires a gradient, which there is none of for a tensor c: pass c.detach()")
    return targets(GivenCoefficients(backend.as_parameter("c", c), horizon=horizon), **arrays)
