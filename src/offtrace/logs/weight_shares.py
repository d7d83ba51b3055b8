"""Weights of episodes as shares of their sum, and how many equal ones they are worth."""

from __future__ import annotations

import numpy as np


def shares(log_weights: np.ndarray) -> np.ndarray:
    """W / ΣW, also where W itself is no float; NaN where all W are 0."""
    if log_weights.max() == -np.inf:
        return np.full(len(log_weights), np.nan)
    w = np.exp(log_weights - log_weights.max())
    return w / w.sum()


def kish(x: np.ndarray) -> float:
    """(Σ|x|)² / Σx², computed so that nothing overflows; 0 where there is nothing."""
    largest = np.abs(x).max(initial=0.0)
    if not 0 < largest < np.inf:
        return 0.0
    y = np.abs(x / largest)
    return float(y.sum() ** 2 / (y**2).sum())
