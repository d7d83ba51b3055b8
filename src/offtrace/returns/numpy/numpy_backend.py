"""The NumPy backend: a trace and a checked trajectory → corrections, by the kernel that its normal form allows.

    cap = ∞              reverse_recursion.py      O(T)
    recursive, cap ≤ 1   recursive_cap.py   O(T)             cap > 1: O(T log T)
    cap at read-out      cap_at_readout.py     O(T) as a rule, O(T log T) at worst; every_pair.py for short rows
    horizon, lag bound   every_pair.py      O(T n)
    custom               custom_traces.py      O(T²)

Rows are independent, and the kernels let go of the interpreter's lock: a large batch is shared among threads.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from offtrace._shared.cores import cores
from offtrace.returns.numpy import (
    cap_at_readout,
    compiled_pass,
    custom_traces,
    every_pair,
    recursive_cap,
    reverse_recursion,
)
from offtrace.returns.numpy.whole_arrays import probabilities
from offtrace.traces import Factors, Trace
from offtrace.trajectory import BOOL, FLOATS, Trajectory, explain_bad_value, first_index, spell

SHORT = 64  # up to this T a cap at read-out is cheapest by its definition (benchmarks/crossover.py)
KEPT = 1 << 26  # bytes of scratch that a thread keeps
PARALLEL, PARALLEL_CAPPED = 500_000, 30_000  # a batch of fewer steps is not worth waking a thread for
CORES = cores()
NOT_BY_STEP = {dtype: np.empty((0, 0), dtype) for dtype in (*FLOATS, BOOL)}

_mine = threading.local()


def correct(trace: Trace, x: Trajectory, *, add_q: bool) -> np.ndarray:
    """Δ, or q + Δ, [B, T] in the trajectory's dtype."""
    if trace.custom:
        return custom_traces.correct(trace, x, add_q=add_q)
    B, T = x.terminated.shape
    run, parameters, lags = _plan(trace, B, T, x.valid)
    gamma, gammas, valid = by_step(x)
    out = np.empty((B, T), x.dtype)

    def rows(first: int, stop: int) -> bool:
        return run(
            first, stop, parameters, lags, add_q, x.reward, x.q, x.next_value,
            x.terminated, x.truncated, gamma, gammas, x.log_pi, x.log_mu, valid, scratch(B, T), out,
        )  # fmt: skip

    alone = (PARALLEL if trace.per_decision else PARALLEL_CAPPED) > B * T
    if rows(0, B) if alone else _in_threads(rows, B):
        explain_bad_value(x)
    return out


def by_step(x: Trajectory) -> tuple[float, np.ndarray, np.ndarray]:
    """γ as a number and as an array, and `valid`, where an empty array stands for what is not given by step."""
    one = not isinstance(x.gamma, np.ndarray)
    return (
        x.gamma if one else 0.0,
        NOT_BY_STEP[x.dtype] if one else x.gamma,
        NOT_BY_STEP[BOOL] if x.valid is None else x.valid,
    )


def _plan(trace: Trace, B: int, T: int, valid: np.ndarray | None = None) -> tuple[Any, tuple[Any, ...], np.ndarray]:
    """The compiled pass for a trace, its parameters, and its bounds by lag."""
    lags = lag_caps(trace, T)
    parameters = tuple(_parameter(trace, p, (B, T), valid) for p in trace.parameters)
    return _compiled(trace, T, lags), parameters, every_pair.NO_LAGS if lags is None else lags


def _compiled(trace: Trace, T: int, lags: np.ndarray | None) -> Any:
    """The pass with the kernel that fits."""
    if trace.per_decision and lags is None:
        kernel = reverse_recursion.sweep
    elif trace.recursive:
        kernel = recursive_cap.kernel_for(trace.constant_cap) if lags is None else every_pair.sweep_recursive
    elif lags is not None or T <= SHORT:
        kernel = every_pair.sweep
    else:
        kernel = cap_at_readout.sweep
    return compiled_pass.build(trace.factors, trace.traced.call, trace.reads, kernel)


def _parameter(trace: Trace, value: Any, shape: tuple[int, ...], valid: np.ndarray | None) -> Any:
    """A number as a float; an array, given for [T] or [B, T], as float64 [B, T], with 0 where it is not read."""
    if isinstance(value, float | int) or not np.ndim(value):
        return float(value)
    value = np.asarray(value)
    if value.shape not in (shape, shape[1:] if shape[0] == 1 else shape):
        raise ValueError(
            f"{type(trace).__name__} holds an array of shape {value.shape}, one number for each step, "
            f"but the trajectory has {shape[0]} rows of {shape[1]} steps"
        )
    value = np.array(value, np.float64).reshape(shape)
    if valid is not None:
        value[~valid] = 0.0
    if np.isnan(value).any():
        at = first_index(np.isnan(value))
        raise ValueError(f"{type(trace).__name__} holds NaN for step {spell(at)}, which is not marked as padding")
    return value


def normal_form(trace: Trace, x: Trajectory) -> Factors:
    """decay, ratio and cap as NumPy arrays [B, T], for what does not go through a compiled pass."""
    shape = x.terminated.shape
    parameters = [_parameter(trace, p, shape, x.valid) for p in trace.parameters]
    with np.errstate(over="ignore"):  # ρ/λ of RBIS is infinite where it is beyond the floats, and then clipped
        factors = trace.traced.call(np, *probabilities(x, trace.reads), *parameters)
    return Factors(*(np.array(np.broadcast_to(f, shape), np.float64) for f in factors))


def lag_caps(trace: Trace, T: int) -> np.ndarray | None:
    """`Trace.bounds_by_lag` as an array."""
    bounds = trace.bounds_by_lag(T)
    return None if bounds is None else np.array(bounds)


def _in_threads(rows: Any, B: int) -> bool:
    """Share the rows among threads; whether any block held a bad value."""
    workers = max(1, min(B // compiled_pass.ROWS, CORES))
    if workers == 1:
        return rows(0, B)
    edges = np.linspace(0, B // compiled_pass.ROWS, workers + 1).astype(int) * compiled_pass.ROWS
    edges[-1] = B
    *others, (first, stop) = pairwise(int(edge) for edge in edges)
    jobs = [_pool().submit(rows, *block) for block in others]
    return max(rows(first, stop), *(job.result() for job in jobs))  # a share is done here, without waiting for a thread


def scratch(B: int, T: int) -> np.ndarray:
    """Room for one thread's rows, kept from call to call: fresh memory of this size costs more than the work in it."""
    shape = compiled_pass.SCRATCH, min(B, compiled_pass.ROWS), compiled_pass.width(T)
    room = getattr(_mine, "room", None)
    if room is None or room.shape != shape:
        room = np.empty(shape)
        _mine.room = room if room.nbytes <= KEPT else None
    return room


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CORES, thread_name_prefix="offtrace")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
