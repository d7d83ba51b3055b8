"""Batches of decisions for the tests of `weights`, and the definition row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from helpers import LOG_RATIOS
from offtrace.returns import by_definition


@st.composite
def batches(draw: Any, rows: int | None = None, steps: int | None = None) -> dict[str, Any]:
    """Arguments for `weights`: ρ = 0, products of 10^±30 and more, holes with NaN, packed rows, rows without a decision."""
    B, T = rows or draw(st.integers(1, 4)), steps or draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ratios = draw(st.lists(LOG_RATIOS, min_size=1, max_size=6)) + draw(st.sampled_from([[], [700.0, -700.0]]))
    log_ratio = np.where(rng.random((B, T)) < 0.5, rng.choice(ratios, (B, T)), rng.normal(size=(B, T)))
    log_mu = np.minimum(np.log(rng.uniform(0.05, 1.0, (B, T))), np.minimum(0.0, -log_ratio))
    made: dict[str, Any] = {"log_pi": np.minimum(log_ratio + log_mu, 0.0), "log_mu": log_mu}
    made["greedy"] = rng.random((B, T)) < 0.8
    holes = draw(st.sampled_from(["none", "some", "many"]))
    if holes != "none":
        mask = rng.random((B, T)) < (0.7 if holes == "some" else 0.2)
        for name in ("log_pi", "log_mu"):
            made[name][~mask] = np.nan
        made["mask"] = mask.astype(draw(st.sampled_from([bool, np.int64, np.float32])))
    if draw(st.booleans()):
        made["segment"] = np.cumsum(rng.random((B, T)) < 0.3, axis=1) + 7
    return made


def by_rows(trace: Any, level: str, batch: dict[str, Any]) -> np.ndarray:
    """The definition, row by row."""
    rows = range(len(batch["log_pi"]))
    return np.array(
        [by_definition.weights(trace, level=level, **{name: a[b] for name, a in batch.items()}) for b in rows]
    )
