"""A trace as the compiled loop takes it: a plan, and pointers to its rule and to its step.

One signature for all rules means one compiled loop for all of them; a rule by itself compiles in a fraction of a second.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from numba import njit, types
from numba.extending import register_jitable
from numba.np.unsafe import ndarray as unsafe

from offtrace.learners.core.compiling import compiled_for
from offtrace.learners.core.eligibility import FORGET, GROUPS, LINEAR, VISITS
from offtrace.learners.core.history_callback import Past
from offtrace.learners.core.loop import Plan
from offtrace.learners.methods.gq import GQ
from offtrace.returns.numpy import rule_math
from offtrace.traces import Step, Trace

FOR_EVER = 2**62
to_fixed_tuple: Any = unsafe.to_fixed_tuple
ROW = types.Array(types.float64, 1, "C")
FACTORS = types.UniTuple(types.float64, 3)(types.float64, types.float64, types.float64, ROW)
STEP = types.float64(ROW, *(types.float64,) * 5, types.int64, types.int64)


def plan(given: Trace | GQ, shape: tuple[int, int] | None, past: Past | None = None) -> tuple[Plan, Any, Any]:
    """The plan of a trace and pointers to its rule and its step (one of which is never called).

    `shape` is [S, A] of a table; `past` is what a HistoryTrace has seen.
    """
    trace: Any = given.rule if isinstance(given, GQ) else given
    custom = trace.custom
    lags = np.array(trace.lag_bound or (), dtype=np.float64)
    if custom or trace.horizon is not None or len(lags) or not (trace.per_decision or trace.recursive):
        way = VISITS
    else:
        way = LINEAR if trace.per_decision else GROUPS
    reach = trace.horizon or FOR_EVER
    if len(lags) and lags[-1] == 0.0:
        reach = min(reach, 1 + int(np.max(np.nonzero(lags)[0] + 1, initial=0)))
    carry = (1.0,)
    if trace.form == "history":
        carry = 1.0, 1.0  # π and μ of the start
    elif trace.form == "step":
        carry = trace.carry if isinstance(trace.carry, tuple) else (trace.carry,)
    largest = trace.largest
    old, small = (float(np.log(max(f / largest, 1e-150))) for f in (1e-18, FORGET))
    made = Plan(
        way=way,
        custom=custom,
        recursive=trace.recursive,
        share=float(trace.target_share),
        greedy=trace.needs_greedy,
        reach=reach,
        forget=max(1e-18 / largest, 1e-150),
        log_forget=(old, small),
        lags=lags,
        parameters=np.ones((1, 1)) if custom else _parameters(trace, shape),
        lam=float(getattr(given, "lam", 0.0)) if given.form in ("step", "method") else 0.0,
        first=np.array(carry),
        history=trace.form == "history",
        second=float(given.alpha_w) if isinstance(given, GQ) else 0.0,
    )
    if past is not None:
        return made, _no_factors(), past.step
    if trace.form == "step":
        return made, _no_factors(), _step(trace.traced.call, len(carry) if isinstance(trace.carry, tuple) else 0)
    return made, _factors(trace.traced.call, len(trace.parameters)), _no_step()


def _parameters(trace: Trace, shape: tuple[int, int] | None) -> np.ndarray:
    """[1, n], or [S·A, n] where one of them is an array [S, A]."""
    given = trace.parameters
    arrays = [p for p in given if np.ndim(p)]
    if not arrays:
        return np.array([[float(p) for p in given] or [0.0]])
    if shape is None or any(np.shape(p) != shape for p in arrays):
        wanted = "no arrays with features" if shape is None else f"one number for each pair, {list(shape)}"
        raise ValueError(f"{trace.title} in a learner needs {wanted}, got an array of shape {np.shape(arrays[0])}")
    return np.stack([np.broadcast_to(p, shape).ravel() for p in given], axis=1).astype(np.float64)


@cache
def _factors(rule: Any, n: int) -> Any:
    """factors(π, μ, ρ, parameters) → decay, ratio, cap."""
    compiled = register_jitable(error_model="numpy")(rule)
    if n == 0:

        @njit(FACTORS, error_model="numpy")
        def bare(π, μ, ρ, p):
            decay, ratio, cap = compiled(rule_math, π, μ, ρ)
            return float(decay), float(ratio), float(cap)

        return bare

    @njit(FACTORS, error_model="numpy")
    def factors(π, μ, ρ, p):
        decay, ratio, cap = compiled(rule_math, π, μ, ρ, *to_fixed_tuple(p, n))
        return float(decay), float(ratio), float(cap)

    return factors


@cache
def _step(step: Any, n: int) -> Any:
    """step(carry, π, μ, ρ, λ, lag, the start's pair, pair) → β; the carry is changed in place. n = 0: it is one number."""
    compiled = njit(step, error_model="numpy")
    if n == 0:

        @njit(STEP, error_model="numpy")
        def one(carry, π, μ, ρ, lam, lag, start, pair):
            carry[0], β = compiled(rule_math, carry[0], Step(π, μ, ρ, lam, lag, start, pair))  # pyright: ignore[reportCallIssue]
            return float(β)

        return one

    @njit(STEP, error_model="numpy")
    def many(carry, π, μ, ρ, lam, lag, start, pair):
        new, β = compiled(rule_math, to_fixed_tuple(carry, n), Step(π, μ, ρ, lam, lag, start, pair))  # pyright: ignore[reportCallIssue]
        for i, c in enumerate(new):
            carry[i] = c
        return float(β)

    return many


@cache
def _no_factors() -> Any:
    @njit(FACTORS)
    def never(π, μ, ρ, p):
        return 0.0, 0.0, 0.0

    return never


@cache
def _no_step() -> Any:
    @njit(STEP)
    def never(carry, π, μ, ρ, lam, lag, start, pair):
        return 0.0

    return never


_loops: dict[Any, Any] = {}


def compiled(function: Any, *arguments: Any) -> Any:
    """The function, compiled for arguments like these, with pointers where they hold rules: so it can stay on disk."""
    kinds = tuple(
        types.FunctionType(a.signature())
        if isinstance(a, types.WrapperAddressProtocol)
        else types.FunctionType(a.nopython_signatures[0])
        if hasattr(a, "nopython_signatures")
        else numba.typeof(a)
        for a in arguments
    )
    if (function, kinds) not in _loops:
        _loops[function, kinds] = compiled_for(kinds, function)
    return _loops[function, kinds]
