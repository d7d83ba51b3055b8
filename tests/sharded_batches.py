"""Rows and rules for the tests of shards, in a file of its own: processes that tests start import it fast."""

from __future__ import annotations

from typing import Any

import numpy as np

import offtrace as ot

RULES: list[ot.Rule] = [
    ot.Retrace(lam=0.9),
    ot.PengQ(lam=0.8),
    ot.NStep(5),
    ot.RBIS(lam=0.9),
    ot.TruncatedIS(bound=1.5),
    ot.TruncatedIS(bound=(2.0, 0.5)),
    ot.NonMarkovRetrace(lam=0.9, horizon=4),
    ot.StepTrace(lambda xp, carry, now: (carry * 0.5 * now.rho, carry * 0.5 * now.rho), reads=("rho",)),
]


def batch(shape: tuple[int, int], dtype: Any = np.float64) -> dict[str, Any]:
    """Rows with ends, padding behind one, and steps that are no decisions."""
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {n: rng.normal(size=shape).astype(dtype) for n in ("reward", "q", "next_value")}
    made |= {n: -rng.random(shape).astype(dtype) for n in ("log_pi", "log_mu")}
    made |= {n: rng.random(shape) < 0.04 for n in ("terminated", "truncated")}
    made |= {"skip": rng.random(shape) < 0.2, "valid": np.ones(shape, bool)}
    made["valid"][1, -shape[1] // 3 :] = False
    return made


def zigzag(T: int, size: int) -> list[np.ndarray]:
    """The steps of each shard in zigzag context parallelism: of 2 · size parts, shard r has r and 2 · size − 1 − r."""
    parts = np.array_split(np.arange(T), 2 * size)
    return [np.concatenate([parts[r], parts[2 * size - 1 - r]]) for r in range(size)]
