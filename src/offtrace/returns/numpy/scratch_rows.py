"""What a compiled pass is called with beside the arrays: room to work in, and empty arrays for what is not given by step."""

from __future__ import annotations

import threading

import numpy as np

from offtrace.arrays import BOOL, FLOATS
from offtrace.returns.numpy import compiled_pass
from offtrace.returns.numpy.by_address import room_for
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


def scratch(T: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows for a pass and room for its kernel, kept by a thread from call to call: fresh memory costs more than the work."""
    width = compiled_pass.width(T)
    kept = getattr(_mine, "room", None)
    if kept is None or kept[0].shape[2] != width:
        kept = np.empty((compiled_pass.BLOCKS, compiled_pass.ROWS, width)), np.empty(room_for(width))
        _mine.room = kept if kept[0].nbytes + kept[1].nbytes <= KEPT else None
    return kept
