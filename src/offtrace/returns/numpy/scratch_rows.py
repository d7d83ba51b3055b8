"""What a compiled pass is called with beside the arrays: room to work in, and empty arrays for what is not given by step."""

from __future__ import annotations

import threading

import numpy as np

from offtrace.arrays import BOOL, FLOATS
from offtrace.returns.numpy import compiled_pass
from offtrace.trajectory import Trajectory

KEPT = 1 << 26  # bytes of scratch that a thread keeps
NOT_BY_STEP = {dtype: np.empty((0, 0), dtype) for dtype in (*FLOATS, BOOL)}

_mine = threading.local()


def by_step(x: Trajectory) -> tuple[float, np.ndarray, np.ndarray]:
    """γ as a number and as an array, and `valid`, where an empty array stands for what is not given by step."""
    valid = NOT_BY_STEP[BOOL] if x.valid is None else x.valid
    if isinstance(x.gamma, np.ndarray):
        return 0.0, x.gamma, valid
    return x.gamma, NOT_BY_STEP[x.dtype], valid


def scratch(T: int) -> np.ndarray:
    """Room for one thread's rows, kept from call to call: fresh memory of this size costs more than the work in it."""
    shape = compiled_pass.SCRATCH, compiled_pass.width(T)
    room = getattr(_mine, "room", None)
    if room is None or room.shape != shape:
        room = np.empty(shape)
        _mine.room = room if room.nbytes <= KEPT else None
    return room
