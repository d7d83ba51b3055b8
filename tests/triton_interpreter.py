"""Triton's interpreter, without the work that it does again at each call of a device function.

It wraps all of `triton.language` anew whenever one kernel's function calls another, hundreds of times in a launch, and makes a
table of all dtypes at each look into it. Here the one is done once in a launch for each module, the other once.
"""

from __future__ import annotations

import functools
from typing import Any

import triton.runtime.interpreter as interpreter


def patch_once_in_a_launch() -> None:
    """Import time is when it happens: this must be done once."""
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched: set[int] = set()

    def patch_unless_done(fn: Any) -> Any:
        if id(fn.__globals__) in patched:
            return interpreter._LangPatchScope()
        patched.add(id(fn.__globals__))
        return patch(fn)

    def launch_afresh(self: Any, *arguments: Any, **named: Any) -> None:
        patched.clear()
        try:
            launch(self, *arguments, **named)
        finally:
            patched.clear()

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_unless_done, launch_afresh
    find = interpreter._get_np_dtype
    of_name = functools.cache(lambda name: find(interpreter.tl.dtype(name)))

    def find_by_name(kind: Any) -> Any:
        scalar = kind.scalar
        return find(scalar) if scalar.is_ptr() else of_name(scalar.name)

    interpreter._get_np_dtype = find_by_name


patch_once_in_a_launch()
