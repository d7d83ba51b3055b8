"""Records: named fields in an array, which Python and compiled code read and write by the same names."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Records = NDArray[np.record]


def record(**fields: type) -> np.dtype[np.record]:
    """The type of a record with these fields: `np.zeros(n, record(step=np.int64))[0].step` is a number that can be set."""
    return cast("np.dtype[np.record]", np.dtype((np.record, np.dtype(list(fields.items()), align=True))))
