"""How the loop is compiled: of small functions, those of every step inlined, those that are seldom called not.

They pass tuples of many arrays to each other. Passing such a tuple costs more than most of these functions do, and so does
counting references to its arrays, which is switched off: so none of them may make an array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba

Decorator = Callable[[Callable[..., Any]], Any]
_njit = cast(Any, numba.njit)

inlined: Decorator = _njit(cache=True, nogil=True, _nrt=False, forceinline=True)
"""For every step."""
contracted: Decorator = _njit(cache=True, nogil=True, _nrt=False, forceinline=True, fastmath={"contract"})
"""The same, where a·b + c may be rounded once."""
seldom: Decorator = _njit(cache=True, nogil=True, _nrt=False)
"""For now and then."""


def compiled_for(kinds: tuple[Any, ...], function: Callable[..., Any]) -> Any:
    """The whole, for arguments of these types; it stays on disk."""
    return _njit(kinds, cache=True, nogil=True, _nrt=False)(function)
