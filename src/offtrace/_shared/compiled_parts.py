"""Functions that are only parts of compiled ones: they are optimised, and turned into machine code, with what they are part of.

Numba does both for each function that another one calls, and again for that one, into which it copies them: for parts of parts
once for each level. What it made of a part by itself is never run. Leaving it out takes a third off the time of compiling.

This uses names of Numba that are not public: `tests/test_numba_names.py` lists all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder

F = TypeVar("F", bound=Callable[..., Any])


class _Part(JITCodeLibrary):
    """The code of a function and of all that it calls, to be copied into what calls it."""

    def _optimize_final_module(self) -> None:
        """That is for later."""

    def _finalize_final_module(self) -> None:
        """That as well: here it stays as it is."""
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """None: there is no machine code."""
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> Any:
        """What `set_env` is called of."""
        return self

    def set_env(self, name: str, env: object) -> None:
        """There is no place for it: only functions that handle objects of Python read their environment."""


class _PartCompiler(CompilerBase):
    """Numba's own compiler, which writes into a `_Part`."""

    def define_pipelines(self) -> list[Any]:
        """The usual passes."""
        state = self.state
        state.library = _Part(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return [DefaultPassBuilder.define_nopython_pipeline(state)]


PART: dict[str, Any] = {"no_cfunc_wrapper": True, "pipeline_class": _PartCompiler}
"""Options of `numba.njit` and `register_jitable` for a function that only compiled code calls, and by its name."""


def part_njit(**options: Any) -> Callable[[F], F]:
    """`numba.njit` for such a function."""
    compiling: Any = numba.njit
    return cast("Callable[[F], F]", compiling(no_cpython_wrapper=True, **PART, **options))
