"""The `xp` that rules see under Numba: NumPy's functions would make 0-d arrays of scalars, or are slower."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(error_model="numpy", fastmath={"contract"})
def where(condition, a, b):
    return a if condition else b


@njit(error_model="numpy", fastmath={"contract"})
def minimum(a, b):
    return a if a < b else b


@njit(error_model="numpy", fastmath={"contract"})
def maximum(a, b):
    return a if a > b else b


@njit(error_model="numpy", fastmath={"contract"})
def abs(x):
    return np.abs(x)


@njit(error_model="numpy", fastmath={"contract"})
def sqrt(x):
    return np.sqrt(x)


@njit(error_model="numpy", fastmath={"contract"})
def exp(x):
    return np.exp(x)


@njit(error_model="numpy", fastmath={"contract"})
def log(x):
    return np.log(x)
