"""No kernel's result depends on what the memory that it asks for held before."""

from __future__ import annotations

import numpy as np
import pytest

from offtrace.returns.numpy import cap_at_readout, every_pair, recursive_cap, reverse_recursion
from offtrace.returns.numpy.by_address import room_for

KERNELS = {
    "reverse recursion": reverse_recursion.KERNEL,
    "cap at read-out": cap_at_readout.KERNEL,
    "low recursive caps": recursive_cap.LOW,
    "higher recursive caps": recursive_cap.HIGHER,
    "any recursive cap": recursive_cap.ANY,
    "every pair": every_pair.KERNEL,
    "every pair, recursive": every_pair.RECURSIVE,
}
HELD = np.array([0.0, 0.5, -3.0, 1e9, np.inf, np.nan])


@pytest.mark.parametrize("way", ["sweep", "finish"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_what_memory_held_before_does_not_matter(kernel, way, monkeypatch):
    rng = np.random.default_rng(0)
    T = 139  # longer than a leaf, and no multiple of a chunk
    delta, g, ratio = rng.normal(size=T), np.full(T, 0.99), np.exp(0.1 * rng.normal(size=T))
    cap = rng.choice([0.5, 1.0] if "low" in kernel else [0.5, 1.0, 2.0, np.inf], T)
    lags = np.full(7, 0.9) if "every" in kernel else every_pair.NO_LAGS

    anything, found = rng.integers(len(HELD), size=room_for(139)), []

    def used_before(shape, dtype=np.float64):
        which = np.roll(anything, -len(found))[: np.prod(shape)].reshape(shape)
        return HELD[which] if np.issubdtype(dtype, np.floating) else which.astype(dtype)

    for _ in range(12):
        out = np.full(T, np.nan)
        with monkeypatch.context() as memory, np.errstate(all="ignore"):
            memory.setattr(np, "empty", used_before)
            if way == "sweep":  # run as Python, which asks this function for memory
                undone = np.zeros(1, np.int64)
                KERNELS[kernel].sweep(
                    delta[None], g[None], ratio[None], cap[None], lags, undone, used_before(room_for(T)), out[None]
                )
                assert undone[0] == 0
            else:
                KERNELS[kernel].finish(delta, g, ratio, cap, lags, T, used_before(room_for(T)), out)
        found.append(out)
    assert np.isfinite(found[0]).all()
    for out in found[1:]:
        np.testing.assert_array_equal(out, found[0])
