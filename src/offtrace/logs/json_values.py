"""Results as JSON has them."""

from __future__ import annotations

from typing import Any

import numpy as np


def finite(value: object) -> Any:
    """The same in what JSON knows: None for what is not finite, lists for tuples, numbers of Python for those of NumPy.

    >>> finite({"a": (np.float64("inf"), np.bool_(True))})
    {'a': [None, True]}
    """
    if isinstance(value, dict):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
