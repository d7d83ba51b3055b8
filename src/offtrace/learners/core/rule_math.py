"""The `xp` that rules see under Numba: NumPy's functions would make 0-d arrays of scalars, or are slower."""

from __future__ import annotations

import numpy as np

from offtrace._shared.compiled_parts import part_njit

inside = part_njit(error_model="numpy", fastmath={"contract"})


@inside
def where(condition, a, b):
    return a if condition else b


@inside
def minimum(a, b):
    return a if a < b else b


@inside
def maximum(a, b):
    return a if a > b else b


@inside
def abs(x):
    return np.abs(x)


@inside
def sqrt(x):
    return np.sqrt(x)


@inside
def exp(x):
    return np.exp(x)


@inside
def log(x):
    return np.log(x)
