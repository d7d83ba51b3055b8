"""Numba is asked about arrays and numbers first, and its answers are what they were."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from numba import njit, types
from numba.core.registry import cpu_target
from numba.core.target_extension import get_local_target
from numba.core.utils import order_by_target_specificity

from offtrace._shared import typed_first

CONTEXT: Any = cpu_target.typing_context
NUMBER, ONE, TWO = types.float64, types.int64, types.UniTuple(types.int64, 2)
SLICE, ROW = types.slice3_type, types.Array(types.int64, 1, "C")
PAIRS = types.Record.make_c_struct([("a", NUMBER), ("n", ONE)])
ARRAYS = [
    *(types.Array(NUMBER, n, layout) for n, layout in ((0, "C"), (1, "C"), (2, "C"), (2, "F"), (3, "A"))),
    types.Array(NUMBER, 1, "C", readonly=True),
    types.Array(PAIRS, 1, "C"),
    types.List(NUMBER),
    TWO,
    PAIRS,
    NUMBER,
]
INDICES = [
    ONE,
    types.uint64,
    types.literal(1),
    TWO,
    SLICE,
    types.Tuple((SLICE, ONE)),
    types.Tuple((types.ellipsis, ONE)),
]
INDICES += [ROW, types.Tuple((ROW, ONE)), types.Array(types.boolean, 1, "C"), NUMBER, types.literal("a"), types.none]
CASES: dict[Any, list[tuple[Any, ...]]] = {
    operator.getitem: [(x, i) for x in ARRAYS for i in INDICES],
    operator.setitem: [(x, i, v) for x in ARRAYS for i in INDICES for v in (NUMBER, PAIRS, ARRAYS[1])],
    bool: [
        (x,) for x in (types.boolean, ONE, types.uint8, NUMBER, types.complex128, types.literal(1), ARRAYS[1], PAIRS)
    ],
}


def ours(template: Any) -> bool:
    return any(base.__module__ == typed_first.__name__ for base in template.__mro__)


def answer(asked: Any, arguments: tuple[Any, ...]) -> Any:
    """The signature, or None where Numba refuses the types."""
    try:
        return asked.get_call_type(CONTEXT, arguments, {})
    except Exception:
        return None


@pytest.mark.parametrize("function", CASES)
def test_it_is_asked_first_and_answers_the_same(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first assertion fails, Numba orders its templates in another way: compiling takes a third longer."""
    monkeypatch.setattr(typed_first, "_is_ours", lambda context: True)
    CONTEXT.refresh()
    asked = CONTEXT.resolve_value_type(function)
    assert ours(order_by_target_specificity(get_local_target(CONTEXT), asked.templates)[0])
    before = types.Function([template for template in asked.templates if not ours(template)])
    answers = [answer(asked, arguments) for arguments in CASES[function]]
    assert answers == [answer(before, arguments) for arguments in CASES[function]]
    assert any(answers)
    assert not all(answers)


def test_it_answers_for_our_own_functions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others compile is typed by what Numba would ask without us."""
    found: list[tuple[str, bool]] = []
    is_ours = typed_first._is_ours

    def noted(context: Any) -> bool:
        found.extend((frame.func_id.func_name, is_ours(context)) for frame in context.callstack)
        return is_ours(context)

    monkeypatch.setattr(typed_first, "_is_ours", noted)

    def theirs(x: Any) -> Any:
        return x[0]

    def our_own(x: Any) -> Any:
        return x[0]

    our_own.__module__ = typed_first.__name__
    for function in (theirs, our_own):
        assert njit(function)(np.ones(2)) == 1.0
    assert set(found) == {("theirs", False), ("our_own", True)}
