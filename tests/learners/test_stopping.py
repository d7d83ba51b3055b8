"""How soon a run stops."""

from __future__ import annotations

from typing import Any

import pytest

from offtrace.learners import run as running


class Slow:
    """Takes a hundredth of a second for each step, by its own clock."""

    def __init__(self) -> None:
        self.now, self.steps, self.share, self.budgets = 0.0, 0, 0.0, list[int]()

    def advance(self, budget: int) -> bool:
        self.now += 0.01 * budget
        self.budgets.append(budget)
        return len(self.budgets) == 20


def test_slow_steps_are_looked_at_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace or an environment in Python may take long: Ctrl-C must not wait for half a million of its steps."""
    unit: Any = Slow()
    monkeypatch.setattr(running, "clock", lambda: unit.now)
    running.work([unit], 1, False, running.FIRST[True])
    assert max(unit.budgets) * 0.01 <= 2.0
    fast = 1000
    for _ in range(10):
        fast = running.next_slice(fast, fast * 1e-7)
    assert fast == running.SLICE
