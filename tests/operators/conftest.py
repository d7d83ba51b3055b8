"""What the tests of operators share."""

from itertools import count
from types import SimpleNamespace

import pytest

from offtrace.operators.solve import monte_carlo


@pytest.fixture
def counted_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second at each look: Monte Carlo draws as much on a slow machine as on a fast one."""
    looks = count()
    monkeypatch.setattr(monte_carlo, "time", SimpleNamespace(monotonic=lambda: float(next(looks))))
