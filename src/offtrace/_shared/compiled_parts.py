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
        """Do nothing: the code is optimised later, with what it is copied into."""

    def _finalize_final_module(self) -> None:
        """Make no machine code: what calls this function takes the code as it is."""
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0, since there is no machine code that could be pointed to."""
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> Any:
        """Return what Numba calls `set_env` of: this object, which has one that does nothing."""
        return self

    def set_env(self, name: str, env: object) -> None:
        """Do nothing: only functions that handle objects of Python read their environment, and these are none."""


class _PartCompiler(CompilerBase):
    """Numba's own compiler, which writes into a `_Part`."""

    def define_pipelines(self) -> list[Any]:
        """Return Numba's usual passes, which write into a `_Part`."""
        state = self.state
        state.library = _Part(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return [DefaultPassBuilder.define_nopython_pipeline(state)]


PART: dict[str, Any] = {"no_cfunc_wrapper": True, "pipeline_class": _PartCompiler}
"""Options of `numba.njit` and `register_jitable` for a function that only compiled code calls, and by its name."""


def part_njit(**options: Any) -> Callable[[F], F]:
    """Compile, as `numba.njit` does, a function that only compiled code calls."""
    compiling: Any = numba.njit
    return cast("Callable[[F], F]", compiling(no_cpython_wrapper=True, **PART, **options))
