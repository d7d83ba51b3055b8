"""The NumPy backend: a trace and a checked trajectory → corrections, by the kernel that its normal form allows.

    cap = ∞              linear.py      O(T)
    recursive, cap ≤ 1   recursive.py   O(T)             cap > 1: O(T log T)
    cap at read-out      readout.py     O(T) as a rule, O(T log T) at worst; direct.py for short rows
    horizon, lag bound   direct.py      O(T n)
    custom               custom.py      O(T²)

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

from offtrace.returns import custom, direct, fused, halves, linear, readout, recursive, side_by_side
from offtrace.traces import HistoryTrace, StepTrace, Trace
from offtrace.trajectory import Trajectory, explain_bad_value

SHORT = 64  # up to this T a cap at read-out is cheapest by its definition (benchmarks/crossover.py)
KEPT = 1 << 26  # bytes of scratch that a thread keeps
PARALLEL = 500_000  # a batch of fewer steps is not worth waking a thread for


_mine = threading.local()


def correct(trace: Trace, x: Trajectory, *, add_q: bool) -> np.ndarray:
    """Δ, or q + Δ, [B, T] in the trajectory's dtype."""
    if isinstance(trace, StepTrace | HistoryTrace):
        return custom.correct(trace, x, add_q=add_q)
    B, T = x.terminated.shape
    lags = lag_caps(trace, T)
    parameters = tuple(_parameter(trace, p, (B, T)) for p in trace.parameters)
    out = np.empty((B, T), x.dtype)
    run = _compiled(trace, T, lags)
    numbers = parameters, direct.NO_LAGS if lags is None else lags, add_q
    arrays = x.reward, x.q, x.next_value, x.terminated, x.truncated
    gamma = (0.0, x.gamma) if isinstance(x.gamma, np.ndarray) else (x.gamma, np.empty((0, 0), x.dtype))
    valid = np.empty((0, 0), bool) if x.valid is None else x.valid

    def rows(first: int, stop: int) -> bool:
        return run(first, stop, *numbers, *arrays, *gamma, x.log_pi, x.log_mu, valid, scratch(B, T), out)

    if _in_threads(rows, B, T):
        explain_bad_value(x)
    return out


def _compiled(trace: Trace, T: int, lags: np.ndarray | None) -> Any:
    """The pass with the kernel that fits."""
    if trace.per_decision and lags is None:
        kernel, modules = linear.sweep, (linear,)
    elif trace.recursive:
        kernel, modules = (recursive.sweep, (recursive,)) if lags is None else (direct.sweep_recursive, (direct,))
    elif lags is not None or T <= SHORT:
        kernel, modules = direct.sweep, (direct,)
    else:
        kernel, modules = readout.sweep, (readout, halves, side_by_side)
    return fused.build(trace.factors, trace.reads, kernel, modules)


def _parameter(trace: Trace, value: Any, shape: tuple[int, int]) -> Any:
    """A number as a float; an array, given for [T] or [B, T], as float64 [B, T]."""
    if not np.ndim(value):
        return float(value)
    value = np.asarray(value)
    if value.shape not in (shape, shape[1:] if shape[0] == 1 else shape):
        raise ValueError(
            f"{type(trace).__name__} holds an array of shape {value.shape}, one number for each step, "
            f"but the trajectory has {shape[0]} rows of {shape[1]} steps"
        )
    return np.array(value, np.float64).reshape(shape)


def lag_caps(trace: Trace, T: int) -> np.ndarray | None:
    """The bounds on x at lags 1 … n after which the trace ends, or None where neither horizon nor lag bound acts."""
    reach = T if trace.horizon is None else min(T, trace.horizon)
    if trace.lag_bound is None:
        return None if reach == T else np.full(reach - 1, np.inf) if reach > 1 else np.zeros(1)
    given = np.array(trace.lag_bound)[: reach - 1]
    return np.concatenate([given, np.full(reach - 1 - len(given), trace.lag_bound[-1])]) if reach > 1 else np.zeros(1)


def _in_threads(rows: Any, B: int, T: int) -> bool:
    """Whether any block of rows held a bad value; large batches are shared among threads."""
    workers = min(B // fused.ROWS, os.cpu_count() or 1) if B * T >= PARALLEL else 1
    if workers <= 1:
        return rows(0, B)
    edges = np.linspace(0, B // fused.ROWS, workers + 1).astype(int) * fused.ROWS
    edges[-1] = B
    jobs = [_pool().submit(rows, int(i), int(j)) for i, j in pairwise(edges)]
    return max(job.result() for job in jobs)


def scratch(B: int, T: int) -> np.ndarray:
    """Room for one thread's rows, kept from call to call: fresh memory of this size costs more than the work in it."""
    shape = fused.SCRATCH, min(B, fused.ROWS), fused.width(T)
    room = getattr(_mine, "room", None)
    if room is None or room.shape != shape:
        room = np.empty(shape)
        _mine.room = room if room.nbytes <= KEPT else None
    return room


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="offtrace")
