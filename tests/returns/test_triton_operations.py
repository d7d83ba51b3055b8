"""The tests' quick way through Triton's interpreter does what the interpreter does, in each bit, whatever the numbers."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
from triton import language as tl
from triton.runtime.interpreter import TensorHandle, interpreter_semantic

import triton_interpreter  # noqa: F401
from triton_operations import BINARY, as_interpreted, recipes, same

KINDS = {
    tl.int1: np.array([True, False, True, True, False, False, True, False]),
    tl.uint8: np.array([0, 1, 2, 255, 1, 0, 3, 7], np.uint8),
    tl.int32: np.array([0, 1, -1, 5, 2**15, -(2**15), 77, 3], np.int32),
    tl.int64: np.array([0, 1, -1, 2**40, -(2**40), 63, 2**62, 3], np.int64),
    tl.float32: np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 3e38, 1.5], np.float32),
    tl.float64: np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 5e-324, 1e308, 1.5]),
}
NUMBERS = [0, 0.0, -0.0, 1, -3, 2.5, 1e300, 1 << 40, float("inf"), float("nan"), True]


def tensor(kind: Any, data: Any, scalar: bool = False) -> Any:
    return tl.tensor(TensorHandle(data, kind), kind if scalar else tl.block_type(kind, list(data.shape)))


def operands(kind: Any) -> list[Any]:
    """A row, a column and one number of a type; plain ones come first, from which recipes are made."""
    data = KINDS[kind]
    return [
        tensor(kind, np.ones_like(data)),
        tensor(kind, data),
        tensor(kind, data[::-1, None].copy()),
        tensor(kind, data[3:4], True),
    ]


def outcome(call: Any, *arguments: Any) -> Any:
    try:
        with np.errstate(all="ignore"):
            return call(interpreter_semantic, *arguments)
    except Exception as error:  # a type that does not fit
        return type(error)


def agree(name: str, *arguments: Any) -> None:
    """Called twice: the second time there is a recipe."""
    wanted = outcome(as_interpreted[name], *arguments)
    for _ in range(2):
        found = outcome(getattr(interpreter_semantic.__class__, name), *arguments)
        if isinstance(wanted, type):
            assert found is wanted, (name, arguments)
        else:
            assert found.type == wanted.type, (name, arguments)
            assert same(found.handle.data, wanted.handle.data), (name, arguments)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    usual = BINARY[name][1:]
    for left, right in product(KINDS, KINDS):
        for x, y in product(operands(left), operands(right)):
            agree(name, x, y, *usual)
    for kind, number in product(KINDS, NUMBERS):
        for x in operands(kind):
            agree(name, x, number, *usual)
            agree(name, number, x, *usual)
    assert any(key[0] == name and recipe is not None for key, recipe in recipes.items())


def test_where() -> None:
    for left, right in product(KINDS, KINDS):
        for condition, x, y in product(operands(tl.int1), operands(left), operands(right)):
            agree("where", condition, x, y)
    for condition, kind, number in product(operands(tl.int1), KINDS, NUMBERS):
        for x in operands(kind):
            agree("where", condition, x, number)
            agree("where", condition, number, x)
    for condition, x, y in product(operands(tl.int1), NUMBERS, NUMBERS):
        agree("where", condition, x, y)


@pytest.mark.parametrize("name", ["cast", "bitcast"])
def test_conversions(name: str) -> None:
    for kind, to in product(KINDS, KINDS):
        for x in operands(kind):
            agree(name, x, to)


def test_an_overflow_is_told() -> None:
    large, one = tensor(tl.int32, np.array([1, 2**31 - 1], np.int32)), tensor(tl.int32, np.array([1, 1], np.int32))
    assert interpreter_semantic.add(one, one, True).handle.data.tolist() == [2, 2]
    with pytest.raises(AssertionError, match="overflow"):
        interpreter_semantic.add(large, one, True)
    with pytest.raises(AssertionError, match="overflow"):
        interpreter_semantic.mul(large, large, True)
