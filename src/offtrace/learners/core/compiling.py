"""How the loop is compiled: of small functions, those of every step inlined, those that are seldom called not.

They pass pointers to tuples of many arrays to each other (`pointed`). Counting references to arrays would cost more than most of
these functions do, and is switched off: so none of them may make an array, or return a part of one. What a loop links is compiled
with it: so large functions that only some learners need are given to loops as pointers.

Only whole loops stay on disk. Numba asks whether the file of a function has changed, not those of the functions that it
calls. What it does compare is what the function closes over: so every loop closes over a digest of the code that it is made of.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numba
from numba.core.types import Type
from numba.extending import register_jitable

from offtrace._shared.compile_cache import kept_njit
from offtrace._shared.compiled_parts import PART
from offtrace.learners.core import scalar_math

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


class Decorator(Protocol):
    """What compiles a function. It keeps its type, which is what callers see of it."""

    def __call__(self, function: F, /) -> F:
        """The compiled function."""
        ...


njit = cast("Callable[..., Decorator]", numba.njit)
"""Numba's own, as a decorator that keeps the type of a function."""


UNCOUNTED: dict[str, object] = {"_nrt": False}
"""The option that switches the counting of references off: without it the loop is ten times slower. It is not public."""


def _compiling(**options: object) -> Decorator:
    return njit(nogil=True, **UNCOUNTED, **options)


INSIDE: dict[str, object] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Of what only compiled functions call, by its name or by its address. Nothing in Python may call these functions."""
LOOP: dict[str, object] = {"no_cfunc_wrapper": True}
"""Of what only Python calls."""
_PART: dict[str, object] = INSIDE | PART
"""Of what only compiled functions call, by its name."""
inlined = _compiling(forceinline=True, **_PART)
"""This compiles what runs at every step: it is inlined."""
contracted = _compiling(forceinline=True, fastmath={"contract"}, **_PART)
"""The same, where a·b + c may be rounded once."""
merged = _compiling(inline="always")
"""For every step, and large: inlined before compilation, not after it, so that it is not compiled by itself as well."""
seldom = _compiling(**_PART)
"""This compiles what runs now and then: it is not inlined."""
called = _compiling()
"""For callers in Python."""
leaf: Decorator = kept_njit(nogil=True, **UNCOUNTED, forceinline=True)
"""For every step, and called from Python too; it calls nothing, so that it may stay on disk by itself."""
both: Decorator = register_jitable(nogil=True, **UNCOUNTED, forceinline=True, fastmath={"contract"}, **PART)
"""Inlined in compiled code, where a·b + c may be rounded once, and plain Python where Python calls it."""


def plain(function: F) -> F:
    """The Python function of a compiled one."""
    return getattr(function, "py_func")  # noqa: B009


@cache
def source_digest() -> str:
    """A digest of the code of all learners."""
    files = [*sorted(Path(__file__).parent.parent.rglob("*.py")), Path(str(scalar_math.__file__))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@cache
def loop_digest() -> int:
    """A digest of the code that a loop is made of. Rules and the methods' own steps are not in it: loops are given pointers."""
    core = Path(__file__).parent
    files = [*sorted(core.rglob("*.py")), core.parent / "methods" / "base.py", Path(str(scalar_math.__file__))]
    return int(hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:15], 16)


def compiled_for(kinds: tuple[Type, ...], loop_of: Callable[[int], F], **options: object) -> F:
    """A whole loop, for arguments of these types. `loop_of` makes the loop that closes over a number: the digest."""
    notice = threading.Timer(3.0, sys.stderr.write, ["offtrace compiles a learner's loop: some ten seconds, once …\n"])
    notice.start()
    try:
        # With its types given, rules are taken for pointers, and not compiled into it.
        compiling = kept_njit(kinds, nogil=True, **(options or LOOP), **UNCOUNTED)
        return compiling(loop_of(loop_digest()))
    finally:
        notice.cancel()
