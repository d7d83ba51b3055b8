"""A rule's decay, ratio and cap as NumPy arrays, its parameters and its bounds by lag."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from offtrace.returns.numpy.read_steps import goes_on, probabilities
from offtrace.traces import Factors, Trace
from offtrace.trajectory import BadValueError, Trajectory, first_index


def normal_form(trace: Trace, x: Trajectory, *, start_acts: bool = False) -> Factors:
    """decay, ratio and cap as NumPy arrays [B, T], for what does not go through a compiled pass (`parameter`)."""
    shape = x.terminated.shape
    parameters = [parameter(trace, p, x, start_acts=start_acts) for p in trace.parameters]
    with np.errstate(over="ignore"):  # ρ/λ of RBIS is infinite where it is beyond the floats, and then clipped
        seen = probabilities(x, trace.reads)
        factors = trace.traced.call(np, *(seen.get(p) for p in ("pi", "mu", "rho")), *parameters)
    return Factors(*(np.array(np.broadcast_to(f, shape), np.float64) for f in factors))


def lag_caps(trace: Trace, T: int) -> np.ndarray:
    """`Trace.bounds_by_lag` as an array; empty where nothing acts by lag."""
    return np.array(trace.bounds_by_lag(T) or [], np.float64)


def parameter(trace: Trace, value: ArrayLike, x: Trajectory, *, start_acts: bool) -> float | np.ndarray:
    """A number as a float; an array, given for [T] or [B, T], as float64 [B, T], with 0 where it is not read.

    Unless the action of a trace's start acts, what an episode's first step holds is not read.
    """
    if isinstance(value, float | int):
        return float(value)
    value, shape = np.asarray(value), x.terminated.shape
    if not value.ndim:
        return float(value)
    if value.shape not in (shape, shape[1:] if shape[0] == 1 else shape):
        raise ValueError(
            f"{type(trace).__name__} holds an array of shape {value.shape}, one number for each step, "
            f"but the trajectory has {shape[0]} rows of {shape[1]} steps"
        )
    value = np.array(value, np.float64).reshape(shape)
    if x.valid is not None:
        value[~x.valid] = 0.0
    unknown = np.isnan(value)
    if unknown.any():
        if not start_acts:
            value[unknown & ~np.pad(goes_on(x)[:, :-1], ((0, 0), (1, 0)))] = 0.0
            unknown = np.isnan(value)
        if unknown.any():
            text = f"{type(trace).__name__} holds NaN for step {{index}}, which is not marked as padding"
            raise BadValueError(text, x.index(first_index(unknown)))
    return value
