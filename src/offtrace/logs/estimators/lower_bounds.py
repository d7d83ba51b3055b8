"""Lower bounds of E[X], X ≥ 0, from n independent draws, that hold with probability 1 − δ.

Anderson (1969), with the band of Dvoretzky, Kiefer and Wolfowitz in Massart's form: for any range of X

    Σ_i X_(i) [(1 − (i−1)/n − ε)⁺ − (1 − i/n − ε)⁺],     ε = √(ln(1/δ) / 2n),     X_(1) ≤ … ≤ X_(n)

Hoeffding (1963), and the empirical Bernstein bound of Maurer & Pontil (2009, theorem 4), for 0 ≤ X ≤ c:

    X̄ − c √(ln(1/δ) / 2n)          X̄ − √(2 S² ln(2/δ) / n) − 7 c ln(2/δ) / (3 (n − 1))

with X̄ the mean and S² the variance of the sample. Products of ratios have no useful c. But min(c, X) ≤ X, so that a lower bound
of its mean is one of E[X], for every c (Thomas, Theocharous & Ghavamzadeh 2015). The best of K = 8 of them is taken, each with
δ/K: c = scale · 4^j, j = −5, …, 2, where the scale is not read from the draws.

Student's t takes the mean for normal, which is the case for many draws only. With few draws that are skewed it holds less often
than it says.

    X̄ − t_{1−δ, n−1} S / √n
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs]

CUTS = 4.0 ** np.arange(-5, 3)
"""Where X is cut, in scales."""

LowerBound = Callable[[NDArray[np.float64], float, float], float]
"""X [n], δ and the scale of X → a lower bound of E[X]."""


def mean_at_least(x: NDArray[np.float64], δ: float, scale: float = np.inf) -> float:
    """Anderson's bound, which needs no scale."""
    return without_share(x, np.sqrt(np.log(1 / δ) / (2 * len(x))))


def without_share(x: NDArray[np.float64], ε: float) -> float:
    """The mean of X ≥ 0 after the largest share ε of the draws became 0."""
    n = len(x)
    left = np.maximum(1.0 - np.arange(n + 1) / n - ε, 0.0)
    counts = left[:-1] - left[1:]
    return float(np.sort(x)[counts > 0] @ counts[counts > 0])


def hoeffding(x: NDArray[np.float64], δ: float, scale: float) -> float:
    """Hoeffding's bound, the best of several cuts."""
    δ, n = δ / len(CUTS), len(x)
    return _best(x, scale, lambda y, c: float(y.mean()) - c * np.sqrt(np.log(1 / δ) / (2 * n)))


def empirical_bernstein(x: NDArray[np.float64], δ: float, scale: float) -> float:
    """Maurer's and Pontil's bound, the best of several cuts."""
    log, n = np.log(2 * len(CUTS) / δ), len(x)
    return _best(
        x,
        scale,
        lambda y, c: float(y.mean()) - np.sqrt(2 * y.var(ddof=1) * log / n) - 7 * c * log / (3 * (n - 1)),
    )


def student(x: NDArray[np.float64], δ: float, scale: float) -> float:
    """The bound by Student's t, which no range and no scale enter; 0 where X overflows."""
    if not np.isfinite(x).all():
        return 0.0
    t = float(stdtrit(len(x) - 1, 1 - δ))
    return max(0.0, float(x.mean()) - t * float(x.std(ddof=1)) / float(np.sqrt(len(x))))


def _best(x: NDArray[np.float64], scale: float, bound: Callable[[NDArray[np.float64], float], float]) -> float:
    """The largest bound over cuts of x; 0, which always holds, where none is above or the scale is no number."""
    if not 0 < scale < np.inf:
        return 0.0
    return max(0.0, *(float(bound(np.minimum(x, c), c)) for c in scale * CUTS))


ANDERSON = "Anderson"
LOWER_BOUNDS: Mapping[str, LowerBound] = MappingProxyType(
    {
        ANDERSON: mean_at_least,
        "Hoeffding": hoeffding,
        "empirical Bernstein": empirical_bernstein,
        "Student's t": student,
    }
)
"""All of them, by the names that results give them."""
ALSO_ASSUMES: Mapping[str, str] = MappingProxyType(
    {"Student's t": "as many episodes as it takes for the mean of weighted returns to be normal"}
)
"""What one of them assumes and Anderson's does not."""
