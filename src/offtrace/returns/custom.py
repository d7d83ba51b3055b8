"""The direct kernel for custom traces: every start, every later step of its episode, one call of the rule each. O(T²)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit

from offtrace.returns import elementwise
from offtrace.returns.elementwise import at
from offtrace.returns.plain import probabilities, td_errors
from offtrace.traces import History, HistoryTrace, Step, StepTrace
from offtrace.trajectory import Trajectory

NO_MATRIX = np.empty((0, 0))


def correct(trace: StepTrace | HistoryTrace, x: Trajectory, *, add_q: bool) -> np.ndarray:
    """Δ, or q + Δ, [B, T]."""
    correction = sweep(trace, x, *td_errors(x))
    return x.q + correction if add_q else correction


def sweep(
    trace: StepTrace | HistoryTrace,
    x: Trajectory,
    delta: np.ndarray,
    discount: np.ndarray,
    matrix: np.ndarray = NO_MATRIX,
) -> np.ndarray:
    """Δ [B, T] for given δ and discount; `matrix` [T, T], if given, takes β_{k:t}, t > k, of the only row."""
    pi, mu, rho = probabilities(x, trace.reads)
    pair = x.pair
    out = np.empty(delta.shape)
    reach = trace.horizon or delta.shape[1]
    if isinstance(trace, StepTrace):
        arrays = [np.nan if x is None else x for x in (pi, mu, rho)]
        pair = -1 if pair is None else pair.astype(np.int64)
        bad = _compiled(trace.step)(trace.carry, float(trace.lam), *arrays, pair, delta, discount, reach, matrix, out)
    else:
        bad = _interpreted(trace, pi, mu, rho, pair, delta, discount, reach, matrix, out)
    if bad:
        raise ValueError(f"the custom trace {trace.title!r} returned a β that is negative or not finite")
    return out


@lru_cache(maxsize=64)
def _compiled(step: Any) -> Any:
    """The kernel around one step function. Not kept on disk: the function belongs to the user."""
    step = njit(step)

    @njit(nogil=True, error_model="numpy")
    def kernel(first, lam, pi, mu, rho, pair, delta, discount, reach, matrix, out):
        B, T = delta.shape
        bad = False
        for b in range(B):
            for k in range(T):
                carry, w, total = first, 1.0, delta[b, k]
                for t in range(k + 1, min(T, k + reach)):
                    w *= discount[b, t - 1]
                    if w == 0.0:
                        break
                    now = Step(
                        at(pi, b, t), at(mu, b, t), at(rho, b, t), lam, float(t - k), at(pair, b, k), at(pair, b, t)
                    )
                    carry, β = step(elementwise, carry, now)
                    bad |= not (β >= 0.0 and β < np.inf)
                    total += w * β * delta[b, t]
                    if len(matrix):
                        matrix[k, t] = β
                out[b, k] = total
        return bad

    return kernel


def _interpreted(
    trace: HistoryTrace,
    pi: Any,
    mu: Any,
    rho: Any,
    pair: Any,
    delta: np.ndarray,
    discount: np.ndarray,
    reach: int,
    matrix: np.ndarray,
    out: np.ndarray,
) -> bool:
    B, T = delta.shape
    bad = False
    for b in range(B):
        for k in range(T):
            w, total = 1.0, delta[b, k]
            for t in range(k + 1, min(T, k + reach)):
                w *= discount[b, t - 1]
                if w == 0.0:
                    break
                past = [None if x is None else x[b, k : t + 1] for x in (pi, mu, rho, pair)]
                β = float(trace.beta(History(*past)))
                bad |= not (β >= 0.0 and β < np.inf)
                total += w * β * delta[b, t]
                if len(matrix):
                    matrix[k, t] = β
            out[b, k] = total
    return bad
