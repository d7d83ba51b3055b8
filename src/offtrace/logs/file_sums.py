"""What one file of a large log adds to the sums.

N(s, a)                     how often each pair occurs, where states are ids
Σ_k φ_k Δ_k(Q)              what the steps of a pair ask it to change by, for a given Q
Σ_t z_t (φ_t − γφ'_t)ᵀ      the matrix of a linear fit, and beside it Σ_t z_t r_t, with z_t = Σ_{k≤t} γ^{t−k} β_{k:t} φ_k
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from offtrace._shared.progress_bar import ProgressBar
from offtrace.logs.bases import Linear, Table
from offtrace.logs.container import Logs
from offtrace.logs.fit import Features, linear_basis
from offtrace.logs.map_files import Executor
from offtrace.logs.operator import PIECE, Sampled
from offtrace.logs.policies import as_policy
from offtrace.logs.reading.columns import Columns, Names
from offtrace.logs.reading.sources import read
from offtrace.logs.reading.tables import polars, scan
from offtrace.traces import Trace

Sums = dict[str, np.ndarray]
"""Sums by name. Arrays [files] whose names begin with "each" are strung together, others are added up."""


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of every file."""

    trace: Trace
    policy: object
    """π, a table [S, A], or a callable on features."""
    gamma: float
    columns: Columns
    truncated: Literal["never", "at end"] | None
    states: Names = None
    """How many states of the policy there are, or what they are called; None where they are features."""
    actions: Names = None

    def logs(self, file: Path) -> Logs:
        """The logs of a file, whose states and actions are those of the policy."""
        try:
            found = read(file, columns=self.columns, truncated=self.truncated, states=self.states, actions=self.actions)
        except ValueError as error:
            if file.name not in str(error):
                error.args = (f"{file.name}: {error}", *error.args[1:])
            raise
        if self.states is None and found.tabular:
            raise TypeError(
                "the target policy is a function, so that states should be features, but the files have ids: give the policy "
                "as a table [S, A]"
            )
        if self.states is not None and not found.tabular:
            raise TypeError(
                "the target policy is a table, so that states should be ids, but the files have features: give the policy as a "
                "function, features [n, d] → probabilities [n, A], and say how many actions there are: actions=…"
            )
        return found

    def sampled(self, logs: Logs) -> Sampled:
        """The operator of one file."""
        return Sampled(self.trace, logs, as_policy(self.policy, logs), self.gamma)

    def changes(self, logs: Logs, Q: np.ndarray, V: np.ndarray, rewards: bool) -> np.ndarray:
        """Σ Δ_k(Q) [S, A], where V(s) is what Q makes a state worth; without rewards, its linear part."""
        sampled, A = self.sampled(logs), Q.shape[1]
        total = np.zeros(Q.size)
        for piece in logs.pieces(max(PIECE, Q.size)):
            pair = logs.state[piece] * A + logs.action[piece]
            reward = logs.reward[piece] if rewards else np.zeros(len(pair))
            found = sampled.corrections(piece, Q.ravel()[pair], V[logs.next_state[piece]], reward)
            total += np.bincount(pair, found, Q.size)
        return total.reshape(Q.shape)


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of all files, and is needed to see one of them as a part: how Q depends on θ."""

    counts: np.ndarray | None = None
    """[S·A], for a table: how often each pair was logged."""
    model: Features | None = None
    """The features, with their ridge."""
    moments: tuple[np.ndarray, np.ndarray] | None = None
    """Σ φφᵀ and the variances of the features, over all steps."""

    def basis(self, sampled: Sampled) -> Table | Linear:
        """Q in θ at the steps of one file."""
        return Table(sampled, self.counts) if self.counts is not None else self.linear(sampled)

    def linear(self, sampled: Sampled) -> Linear:
        """The same where Q is linear in features."""
        assert self.model is not None
        return linear_basis(sampled, self.model, self.moments)


def first(file: Path, question: Question, tabular: bool) -> Sums:
    """What the first pass adds up: counts and Σ Δ_k(0) of a table, sums of features, returns, and which episodes there are."""
    logs = question.logs(file)
    step = np.arange(len(logs)) - np.repeat(logs.starts[:-1], np.diff(logs.starts))
    found = np.add.reduceat(question.gamma**step * logs.reward, logs.starts[:-1])
    ids = (0, 0, 0)
    if question.columns.episode is not None:
        episode = polars().col(question.columns.episode)
        ids = scan((file,)).select(low=episode.min(), high=episode.max(), n=episode.n_unique()).collect().row(0)
    sums: Sums = {
        "returns": np.array([logs.episodes, len(logs), found.sum(), (found**2).sum()]),
        **{f"each {name}": np.array([one]) for name, one in zip(("low", "high", "n"), ids, strict=True)},
        "each least": np.array([logs.reward.min()]),
        "each most": np.array([logs.reward.max()]),
    }
    if not tabular:
        return {**sums, "states": logs.state.sum(axis=0)}
    S, A = logs.states, logs.actions
    return {
        **sums,
        "counts": np.bincount(logs.state * A + logs.action, minlength=S * A).reshape(S, A),
        "starts": np.bincount(logs.state[logs.starts[:-1]], minlength=S),
        "asked": question.changes(logs, np.zeros((S, A)), np.zeros(S), rewards=True),
    }


def again(file: Path, question: Question, Q: np.ndarray, V: np.ndarray, rewards: bool) -> Sums:
    """Σ Δ_k(Q) of a table."""
    return {"asked": question.changes(question.logs(file), Q, V, rewards)}


def spreads(file: Path, question: Question, middle: np.ndarray) -> Sums:
    """Squares of the features of states about their mean [d]."""
    return {"squares": ((question.logs(file).state - middle) ** 2).sum(axis=0)}


def moments_of_features(file: Path, question: Question, known: Known) -> Sums:
    """Σ φφᵀ, Σ φ and how often each φ_j is not 0, of the features as they are given."""
    logs = question.logs(file)
    basis = known.linear(question.sampled(logs))
    parts = [basis.moments(piece) for piece in logs.pieces(basis.piece)]
    return dict(
        zip(("gram", "total", "steps"), (np.asarray(sum(each)) for each in zip(*parts, strict=True)), strict=True)
    )


def system(file: Path, question: Question, known: Known) -> Sums:
    """The matrix [p, p] and the right side [p] of the linear fit, and Σ φ̄ [p] over the first states of episodes."""
    logs = question.logs(file)
    sampled = question.sampled(logs)
    basis = known.linear(sampled)
    matrix, constant = np.zeros((basis.size, basis.size)), np.zeros(basis.size)
    for piece in logs.pieces(basis.piece):
        now, following = basis.features_at(piece)
        credit = sampled.transposed(piece, now)
        matrix += credit.T @ (now - question.gamma * following)
        constant += logs.reward[piece] @ credit
    first_states = logs.state[logs.starts[:-1]]
    starts = basis.spread_values(first_states, np.ones(len(first_states)))
    return {"matrix": matrix, "constant": constant, "starts": starts}


def transposed(file: Path, question: Question, known: Known, c: np.ndarray) -> Sums:
    """Aᵀc [p], from a pass over the steps."""
    logs = question.logs(file)
    sampled = question.sampled(logs)
    basis, total = known.basis(sampled), np.zeros(len(c))
    for piece in logs.pieces(basis.piece):
        y = sampled.transposed(piece, basis.read(c, piece)[0])
        total += basis.spread(piece, y, -question.gamma * np.where(logs.terminated[piece], 0.0, y))
    return {"asked": total}


def moments(file: Path, question: Question, known: Known, θ: np.ndarray, c: np.ndarray, middle: float) -> Sums:
    """Σ (x − middle)^k for k = 1, 2, 3, where x is what an episode contributes to V(π).

    x = V(s_0) + E Σ_k c·φ_k Δ_k: the value of its own first state, and how much it moves Q (`Fit.influence`); `c` holds the
    number of episodes E already.
    """
    logs = question.logs(file)
    sampled = question.sampled(logs)
    basis, found = known.basis(sampled), np.zeros(3)
    for piece in logs.pieces(basis.piece):
        q, v = basis.read(θ, piece)
        delta = sampled.corrections(piece, q, v, logs.reward[piece])
        begins = logs.starts[(logs.starts >= piece.start) & (logs.starts < piece.stop)]
        moved = np.add.reduceat(basis.pull(c, θ, piece, delta), begins - piece.start)
        x = basis.values(θ, logs.state[begins]) + moved - middle
        found += [x.sum(), (x**2).sum(), (x**3).sum()]
    return {"moments": found}


class Passes:
    """Passes over all files, each of which adds something up."""

    def __init__(self, files: tuple[Path, ...], executor: Executor, bar: ProgressBar | None) -> None:
        self.files, self.executor, self.bar = files, executor, bar
        self.made = 0

    def over(self, work: Callable[..., Sums], *given: object) -> Sums:
        """Σ over all files of `work(file, *given)`."""
        sums: Sums = {}
        for done, more in enumerate(self.executor.each(work, self.files, *given), 1):
            sums = {name: _joined(name, sums[name], more[name]) if name in sums else more[name] for name in more}
            if self.bar is not None:
                self.bar.show(done, len(self.files), f"sweep {self.made + 1}: {done:,} of {len(self.files):,} files")
        self.made += 1
        return sums


def _joined(name: str, before: np.ndarray, more: np.ndarray) -> np.ndarray:
    return np.concatenate([before, more]) if name.startswith("each") else before + more
