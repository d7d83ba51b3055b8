"""Rows and rules for the tests of shards, in a file of its own: processes that tests start import it fast."""

from __future__ import annotations

from typing import Any

import numpy as np

import offtrace as ot

RULES = [ot.Retrace(lam=0.9), ot.PengQ(lam=0.8), ot.RBIS(lam=0.9), ot.TruncatedIS(bound=1.5)]
"""One for each way in which shards are put together."""


def batch(shape: tuple[int, int], dtype: Any = np.float64) -> dict[str, Any]:
    """Rows with ends, padding behind one, and steps that are no decisions."""
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {n: rng.normal(size=shape).astype(dtype) for n in ("reward", "q", "next_value")}
    made |= {n: -rng.random(shape).astype(dtype) for n in ("log_pi", "log_mu")}
    made |= {n: rng.random(shape) < 0.04 for n in ("terminated", "truncated")}
    made |= {"skip": rng.random(shape) < 0.2, "valid": np.ones(shape, bool)}
    made["valid"][1, -shape[1] // 3 :] = False
    return made
