"""Numba finds types sooner: what arrays and numbers do is looked up before what strings, lists and dictionaries do.

For each `x[i]` and for each condition Numba asks a dozen overloads, those of its containers first, and each compares all options
of the compiler: a third of the time in which a learner's loop was compiled. The templates here are Numba's own. They are marked
as those of the CPU, which Numba asks before those of any machine, and answer for arrays and numbers only, and only while a
function of this package is compiled: nothing changes for what others compile.

This uses names of Numba that are not public: `tests/test_numba_names.py` lists all of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, ClassVar, cast

from numba import types
from numba.core.typing import arraydecl, builtins, templates


def _in_array(array: types.Type, index: types.Type, *_: types.Type) -> bool:
    """Whether it is an array, and the index consists of integers and slices."""
    parts = cast("tuple[types.Type, ...]", index) if isinstance(index, types.BaseTuple) else (index,)
    return isinstance(array, types.Array) and all(isinstance(i, types.Integer | types.SliceType) for i in parts)


def _number(x: types.Type) -> bool:
    return isinstance(x, types.Boolean | types.Number)


def _is_ours(context: Any) -> bool:
    """Whether a function of this package is compiled: it, or one that it is a part of, stands on Numba's stack."""
    return any(frame.func_id.modname.startswith("offtrace.") for frame in context.callstack)


def _ask_first(function: object, template: Any, applies: Callable[..., bool], register: Any) -> None:
    """Let Numba ask this template about the function before all others, where it applies to the types of the arguments."""

    class First(template):
        metadata: ClassVar = {"target": "cpu"}

        def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
            return super().generic(args, kws) if applies(*args) and _is_ours(self.context) else None

    register(function)(First)


for given in (
    (operator.getitem, arraydecl.GetItemBuffer, _in_array),
    (operator.setitem, arraydecl.SetItemBuffer, _in_array),
    (bool, builtins.Bool, _number),
):
    _ask_first(*given, templates.infer_global)
