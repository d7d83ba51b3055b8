"""What kernels that are given δ, g, ratio and cap must compute: every start, every later step, in a float of a wider range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def coefficients(
    g: Any, ratio: Any, cap: Any, recursive: bool, lags: Sequence[float] = ()
) -> np.ndarray[Any, np.dtype[np.longdouble]]:
    """D_{k:t} y_{k:t} of each row, [B, T, T]: by k and t."""
    g, ratio, cap = (np.asarray(a).astype(np.longdouble) for a in (g, ratio, cap))
    B, T = g.shape
    found = np.zeros((B, T, T), np.longdouble)
    for k in range(T):
        found[:, k, k] = 1.0
        x, w = np.ones((2, B), np.longdouble)
        for t in range(k + 1, T if not len(lags) else min(T, k + 1 + len(lags))):
            w = w * g[:, t - 1]
            x = np.where(ratio[:, t] == 0, 0, x * ratio[:, t])
            y = np.minimum(x, cap[:, t])
            x = y if recursive else x
            y = np.minimum(y, lags[t - k - 1]) if len(lags) else y
            found[:, k, t] = np.where(w == 0, 0, w * y)
            w = np.where((x == 0) & ~np.isnan(x), 0, w)
    return found


def corrections(delta: Any, *factors: Any) -> tuple[np.ndarray, np.ndarray]:
    """Δ, and Σ|D y δ|."""
    β, delta = coefficients(*factors), np.asarray(delta).astype(np.longdouble)
    return tuple((β @ d[..., None])[..., 0].astype(float) for d in (delta, np.abs(delta)))  # pyright: ignore[reportReturnType]
