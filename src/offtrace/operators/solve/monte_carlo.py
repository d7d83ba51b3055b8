"""C from sampled trajectories, for traces whose carry takes too many values: a confidence interval, and never a proof."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
from scipy import sparse

from offtrace.mdps.randomness import Seed, generator
from offtrace.operators.setting import Setting
from offtrace.operators.solve.merged_histories import Walk, require_coefficients

ERRORS = 4.0
"""Intervals are this many standard errors to either side."""
MOST = 200_000
"""Trajectories from each start pair."""


class MonteCarlo:
    """The mean of γ^tβ_t 1{(s_t,a_t) = y} over trajectories from each start pair."""

    method, certain = "Monte Carlo", False

    def __init__(self, setting: Setting, walk: Walk, deadline: float, seed: Seed = 0, seconds: float = 10.0) -> None:
        self.setting, self.walk = setting, walk
        self.rng = generator(seed)
        γ, n = setting.gamma, walk.bounded_by
        self.steps = 10_000 if γ == 1 else int(np.ceil(np.log(1e-9) / np.log(γ))) if γ > 0 else 1
        self.steps = min(self.steps, n) if n is not None else self.steps
        self.seconds = min(seconds, max(0.0, deadline - time.monotonic()))
        self.mean, self.error, self.count = self._estimate(self._visits, setting.pairs)
        self.assumption = (
            f"a confidence interval of {ERRORS:g} standard errors from {self.count} trajectories for each start pair"
        )

    def _estimate(self, sample: Callable[[int], np.ndarray], width: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Mean, ± and count of samples [S·A, each, width], as many as there is time for."""
        n = self.setting.pairs
        each = int(np.clip(4_000_000 // (n * max(n, width)), 4, 2048))
        count, total, squares = 0, np.zeros((n, width)), np.zeros((n, width))
        deadline = time.monotonic() + self.seconds
        while count < 64 or (time.monotonic() < deadline and count < MOST):
            seen = sample(each)
            total += seen.sum(axis=1)
            squares += (seen**2).sum(axis=1)
            count += each
        mean = total / count
        spread = np.maximum(squares / count - mean**2, 0.0) / (count - 1)
        return mean, ERRORS * np.sqrt(spread), count

    def _walk(self, each: int, steps: int) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """`each` trajectories from every pair: lag, row, pair, β, and the entry of P that was drawn, of those that go on."""
        s = self.setting
        P, terminal = sparse.csr_array(s.mdp.P), np.asarray(s.mdp.terminal, dtype=bool)
        ends = np.concatenate([[0.0], np.cumsum(P.data)])
        actions = np.cumsum(s.mu, axis=1)
        row = np.flatnonzero(np.repeat(~np.repeat(terminal, s.A), each))
        start = row // each
        pair, carry, β = start, self.walk.begin(len(start), start), np.ones(len(row))
        for lag in range(steps):
            if lag:
                carry, β = self.walk.advance(carry, lag, start, pair)
                require_coefficients(β, s.trace.title)
            first, last = P.indptr[pair], P.indptr[pair + 1]
            draw = ends[first] + self.rng.random(len(pair)) * (ends[last] - ends[first])
            entry = np.clip(np.searchsorted(ends, draw, side="right") - 1, first, last - 1)
            yield lag, row, pair, β, entry
            state = P.indices[entry]
            on = ~terminal[state]
            row, start, carry, state = row[on], start[on], carry[on], state[on]
            if not len(row):
                return
            draw = self.rng.random((len(row), 1)) * actions[state, -1:]
            pair = state * s.A + (draw >= actions[state]).sum(axis=1)

    def _visits(self, each: int) -> np.ndarray:
        """Σ_t γ^tβ_t 1{(s_t,a_t) = y}, [S·A, each, S·A]."""
        n = self.setting.pairs
        seen = np.zeros((n * each, n))
        for lag, row, pair, β, _ in self._walk(each, self.steps):
            np.add.at(seen, (row, pair), self.setting.gamma**lag * β)
        at_end = np.repeat(np.asarray(self.setting.mdp.terminal, dtype=bool), self.setting.A)
        seen = seen.reshape(n, each, n)
        seen[at_end, :, at_end] = 1.0
        return seen

    def times(self, M: np.ndarray, gap: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean ± error, summed entry by entry: wider than need be, never narrower."""
        return np.maximum((self.mean - self.error), 0.0) @ M, (self.mean + self.error) @ M

    def mean_coefficients(self, n: int, gap: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        """E[β_t] for t < n, of newly drawn trajectories."""

        def sample(each: int) -> np.ndarray:
            seen = np.zeros((self.setting.pairs * each, n))
            seen[:, 0] = 1.0
            for lag, row, _, β, _ in self._walk(
                each, n if self.walk.bounded_by is None else min(n, self.walk.bounded_by)
            ):
                seen[row, lag] = β
            return seen.reshape(-1, each, n)

        mean, error, _ = self._estimate(sample, n)
        return np.maximum(mean - error, 0.0), mean + error

    def variance(self, δ: sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
        """Var Σγ^tβ_tδ_t, [S·A], of newly drawn trajectories: the mean of (Δ − Δ')²/2 over independent pairs."""

        def sample(each: int) -> np.ndarray:
            Δ = np.zeros(self.setting.pairs * 2 * each)
            for lag, row, _, β, entry in self._walk(2 * each, self.steps):
                Δ[row] += self.setting.gamma**lag * β * δ.data[entry]
            Δ = Δ.reshape(-1, each, 2)
            return 0.5 * (Δ[:, :, :1] - Δ[:, :, 1:]) ** 2

        mean, error, _ = self._estimate(sample, 1)
        return np.maximum(mean - error, 0.0)[:, 0], (mean + error)[:, 0]
