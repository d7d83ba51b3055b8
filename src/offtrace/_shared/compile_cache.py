"""Numba's cache of compiled code on disk, where there is a folder for it.

Numba keeps it in `NUMBA_CACHE_DIR`, next to the source, or in a folder of the user's. Where none of them can be written, as in a
container without a home, it refuses to make the function at all; here the function is compiled in each process, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def cached_njit(**options: Any) -> Callable[[F], F]:
    """`numba.njit(cache=True)`, or without the cache where Numba cannot write one."""

    compiling: Any = numba.njit

    def decorate(function: F) -> F:
        try:
            return compiling(cache=True, **options)(function)
        except RuntimeError as error:
            if "cannot cache function" not in str(error):
                raise
        _warn()
        return compiling(**options)(function)

    return decorate


@cache
def _warn() -> None:
    """Say once that there is no cache."""
    warnings.warn(
        "offtrace cannot keep compiled code on disk, so each process compiles it again: set NUMBA_CACHE_DIR to a folder that "
        "can be written",
        RuntimeWarning,
        stacklevel=3,
    )
