"""No kernel's result depends on what the memory that it asks for held before: kernels run as Python, whose memory is ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offtrace.returns.numpy import big_float, every_pair, linear, readout_cap, recursive_cap

KERNELS: dict[str, Callable[..., Any]] = {
    "low recursive caps": lambda *row: recursive_cap.sweep_low(*row),
    "higher recursive caps": lambda *row: recursive_cap.sweep_high(*row),
    "any recursive cap": lambda *row: recursive_cap.sweep(*row),
    "cap at read-out": lambda *row: readout_cap.sweep(*row),
    "every pair": lambda *row: every_pair.sweep(*row),
    "every pair, recursive": lambda *row: every_pair.sweep_recursive(*row),
}
HELD = np.array([0.0, 0.5, -3.0, 1e9, np.inf, np.nan])


@pytest.fixture
def as_python(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (big_float, every_pair, linear, readout_cap, recursive_cap):
        for name, kernel in vars(module).copy().items():
            if hasattr(kernel, "py_func"):
                monkeypatch.setattr(module, name, kernel.py_func)
    return


@pytest.mark.usefixtures("as_python")
@pytest.mark.parametrize("kernel", KERNELS)
def test_what_memory_held_before_does_not_matter(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    T = 139  # longer than a leaf of the read-out kernel
    delta, g, ratio = rng.normal(size=T), np.full(T, 0.99), np.exp(0.1 * rng.normal(size=T))
    g[-1] = 0.0
    cap = rng.choice([0.5, 1.0] if "low" in kernel else [0.5, 1.0, 2.0, np.inf], T)
    lags = np.full(7, 0.9) if "every" in kernel else every_pair.NO_LAGS
    row, found = (delta[None], g[None], ratio[None], cap[None], lags), []
    anything = rng.integers(len(HELD), size=10_000)

    def used_before(shape: Any, dtype: Any = np.float64) -> np.ndarray:
        held = np.roll(anything, -len(found))[: np.prod(shape)].reshape(shape)
        return HELD[held] if np.issubdtype(dtype, np.floating) else held.astype(dtype)

    for _ in range(12):
        out = np.full((1, T), np.nan)
        with monkeypatch.context() as memory, np.errstate(all="ignore"):
            memory.setattr(np, "empty", used_before)
            KERNELS[kernel](*row, out)
        found.append(out)
    assert np.isfinite(found[0]).all()
    for out in found[1:]:
        np.testing.assert_array_equal(out, found[0])
