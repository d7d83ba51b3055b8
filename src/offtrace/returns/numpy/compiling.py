"""How the kernels are compiled: what Python calls is cached on disk, what only kernels call is compiled with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from offtrace._shared.compile_cache import cached_njit

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}

kernel: Callable[..., Any] = cached_njit(**OPTIONS)
"""Compile a function that Python calls."""
part: Callable[..., Any] = numba.njit(**OPTIONS)
"""Compile a function that only compiled code calls."""
