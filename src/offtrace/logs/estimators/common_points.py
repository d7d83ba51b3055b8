"""Intervals that have a point in common: Lepski's rule, as SLOPE has it (Su, Srinath & Krishnamurthy 2020).

Estimates are looked at from the least bias and the most variance on. As long as all intervals so far have a point in common,
their differences may well be chance, and the smaller variance is worth having:

    chosen is the last i with  I_1 ∩ … ∩ I_i ≠ ∅
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def last_in_common(intervals: Sequence[tuple[float, float]]) -> int:
    """The last i for which the intervals 0 … i have a point in common.

    >>> last_in_common([(0, 4), (1, 5), (3, 6), (4.5, 7)])
    2
    """
    low, high = -np.inf, np.inf
    for i, (a, b) in enumerate(intervals):
        low, high = max(low, a), min(high, b)
        if low > high:
            return i - 1
    return len(intervals) - 1
