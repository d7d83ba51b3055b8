"""A table of values by sums over files: the fixed point by GMRES, each product of which is a pass."""

from __future__ import annotations

import numpy as np

from offtrace.logs import file_sums
from offtrace.logs.bases import over_logged
from offtrace.logs.file_sums import Known, Passes, Question, Sums
from offtrace.logs.linear_systems import solve


class TableSums:
    """Q [S, A] from the sums of the first pass, and of as many more as it takes."""

    def __init__(self, question: Question, passes: Passes, first: Sums) -> None:
        self.question, self.passes = question, passes
        self.counts, self.starts, self.asked = first["counts"], first["starts"], first["asked"]
        self.policy = np.asarray(question.policy)
        self.share = over_logged(self.policy, self.counts)
        self.known = Known(counts=self.counts.ravel())

    def found(self, sweeps: int | None) -> tuple[np.ndarray, bool]:
        """θ [S·A], the fixed point or what so many sweeps make of Q = 0; and whether it is the fixed point."""
        constant = self._mean(self.asked)
        if sweeps is None:
            θ, _, converged = solve(lambda θ: self._free(θ) - self._change(θ, rewards=False), constant)
            return θ, converged
        θ = constant
        for _ in range(sweeps - 1):
            θ = θ + self._change(θ, rewards=True)
        return θ, False

    def pulled(self) -> np.ndarray | None:
        """c [S·A] with c·Σφ_kΔ_k how much steps move V(π), by as many passes as GMRES makes; None where it does not get there."""
        gradient = (self.starts[:, None] / self.starts.sum() * self.share).ravel()
        counts = np.maximum(self.counts.ravel(), 1)

        def product(u: np.ndarray) -> np.ndarray:
            c = u / counts
            found = self.passes.over(file_sums.transposed, self.question, self.known, c)
            return self._free(u) + found["asked"]

        solution, _, solved = solve(product, gradient)
        return solution / counts if solved else None

    def table(self, θ: np.ndarray) -> np.ndarray:
        """Q [S, A]; V(s) for actions that were never logged in a state."""
        return np.where(self.counts > 0, θ.reshape(self.counts.shape), self.values(θ)[:, None])

    def values(self, θ: np.ndarray) -> np.ndarray:
        """V(s) [S], the mean under π over the actions that were logged there."""
        return (self.share * θ.reshape(self.counts.shape)).sum(axis=1)

    @property
    def unlogged(self) -> float:
        """The share of π, over the logged states, on actions that were never logged there."""
        often = self.counts.sum(axis=1)
        return float((often @ np.where(self.counts == 0, self.policy, 0.0).sum(axis=1)) / often.sum())

    def _free(self, θ: np.ndarray) -> np.ndarray:
        return np.where(self.counts.ravel() == 0, θ, 0.0)

    def _mean(self, asked: np.ndarray) -> np.ndarray:
        """Each pair's mean of what its steps ask for; 0 where there are none."""
        return (asked / np.maximum(self.counts, 1)).ravel()

    def _change(self, θ: np.ndarray, *, rewards: bool) -> np.ndarray:
        Q, V = θ.reshape(self.counts.shape), self.values(θ)
        return self._mean(self.passes.over(file_sums.again, self.question, Q, V, rewards)["asked"])
