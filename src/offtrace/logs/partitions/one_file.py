"""What one file of a large log adds to the sums. A table of values needs nothing else of the data.

N(s, a)           how often each pair occurs
Σ_k φ_k Δ_k(Q)    what the steps of a pair ask it to change by, for a given Q
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from offtrace.logs.container import Logs
from offtrace.logs.estimators.sampled_operator import PIECE, Sampled
from offtrace.logs.estimators.target_policy import as_policy
from offtrace.logs.reading.columns import Columns, Names
from offtrace.logs.reading.polars_tables import polars, scan
from offtrace.logs.reading.sources import read
from offtrace.traces import Trace


class Returns(NamedTuple):
    """Of the episodes of a file: how many, and sums of their discounted returns and of the squares of these."""

    episodes: int
    steps: int
    total: float
    squares: float


@dataclass(frozen=True, eq=False)
class First:
    """What the first pass finds in one file."""

    counts: np.ndarray
    """[S, A]: how often each pair was logged."""
    starts: np.ndarray
    """[S]: how many episodes begin in each state."""
    asked: np.ndarray
    """[S, A]: Σ Δ_k(0), for Q = 0."""
    returns: Returns
    ids: tuple[object, object, int]
    """The smallest and the largest episode of the file, and how many there are."""


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of every file."""

    trace: Trace
    policy: np.ndarray
    """π [S, A]."""
    gamma: float
    columns: Columns
    truncated: Literal["never", "at end"] | None
    states: Names = None
    """What the states of the policy are called; None: 0, 1, …"""
    actions: Names = None

    def logs(self, file: Path) -> Logs:
        """The logs of a file, whose states and actions are those of the policy."""
        S, A = self.policy.shape
        states, actions = S if self.states is None else self.states, A if self.actions is None else self.actions
        return read(file, columns=self.columns, truncated=self.truncated, states=states, actions=actions)

    def first(self, file: Path) -> First:
        """Counts, returns, and the sums for Q = 0, in one reading."""
        logs, (S, A) = self.logs(file), self.policy.shape
        pair = logs.state * A + logs.action
        asked = self._asked(logs, np.zeros((S, A)), np.zeros(S), rewards=True)
        starts = np.bincount(logs.state[logs.starts[:-1]], minlength=S)
        return First(
            np.bincount(pair, minlength=S * A).reshape(S, A), starts, asked, self._returns(logs), self._ids(file)
        )

    def asked(self, file: Path, Q: np.ndarray, V: np.ndarray, rewards: bool) -> np.ndarray:
        """Σ Δ_k(Q) [S, A], where V(s) is what Q makes a state worth; without rewards, its linear part."""
        return self._asked(self.logs(file), Q, V, rewards)

    def _asked(self, logs: Logs, Q: np.ndarray, V: np.ndarray, rewards: bool) -> np.ndarray:
        sampled, A = Sampled(self.trace, logs, as_policy(self.policy, logs), self.gamma), Q.shape[1]
        total = np.zeros(Q.size)
        for piece in logs.pieces(max(PIECE, Q.size)):
            pair = logs.state[piece] * A + logs.action[piece]
            reward = logs.reward[piece] if rewards else np.zeros(len(pair))
            found = sampled.corrections(piece, Q.ravel()[pair], V[logs.next_state[piece]], reward)
            total += np.bincount(pair, found, Q.size)
        return total.reshape(Q.shape)

    def _returns(self, logs: Logs) -> Returns:
        length = np.diff(logs.starts)
        step = np.arange(len(logs)) - np.repeat(logs.starts[:-1], length)
        found = np.add.reduceat(self.gamma**step * logs.reward, logs.starts[:-1])
        return Returns(logs.episodes, len(logs), float(found.sum()), float((found**2).sum()))

    def _ids(self, file: Path) -> tuple[object, object, int]:
        episode = polars().col(self.columns.episode)
        found = scan((file,)).select(low=episode.min(), high=episode.max(), n=episode.n_unique())
        return found.collect().row(0)
