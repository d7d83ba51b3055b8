"""Corrections from given δ, g, ratio and cap, without a rule, and their transpose: what automatic differentiation is built of.

    Δ_k = Σ_{t≥k} D_{k:t} y_{k:t} δ_t,        e_t = Σ_{k≤t} D_{k:t} y_{k:t} G_k        (the transpose)

with D_{k:t} = g_k ··· g_{t-1} and y = min(cap_t, x_{k:t}). If Δ was computed from δ, and G is the gradient by Δ, then
e is the gradient by δ. Arrays are float64 [B, T].
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy import every_pair, linear, readout_cap, recursive_cap
from offtrace.returns.numpy.big_float import FLOOR, fits_float64, raised, weigh, weighted
from offtrace.returns.numpy.compiling import kernel


def solve(a: np.ndarray, c: np.ndarray) -> np.ndarray:
    """x_k = a_k + c_k x_{k+1} along each row: Peng's Q(λ) and V-trace have this form too. c of the last step is unused."""
    unknown, no_factor = np.isnan(a), np.isnan(c[:, :-1])
    if unknown.any() or no_factor.any():  # NaN makes NaN of all that it is passed on to
        out = solve(np.where(unknown, 0.0, a), np.where(np.isnan(c), 0.0, c))
        reached = _pass(unknown | np.pad(no_factor, ((0, 0), (1, 0))), c[:, :-1] != 0, a.shape[1])
        out[reached | unknown] = np.nan
        return out
    a, c = _float64(a), _float64(c).copy()
    c[:, -1] = 0.0
    ones, out = np.ones(a.shape), np.empty(a.shape)
    B, T = a.shape
    delta, passed, factor = (array.reshape(-1) for array in (a, c, ones))
    if not linear.solve(B, T, delta, passed, factor, np.array([0.0, FLOOR]), np.empty(B * T), out.reshape(-1)):
        linear.solve_big_rows(a, c, ones, out)
    return out


def _float64(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, np.float64)


def correct(
    delta: np.ndarray, g: np.ndarray, ratio: np.ndarray, cap: np.ndarray, lags: np.ndarray, is_recursive: bool
) -> np.ndarray:
    """Δ. `lags` bounds x by lag and ends the trace; empty means no bound. A ratio that is NaN makes NaN of all that pass it."""
    unknown = np.isnan(ratio)
    if unknown.any():
        out = correct(delta, g, np.where(unknown, 1.0, ratio), cap, lags, is_recursive)
        out[_pass(unknown, (g != 0)[:, :-1] & (ratio != 0)[:, 1:], len(lags) + 1 if len(lags) else g.shape[1])] = np.nan
        return out
    if len(lags):
        sweep = every_pair.sweep_recursive if is_recursive else every_pair.sweep
    else:
        sweep = recursive_cap.sweep if is_recursive else readout_cap.sweep
    out = np.empty(delta.shape)
    sweep(_float64(delta), _float64(g), _float64(ratio), _float64(cap), _float64(lags), out)
    return out


def _pass(marked: np.ndarray, goes_on: np.ndarray, reach: int) -> np.ndarray:
    """Which starts come upon a marked step; `goes_on` [B, T − 1] says where a trace passes from t to t+1."""
    B, T = marked.shape
    reached, away = np.zeros((B, T), bool), np.full(B, np.inf)
    for k in reversed(range(T - 1)):
        away = np.where(goes_on[:, k], np.where(marked[:, k + 1], 1, away + 1), np.inf)
        reached[:, k] = away < reach
    return reached


def transpose(
    gradient: np.ndarray, g: np.ndarray, ratio: np.ndarray, cap: np.ndarray, lags: np.ndarray, is_recursive: bool
) -> np.ndarray:
    """e. Every start, every later step: O(T²), stopped where nothing is left of a trace."""
    out = gradient.copy()
    _transpose(gradient, g, ratio, cap, lags, is_recursive, out)
    return out


def weights(g: np.ndarray, ratio: np.ndarray, cap: np.ndarray, lags: np.ndarray, is_recursive: bool) -> np.ndarray:
    """D_{k:t} y_{k:t} of one row, [T, T]: right at any size, with an infinite one only where it is above all floats."""
    out = np.zeros((len(g), len(g)))
    _weights(g, ratio, cap, lags, is_recursive, out)
    return out


def largest(g: np.ndarray, ratio: np.ndarray, cap: np.ndarray, lags: np.ndarray, is_recursive: bool) -> np.ndarray:
    """The largest of these of each row, [B], in O(T) memory."""
    out = np.ones(len(g))
    _largest(g, ratio, cap, lags, is_recursive, out)
    return out


@kernel
def _weights(g, ratio, cap, lags, is_recursive, out):
    power = np.empty(len(g), np.int64)
    for k in range(len(g)):
        for t in range(k, weigh(g, ratio, cap, is_recursive, lags, k, out[k], power)):
            out[k, t] = raised(out[k, t], power[t])


@kernel
def _largest(g, ratio, cap, lags, is_recursive, out):
    B, T = g.shape
    weight, power = np.empty(T), np.empty(T, np.int64)
    for b in range(B):
        for k in range(T):
            for t in range(k, weigh(g[b], ratio[b], cap[b], is_recursive, lags, k, weight, power)):
                out[b] = max(out[b], raised(weight[t], power[t]))


@kernel
def _transpose(gradient, g, ratio, cap, lags, is_recursive, out):
    B, T = gradient.shape
    reach = len(lags) + 1 if len(lags) else T
    weight, power = np.empty(T), np.empty(T, np.int64)
    for b in range(B):
        if not fits_float64(g[b], ratio[b], cap[b]):
            for k in range(T):
                for t in range(k + 1, weigh(g[b], ratio[b], cap[b], is_recursive, lags, k, weight, power)):
                    out[b, t] += weighted(gradient[b, k], weight[t], power[t])
            continue
        for k in range(T):
            x, w = 1.0, gradient[b, k]
            for t in range(k + 1, min(T, k + reach)):
                w *= g[b, t - 1]
                if w == 0.0 or ratio[b, t] == 0.0:
                    break
                x *= ratio[b, t]
                y = min(x, cap[b, t])
                if is_recursive:
                    x = y
                if len(lags):
                    y = min(y, lags[t - k - 1])
                out[b, t] += w * y
