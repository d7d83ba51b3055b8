"""How the kernels are compiled: what Python calls is cached on disk, what only kernels call is compiled with them.

Numba compiles a cached function again when its own file has changed, but not when a function that it calls has, in another
file. So the name of a kernel, by which Numba finds its files, ends with a digest of the code of all kernels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from offtrace._shared.compile_cache import cached_njit

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
FILES = sorted(Path(__file__).parent.glob("*.py"))
DIGEST = hashlib.sha256(b"".join(file.read_bytes() for file in FILES)).hexdigest()[:16]

part: Callable[..., Any] = numba.njit(**OPTIONS)
"""Compile a function that only compiled code calls."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls, and cache it on disk."""
    function.__qualname__ += f"_{DIGEST}"
    return cached_njit(**OPTIONS)(function)
