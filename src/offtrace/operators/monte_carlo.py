"""C from sampled trajectories, for traces whose carry takes too many values: a confidence interval, and never a proof."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from offtrace.operators.histories import LagRead, require_coefficients
from offtrace.operators.setting import Setting

ERRORS = 4.0
"""Intervals are this many standard errors to either side."""


class MonteCarlo:
    """The mean of γ^tβ_t 1{(s_t,a_t) = y} over trajectories from each start pair."""

    method, certain = "Monte Carlo", False

    def __init__(self, setting: Setting, walk: Any, deadline: float, rng: Any = None, seconds: float = 10.0) -> None:
        self.setting, self.walk = setting, walk
        self.rng = np.random.default_rng(0) if rng is None else rng
        γ, n = setting.gamma, walk.bounded_by
        self.steps = 10_000 if γ == 1 else int(np.ceil(np.log(1e-9) / np.log(γ))) if γ > 0 else 1
        self.steps = min(self.steps, n) if n is not None else self.steps
        self.deadline = min(deadline, time.monotonic() + seconds)
        self.assumption = ""
        self._run()

    def _run(self) -> None:
        n = self.setting.pairs
        each = int(np.clip(4_000_000 // n**2, 4, 2048))
        count, total, squares = 0, np.zeros((n, n)), np.zeros((n, n))
        while count < 64 or (time.monotonic() < self.deadline and count < 200_000):
            seen = self._trajectories(each)
            total += seen.sum(axis=1)
            squares += (seen**2).sum(axis=1)
            count += each
        self.count, self.mean = count, total / count
        spread = np.maximum(squares / count - self.mean**2, 0.0) / (count - 1)
        self.error = ERRORS * np.sqrt(spread)
        self.assumption = (
            f"a confidence interval of {ERRORS:g} standard errors from {count} trajectories for each start pair"
        )

    def _trajectories(self, each: int) -> np.ndarray:
        """Σ_t γ^tβ_t 1{(s_t,a_t) = y} of `each` trajectories from every pair, [S·A, each, S·A]."""
        s, n = self.setting, self.setting.pairs
        step = s.onto_pairs(s.mu)
        ends = np.concatenate([[0.0], np.cumsum(step.data)])
        low, high = ends[step.indptr[:-1]], ends[step.indptr[1:]]
        start = np.repeat(np.arange(n), each)
        row = np.arange(n * each)
        seen = np.zeros((n * each, n))
        seen[row, start] = 1.0
        pair, carry, factor = start.copy(), self.walk.begin(len(start), start), 1.0
        for lag in range(1, self.steps):
            draw = low[pair] + self.rng.random(len(pair))  # rows sum to the chance to go on; the rest is the end
            on = draw < high[pair]
            row, start, carry, draw = row[on], start[on], carry[on], draw[on]
            if not len(row):
                break
            pair = step.indices[np.clip(np.searchsorted(ends, draw, side="right") - 1, 0, step.nnz - 1)].astype(
                np.int64
            )
            try:
                carry, β = self.walk.advance(carry, lag, start, pair)
            except LagRead:
                self.walk.lagged = True
                carry, β = self.walk.advance(carry, lag, start, pair)
            require_coefficients(β, s.trace.title)
            factor *= s.gamma
            np.add.at(seen, (row, pair), factor * β)
        return seen.reshape(n, each, n)

    def times(self, M: np.ndarray, gap: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean ± error, summed entry by entry: wider than need be, never narrower."""
        return np.maximum((self.mean - self.error), 0.0) @ M, (self.mean + self.error) @ M

    def mean_coefficients(self, n: int) -> np.ndarray:
        """Not kept."""
        raise TypeError("mean coefficients of a custom trace need a carry of finitely many values, or a horizon")
