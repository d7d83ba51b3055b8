"""What a compiled loop leaves on disk, and that loops own nothing that they are given."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from offtrace.learners import compiling


def test_a_loop_on_disk_is_that_of_this_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it calls may stand in another file, whose changes Numba does not see: the name, by which it finds its files, tells."""
    names = []
    for digest in ("1" * 64, "2" * 64):
        monkeypatch.setattr(compiling, "code_digest", lambda digest=digest: digest)

        def loop(n: int) -> int:
            return n + 1

        made: Callable[..., Any] = compiling.compiled(loop)
        assert made(1) == 2
        names.append(made.__qualname__)
    assert [name[-16:] for name in names] == ["1" * 16, "2" * 16]


class Several(NamedTuple):
    """Arrays within tuples, and what is no array."""

    pair: tuple[Any, Any]
    number: float
    nothing: None


def test_what_is_borrowed_is_the_same_arrays_and_is_owned_by_nobody() -> None:
    """References to them are neither counted nor given back."""
    compiled: Any = numba.njit(nogil=True)

    @compiled
    def total(given: Any) -> float:
        mine = compiling.borrowed(given)
        mine.pair[0][0] += 1.0
        return mine.pair[0].sum() + mine.pair[1].sum() + mine.number

    first, second = np.ones(3), np.arange(4).reshape(2, 2)
    counts = sys.getrefcount(first), sys.getrefcount(second)
    for i in range(100):
        assert total(Several((first, second), 0.5, None)) == 4.0 + i + 6.0 + 0.5
    assert (sys.getrefcount(first), sys.getrefcount(second)) == counts
