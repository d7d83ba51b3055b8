"""Corrections from given δ, g, ratio and cap, without a rule, and their transpose: what automatic differentiation is built of.

    Δ_k = Σ_{t≥k} D_{k:t} y_{k:t} δ_t,        e_t = Σ_{k≤t} D_{k:t} y_{k:t} G_k        (the transpose)

with D_{k:t} = g_k ··· g_{t-1} and y = min(cap_t, x_{k:t}), as in `direct`. If Δ was made from δ, and G is the gradient by Δ, then
e is the gradient by δ. Arrays are float64 [B, T].
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numba import njit

from offtrace.returns import direct, fused, halves, readout, recursive, side_by_side


def correct(delta: Any, g: Any, ratio: Any, cap: Any, lags: Any, is_recursive: bool) -> np.ndarray:
    """Δ. `lags` bounds x by lag and ends the trace; empty means no bound."""
    out = np.empty_like(delta)
    if len(lags):
        kernel, modules = direct.sweep_recursive if is_recursive else direct.sweep, (direct,)
    else:
        kernel = recursive.sweep if is_recursive else readout.sweep
        modules = (recursive,) if is_recursive else (readout, halves, side_by_side)
    _compiled(kernel, modules)(delta, g, ratio, cap, lags, out)
    return out


@cache
def _compiled(kernel: Any, modules: tuple[ModuleType, ...]) -> Any:
    fingerprint = fused.fingerprint_of(*modules)

    @njit(cache=True, nogil=True, error_model="numpy")
    def run(delta, g, ratio, cap, lags, out):
        _ = fingerprint  # part of the key on disk
        kernel(delta, g, ratio, cap, lags, out)

    return run


@njit(cache=True, nogil=True, error_model="numpy")
def transpose(gradient, g, ratio, cap, lags, is_recursive):
    """e. Every start, every later step: O(T²), stopped where nothing is left of a trace."""
    B, T = gradient.shape
    reach = len(lags) + 1 if len(lags) else T
    out = gradient.copy()
    for b in range(B):
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
    return out
