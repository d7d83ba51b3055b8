"""An interval from the first three moments of what episodes contribute, which are sums over files.

With T = √E (mean − V(π)) / s and the skewness g of the contributions, Hall (1992, *On the removal of skewness by transformation*)

    h(T) = T + g (2T² + 1) / (6√E) + g² T³ / (27E)

is nearly normal, up to terms of order 1/E, and increasing. So quantiles of T are h⁻¹ of those of Student's t. Unlike
mean ± 1.96 s/√E it follows the skewness that products of ratios have, as the studentised bootstrap of `evaluate` does. Unlike
that one it needs nothing of an episode but its part of three sums, and no random numbers.
"""

from __future__ import annotations

import numpy as np
from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs]


def interval(mean: float, moments: np.ndarray, episodes: int, confidence: float) -> tuple[float, float, float]:
    """The standard error and the two ends. `moments` [3]: Σ dᵏ for k = 1, 2, 3, d the deviations from any number near the mean.

    >>> d = np.array([-1.0, 0.0, 1.0, 0.5, -0.5])
    >>> [round(x, 3) for x in interval(2.0, np.array([(d**k).sum() for k in (1, 2, 3)]), 5, 0.95)]
    [0.354, 1.018, 2.982]
    """
    if episodes < 2:
        nan = float("nan")
        return nan, nan, nan
    first, second, third = moments / episodes
    variance = (second - first**2) * episodes / (episodes - 1)
    if not variance > 1e-28 * max(second, mean**2):  # all contribute the same, but for rounding
        return 0.0, mean, mean
    error = float(np.sqrt(variance / episodes))
    skewness = float((third - 3 * first * second + 2 * first**3) / variance**1.5)
    z = float(stdtrit(episodes - 1, (1 + confidence) / 2))
    low, high = (_student(x, skewness, episodes) for x in (-z, z))
    return error, mean - high * error, mean - low * error


def _student(z: float, skewness: float, episodes: int) -> float:
    """h⁻¹(z)."""
    g = skewness / episodes**0.5
    return z if abs(g) < 1e-8 else 3 / g * (float(np.cbrt(1 + g * (z - g / 6))) - 1)
