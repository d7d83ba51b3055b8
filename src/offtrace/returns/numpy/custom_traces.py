"""The direct kernel for custom traces: every start, every later step of its episode, one call of the rule each. O(T²)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit

from offtrace.returns.numpy import rule_math
from offtrace.returns.numpy.scalar_math import at
from offtrace.returns.numpy.whole_arrays import probabilities, td_errors
from offtrace.traces import History, Step, Trace
from offtrace.trajectory import Trajectory

NO_MATRIX = np.empty((0, 0))


def correct(trace: Trace, x: Trajectory, *, add_q: bool) -> np.ndarray:
    """Δ, or q + Δ, [B, T]."""
    correction, _ = sweep(trace, x, *td_errors(x))
    return x.q + correction if add_q else correction


def sweep(
    trace: Trace,
    x: Trajectory,
    delta: np.ndarray,
    discount: np.ndarray,
    matrix: np.ndarray = NO_MATRIX,
) -> tuple[np.ndarray, float]:
    """Δ [B, T] for given δ and discount, and the largest β. `matrix` [T, T], if given, takes β_{k:t}, t > k, of the only row."""
    pi, mu, rho = probabilities(x, trace.reads)
    out = np.empty(delta.shape)
    reach = trace.horizon or delta.shape[1]
    step, beta = trace.step_form, trace.history_form
    if step is not None:
        arrays = [np.nan if p is None else p for p in (pi, mu, rho)]
        starts, pair = (-1, -2) if x.pair is None else (x.pair.astype(np.int64),) * 2
        kernel = _compiled(step.traced.call)
        peak = kernel(step.carry, float(step.lam), *arrays, starts, pair, delta, discount, reach, matrix, out)
    else:
        assert beta is not None, "a custom trace is of one of the two forms"
        peak = _interpreted(beta, (pi, mu, rho, x.pair), delta, discount, reach, matrix, out)
    if np.isnan(peak):
        raise ValueError(
            f"the custom trace {trace.title!r} returned a β that is negative or not finite; "
            "does it list all that it uses in `reads`?"
        )
    return out, peak


@lru_cache(maxsize=64)
def _compiled(step: Callable[..., Any]) -> Any:
    """The kernel around one step function. Not kept on disk: the function belongs to the user."""
    step = njit(step, error_model="numpy")

    @njit(nogil=True, error_model="numpy")
    def kernel(first, lam, pi, mu, rho, starts, pair, delta, discount, reach, matrix, out):
        B, T = delta.shape
        peak = 1.0
        for b in range(B):
            for k in range(T):
                carry, w, total = first, 1.0, delta[b, k]
                for t in range(k + 1, min(T, k + reach)):
                    w *= discount[b, t - 1]
                    if w == 0.0:
                        break
                    now = Step(
                        at(pi, b, t), at(mu, b, t), at(rho, b, t), lam, float(t - k), at(starts, b, k), at(pair, b, t)
                    )
                    carry, β = step(rule_math, carry, now)
                    peak = max(peak, β) if 0.0 <= β < np.inf else np.nan
                    total += w * β * delta[b, t]
                    if len(matrix):
                        matrix[k, t] = β
                    if np.isnan(peak):
                        return peak
                out[b, k] = total
        return peak

    return kernel


def _interpreted(
    beta: Callable[[History], float],
    arrays: tuple[Any, Any, Any, Any],
    delta: np.ndarray,
    discount: np.ndarray,
    reach: int,
    matrix: np.ndarray,
    out: np.ndarray,
) -> float:
    """The same for a plain Python function of the history."""
    B, T = delta.shape
    peak = 1.0
    for b in range(B):
        for k in range(T):
            w, total = 1.0, delta[b, k]
            for t in range(k + 1, min(T, k + reach)):
                w *= discount[b, t - 1]
                if w == 0.0:
                    break
                β = float(beta(History(*(None if a is None else a[b, k : t + 1] for a in arrays))))
                if not 0.0 <= β < np.inf:
                    return np.nan
                peak = max(peak, β)
                total += w * β * delta[b, t]
                if len(matrix):
                    matrix[k, t] = β
            out[b, k] = total
    return peak
