"""How learners are compiled: plain functions that compiled code calls, and whole loops, which are cached on disk.

Numba asks whether the file of a cached function has changed, not those of the functions that it calls. So the name of a loop,
by which Numba finds its files, ends with a digest of the code of all learners.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from numba import config, njit, types
from numba.extending import intrinsic, register_jitable

from offtrace._shared.compile_cache import cached_njit

F = TypeVar("F", bound=Callable[..., Any])


class Decorator(Protocol):
    """What compiles a function. It keeps its type, which is what callers see of it."""

    def __call__(self, function: F, /) -> F:
        """The compiled function."""
        ...


inside = cast(Decorator, register_jitable(error_model="numpy", forceinline=True))
"""A function that compiled code calls. Python may call it too, and then it is not compiled."""
contracted = cast(Decorator, register_jitable(error_model="numpy", forceinline=True, fastmath={"contract"}))
"""The same, where a·b + c may be rounded once."""
seldom = cast(Decorator, register_jitable(error_model="numpy"))
"""The same for what is called now and then: it is not copied into its caller."""
seldom_contracted = cast(Decorator, register_jitable(error_model="numpy", fastmath={"contract"}))
"""The same, where a·b + c may be rounded once."""
part = cast(Decorator, njit(inline="always"))
"""A large part of one compiled function: it is not compiled by itself. What it is given as None is left out there as well."""


def _borrowed(typing: object, given: Any) -> tuple[Any, Any]:
    def lower(context: object, builder: Any, signature: object, arguments: tuple[Any]) -> Any:
        return _without_owners(builder, given, arguments[0])

    return given(given), lower


def _without_owners(builder: Any, kind: Any, value: Any) -> Any:
    """The first thing in Numba's structure of an array is its owner."""
    if isinstance(kind, types.Array):
        return builder.insert_value(value, value.type.elements[0](None), 0)
    if isinstance(kind, types.BaseTuple):
        for i in range(len(kind)):
            inner = _without_owners(builder, cast(Any, kind)[i], builder.extract_value(value, i))
            value = builder.insert_value(value, inner, i)
    return value


def _as_they_are(arrays: Any) -> Any:
    return arrays


borrowed = cast("Callable[[Any], Any]", _as_they_are if cast(Any, config).DISABLE_JIT else intrinsic(_borrowed))
"""In compiled code: the same arrays, or tuples of arrays, as nobody's, so that no references to them are counted.

Whoever calls a loop owns its arrays for as long as it runs. Counting would take longer than most of what a loop does.
"""


@cache
def code_digest() -> str:
    """A digest of the code that loops are made of."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@cache
def compiled(function: F) -> F:
    """The function, compiled at each call with arguments of new types, and cached on disk by the code of all learners."""
    function.__qualname__ = f"{function.__qualname__}_{code_digest()[:16]}"
    return cast(F, cached_njit(nogil=True, error_model="numpy")(function))
