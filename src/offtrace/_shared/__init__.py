"""Small things that several layers need, stated once. This is the lowest layer: it knows nothing of traces, and is private."""

import warnings as _warnings
from typing import Any as _Any

import numba as _numba

_config: _Any = getattr(_numba, "config")  # noqa: B009
if _config.DISABLE_JIT:
    # Kernels are machine code that call each other by address, which Python functions do not have. Numba asks for the setting
    # at every function that it compiles, its own ones too, so it cannot be left to those of others.
    _config.DISABLE_JIT = 0
    _warnings.warn(
        "NUMBA_DISABLE_JIT is set, but offtrace's kernels do not run as Python: from here on Numba compiles in this process, "
        "also what you decorate with njit after this import",
        RuntimeWarning,
        stacklevel=2,
    )
