"""How the loop is compiled: of small functions, those of every step inlined, those that are seldom called not.

They pass tuples of many arrays to each other. Passing such a tuple costs more than most of these functions do, and so does
counting references to its arrays, which is switched off: so none of them may make an array, or return a part of one.

Only whole loops stay on disk. Numba asks whether the file of a function has changed, not those of the functions that it
calls; so a digest of all of them takes the place of the file's date.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import numba

from offtrace.returns.numpy import scalar_math

Decorator = Callable[[Callable[..., Any]], Any]
_njit = cast(Any, numba.njit)

inlined: Decorator = _njit(nogil=True, _nrt=False, forceinline=True)
"""For every step."""
contracted: Decorator = _njit(nogil=True, _nrt=False, forceinline=True, fastmath={"contract"})
"""The same, where a·b + c may be rounded once."""
merged: Decorator = _njit(nogil=True, _nrt=False, inline="always")
"""For every step, and large: inlined before compilation, not after it, so that it is not compiled by itself as well."""
seldom: Decorator = _njit(nogil=True, _nrt=False)
"""For now and then."""
leaf: Decorator = _njit(cache=True, nogil=True, _nrt=False, forceinline=True)
"""For every step, and called from Python too; it calls nothing, so that it may stay on disk by itself."""


@cache
def source_digest() -> str:
    """Of the code of all learners."""
    files = [*sorted(Path(__file__).parent.parent.rglob("*.py")), Path(str(scalar_math.__file__))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def compiled_for(kinds: tuple[Any, ...], function: Callable[..., Any]) -> Any:
    """A whole loop, for arguments of these types."""
    loop = _njit(nogil=True, _nrt=False)(function)
    loop.enable_caching()
    loop._cache._cache_file._source_stamp = source_digest()
    notice = threading.Timer(3.0, sys.stderr.write, ["offtrace compiles a learner's loop: half a minute, once …\n"])
    notice.start()
    try:
        loop.compile(kinds)
    finally:
        notice.cancel()
    loop.disable_compile()  # so that rules are taken for pointers, and not compiled into it
    return loop
