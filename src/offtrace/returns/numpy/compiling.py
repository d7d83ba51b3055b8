"""How the kernels are compiled: what Python calls is cached on disk, what only kernels call is compiled with them.

Numba compiles a cached function anew when its own file has changed, but not when a function that it calls has, in another
file. So each kernel has a last parameter, `version`, which nobody passes: its default is part of the signature by which the
cache is searched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from offtrace._shared.compile_cache import cached_njit

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
VERSION = int(
    hashlib.sha256(b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()[:12],
    16,
)
"""A number that any change of a kernel changes."""

kernel: Callable[..., Any] = cached_njit(**OPTIONS)
"""Compile a function that Python calls."""
part: Callable[..., Any] = numba.njit(**OPTIONS)
"""Compile a function that only compiled code calls."""
