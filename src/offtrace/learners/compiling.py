"""How learners are compiled: helper functions that compiled code calls, and whole loops, which are cached on disk.

Arrays come in named tuples. A compiled function unpacks them in its first lines: taking an array out of a tuple counts a
reference to it, which costs more than a step of a learner if it is done in a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from numba.extending import register_jitable

from offtrace._shared.compile_cache import cached_njit

F = TypeVar("F", bound=Callable[..., Any])


class Decorator(Protocol):
    """Marks a function for Numba and keeps its type. Python may call it too, and then it is not compiled."""

    def __call__(self, function: F, /) -> F:
        """The function itself."""
        ...


inline = cast(Decorator, register_jitable(error_model="numpy", forceinline=True))
"""A function that is copied into the compiled function that calls it."""
inline_fma = cast(Decorator, register_jitable(error_model="numpy", forceinline=True, fastmath={"contract"}))
"""The same, where a·b + c may be rounded once (a fused multiply-add)."""
no_inline = cast(Decorator, register_jitable(error_model="numpy"))
"""A function that compiled code calls now and then: it is not copied."""
no_inline_fma = cast(Decorator, register_jitable(error_model="numpy", fastmath={"contract"}))
"""The same, where a·b + c may be rounded once."""


@cache
def newest_file() -> int:
    """When a file of the learners was changed last.

    A loop takes this number from its closure, and Numba's cache compares it: it would see only changes of the loop's own file.
    """
    return max(file.stat().st_mtime_ns for file in Path(__file__).parent.rglob("*.py"))


def compiled_loop(function: F) -> F:
    """Compile a loop at each call with arguments of new types, and cache it on disk."""
    return cast(F, cached_njit(nogil=True, error_model="numpy")(function))
