"""Sums over the files of a large log: what one file adds, and a pass over all of them.

A basis that knows the sums over all files (`Table.logged`, `Linear.of_all`) is put at the steps of one file, and does there what
it does in memory. So the fit of a large log is that of `fit`, with passes over files in place of sums over pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from offtrace._shared.progress_bar import ProgressBar
from offtrace.logs.bases import Linear, Table
from offtrace.logs.container import Logs
from offtrace.logs.fit import asked, moved
from offtrace.logs.map_files import Map
from offtrace.logs.operator import Sampled
from offtrace.logs.policies import as_policy
from offtrace.logs.reading.columns import Columns, Names
from offtrace.logs.reading.sources import read
from offtrace.logs.reading.tables import pl, scan
from offtrace.traces import OneStep, Trace


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
            logs = read(file, columns=self.columns, truncated=self.truncated, states=self.states, actions=self.actions)
        except ValueError as error:
            if file.name not in str(error):
                error.args = (f"{file.name}: {error}", *error.args[1:])
            raise
        if self.states is None and logs.tabular:
            raise TypeError(
                "the target policy is a function, so that states should be features, but the files have ids: give the policy "
                "as a table [S, A]"
            )
        if self.states is not None and not logs.tabular:
            raise TypeError(
                "the target policy is a table, so that states should be ids, but the files have features: give the policy as a "
                "function, features [n, d] → probabilities [n, A], and say how many actions there are: actions=…"
            )
        return logs

    def sampled(self, logs: Logs) -> Sampled:
        """The operator of one file."""
        return Sampled(self.trace, logs, as_policy(self.policy, logs), self.gamma)

    def of_no_steps(self) -> Sampled:
        """The operator of one step over no steps, for a basis of which each file has a part."""
        S, A = (
            0 if names is None else names if isinstance(names, int) else len(names)
            for names in (self.states, self.actions)
        )
        ids, flags = np.zeros(0, np.int64), np.zeros(0, bool)
        logs = Logs(
            starts=np.zeros(1, np.int64), state=ids, next_state=ids, action=ids, reward=np.zeros(0), terminated=flags,
            truncated=flags, log_mu=None, states=S, actions=A,
        )  # fmt: skip
        return Sampled(OneStep(), logs, as_policy(self.policy, logs), self.gamma)


class First(NamedTuple):
    """The sums of the first pass."""

    returns: np.ndarray
    """Episodes, steps, Σ G and Σ G² [4], G the return of an episode."""
    files: list[tuple[Any, float, float]]
    """Of each file the ids of its episodes, and the least and the largest reward."""
    states: np.ndarray
    """Of a table, how often each state is a first one [S]; of features, the sum of the states [d]."""
    counts: np.ndarray
    """Of a table: how often each pair was logged [S·A]."""
    asked: np.ndarray
    """Of a table: Σ_k φ_k Δ_k(0) [S·A]."""


def first(file: Path, question: Question) -> First:
    """The part of one file in the first pass."""
    logs = question.logs(file)
    returns = logs.by_episode(question.gamma**logs.age * logs.reward)
    ids = None
    if (column := question.columns.episode) is not None:
        ids = scan((file,)).select(pl.col(column).unique()).collect().to_series()
    sums = np.array([logs.episodes, len(logs), returns.sum(), (returns**2).sum()])
    files = [(ids, float(logs.reward.min()), float(logs.reward.max()))]
    if not logs.tabular:
        return First(sums, files, logs.state.sum(axis=0), np.zeros(0), np.zeros(0))
    begins = np.bincount(logs.state[logs.first_steps], minlength=logs.states)
    basis = Table(question.sampled(logs))
    changes = added(asked(basis, piece, np.zeros(basis.size), True) for piece in logs.pieces(basis.piece))
    return First(sums, files, begins, basis.counts, changes)


def squares(file: Path, question: Question, middle: np.ndarray) -> np.ndarray:
    """Σ (s − middle)² of the features of states [d]."""
    return ((question.logs(file).state - middle) ** 2).sum(axis=0)


def over_pieces(file: Path, question: Question, basis: Table | Linear, work: Callable[..., Any], *given: object) -> Any:
    """The sum of `work(basis, piece, *given)` over the pieces of one file."""
    logs = question.logs(file)
    here = replace(basis, sampled=question.sampled(logs))
    return added(work(here, piece, *given) for piece in logs.pieces(here.piece))


def system(basis: Linear, piece: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrix [p, p] and the right side [p] of the linear fit, and Σ φ̄ [p] over the first states of episodes."""
    sampled, logs = basis.sampled, basis.sampled.logs
    now, following = basis.features_at(piece)
    credit = sampled.transposed(piece, now)
    states = logs.state[_begins(logs, piece)]
    starts = basis.spread_values(states, np.ones(len(states)))
    return credit.T @ (now - sampled.gamma * following), logs.reward[piece] @ credit, starts


def contributions(basis: Table | Linear, piece: slice, θ: np.ndarray, c: np.ndarray) -> list[np.ndarray]:
    """What each episode contributes to V(π): V(s_0) + E Σ_k c·φ_k Δ_k, the value of its own first state, and how much it moves Q
    (`Fit.influence`); `c` holds the number of episodes E already. In a list, so that pieces are joined and not added.
    """
    return [basis.values(θ, basis.sampled.logs.state[_begins(basis.sampled.logs, piece)]) + moved(basis, piece, c, θ)]


def _begins(logs: Logs, piece: slice) -> np.ndarray:
    """The first steps of the episodes of a piece."""
    return logs.starts[(logs.starts >= piece.start) & (logs.starts < piece.stop)]


def added(parts: Iterable[Any]) -> Any:
    """The sum of arrays, or of tuples field by field; lists in them are joined."""
    total: Any = None
    for part in parts:
        if total is None:
            total = part
        elif isinstance(part, tuple):
            total = tuple(a + b for a, b in zip(total, part, strict=True))
        else:
            total = total + part
    return total


class Passes:
    """Passes over all files."""

    def __init__(self, files: tuple[Path, ...], each: Map, question: Question, bar: ProgressBar | None) -> None:
        self.files, self.each, self.question, self.bar = files, each, question, bar
        self.count = 0

    def over(self, work: Callable[..., Any], *given: object) -> Any:
        """Σ over all files of `work(file, question, *given)`."""
        total = added(self._shown(self.each(work, self.files, self.question, *given)))
        self.count += 1
        return total

    def total(self, basis: Table | Linear) -> Callable[..., np.ndarray]:
        """The `fit.Total` of all files."""
        return lambda start, work, *given: start + self.over(over_pieces, basis, work, *given)

    def _shown(self, parts: Iterable[Any]) -> Iterable[Any]:
        for done, part in enumerate(parts, 1):
            if self.bar is not None:
                self.bar.show(done, len(self.files), f"sweep {self.count + 1}: {done:,} of {len(self.files):,} files")
            yield part
