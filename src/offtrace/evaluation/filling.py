"""Batches of rows, checked, into the arrays of Logs.

A batch has numpy arrays under the names of `Columns`: integers for state and action (MISSING and UNKNOWN where there is no
id), or floats [n, d] for features; floats for reward and mu, which may be log μ (NaN where missing); 0, 1 or NO_FLAG for the
flags, which may be absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offtrace.evaluation.columns import MISSING, NO_FLAG, UNKNOWN, Names
from offtrace.evaluation.logs import Logs
from offtrace.evaluation.ordering import Order, chunks
from offtrace.evaluation.problems import LogsError, Problems, ReadReport, refusal
from offtrace.trajectory import TOLERANCE

DENSE = 1 << 16
"""Integers from 0 to less than this, or than the number of steps, are ids as they are; others are numbered anew."""


@dataclass
class Filling:
    """Arrays for N steps, filled batch after batch."""

    n: int
    features: int
    """How many; 0: states are ids."""
    has_next: bool
    has_mu: bool
    """The source has μ or log μ."""
    is_log: bool
    """The source has log μ."""
    states: Names = None
    actions: Names = None
    place: np.ndarray | None = None
    """[N]: the step of each row; None: they stand in order."""
    problems: Problems = field(default_factory=Problems)

    def __post_init__(self) -> None:
        shape, kind = ((self.n, self.features), np.float64) if self.features else (self.n, np.int64)
        self.filled = 0
        self.state = np.empty(shape, kind)
        self.next_state = np.empty(shape, kind) if self.has_next else None
        self.action = np.empty(self.n, np.int64)
        self.reward = np.empty(self.n)
        self.terminated = np.empty(self.n, np.bool_)
        self.truncated = np.empty(self.n, np.bool_)
        self.log_mu = np.empty(self.n) if self.has_mu else None

    def add(self, batch: dict[str, np.ndarray]) -> None:
        """The next rows of the source."""
        begin, end = self.filled, self.filled + len(batch["reward"])
        self.filled = end
        at = slice(begin, end) if self.place is None else self.place[begin:end]

        def bad(what: str, where: np.ndarray) -> None:
            if where.any():
                self.problems.add(what, begin + np.flatnonzero(where))

        for name in ("terminated", "truncated"):
            if (flag := batch.get(name)) is None:
                flag = np.zeros(end - begin, np.uint8)
            if flag.max(initial=0) >= NO_FLAG:
                bad(f"{name} is missing, or neither 0 nor 1", flag >= NO_FLAG)
                flag = flag == 1
            getattr(self, name)[at] = flag
        self._add_states(batch, at, bad)
        self._check_ids("action", batch["action"], self.actions, bad)
        self.action[at] = batch["action"]
        if not _finite(batch["reward"]):
            bad("reward is missing, NaN or infinite", ~np.isfinite(batch["reward"]))
        self.reward[at] = batch["reward"]
        if self.log_mu is not None:
            self.log_mu[at] = self._log_mu(batch, bad)

    def _add_states(self, batch: dict[str, np.ndarray], at: Any, bad: Any) -> None:
        self._check_states("state", batch["state"], bad)
        self.state[at] = batch["state"]
        if self.next_state is not None:
            ended = self.terminated[at]  # nothing is read there: a missing next state is no problem
            beyond = batch["next_state"]
            if not _finite(beyond) if self.features else beyond.min(initial=0) == MISSING:
                lacks = ended & (~np.isfinite(beyond).all(axis=1) if self.features else beyond == MISSING)
                beyond = beyond.copy()
                beyond[lacks] = batch["state"][lacks]
            self._check_states("next_state", beyond, bad)
            self.next_state[at] = beyond

    def _check_states(self, name: str, values: np.ndarray, bad: Any) -> None:
        if not self.features:
            self._check_ids(name, values, self.states, bad)
        elif not _finite(values):
            bad(f"{name} is missing, NaN or infinite", ~np.isfinite(values).all(axis=1))

    @staticmethod
    def _check_ids(name: str, values: np.ndarray, known: Names, bad: Any) -> None:
        least = values.min(initial=0)
        if least == MISSING:
            bad(f"{name} is missing or not a whole number", values == MISSING)
        if isinstance(known, int) and (least < 0 or values.max(initial=0) >= known):
            kind = name.removeprefix("next_")
            bad(
                f"{name} is none of the {known:,} that there are, 0 to {known - 1:,} ({kind}s={known})",
                ((values < 0) | (values >= known)) & (values != MISSING),
            )
        elif isinstance(known, tuple):
            bad(f"{name} is none of those that were given", values == UNKNOWN)

    def _log_mu(self, batch: dict[str, np.ndarray], bad: Any) -> np.ndarray:
        given = batch["mu"]
        with np.errstate(divide="ignore", invalid="ignore"):
            log_mu = given if self.is_log else np.log(given)
        if not (log_mu.min(initial=0) > -np.inf and log_mu.max(initial=0) <= TOLERANCE):
            what = "log_mu is missing, −∞ or above 0" if self.is_log else "mu is missing or outside (0, 1]"
            bad(what, ~((log_mu <= TOLERANCE) & (log_mu > -np.inf)))
        return log_mu

    def finished(self, order: Order, source: str, *, cut_at_end: bool, drop: bool, words: Any) -> Logs:
        """The logs, if nothing is wrong with them, or without the episodes where something is."""
        starts, ends = order.starts, order.starts[1:] - 1
        self._check_ends(order, cut_at_end)
        self.truncated[ends] &= ~self.terminated[ends]
        problems, concerned = self.problems.settled(order.episode, words)
        if problems and (not drop or len(concerned) == len(ends)):
            raise refusal(source, problems, len(concerned), len(ends), drop)
        good = np.ones(len(ends), np.bool_)
        good[concerned] = False
        kept = np.diff(starts)
        only_next = np.zeros(0, np.int64)
        if self.next_state is None:
            self.next_state = _following(self.state, ends)
            only_next = np.flatnonzero(good & self.truncated[ends])
            kept[only_next] -= 1
            self.truncated[(ends[only_next] - 1)[kept[only_next] > 0]] = True
        if len(only_next) or len(concerned):
            keep = np.repeat(good, np.diff(starts))
            keep[ends[only_next]] = False
            self._compress(keep)
            kept[~good] = 0
        if not (left := kept[kept > 0]).size:
            raise LogsError(
                f"{source}: nothing is left, since every episode is one truncated step whose next state is not known: "
                "declare Columns(next_state=…)"
            )
        report = ReadReport(
            source=source,
            rows=self.n,
            episodes=len(ends),
            in_order=order.place is None,
            problems=problems,
            dropped=len(concerned),
            dropped_rows=int(np.diff(starts)[concerned].sum()),
            only_next=len(only_next),
            emptied=int((kept[only_next] == 0).sum()),
        )
        return self._logs(np.concatenate([[0], np.cumsum(left)]), report)

    def _check_ends(self, order: Order, cut_at_end: bool) -> None:
        """An episode ends with its last step, and there only; the rows without an episode have no end."""
        ends = order.starts[1:] - 1
        inner = np.flatnonzero(self.terminated | self.truncated)
        inner = inner[~np.isin(inner, ends)] if not np.array_equal(inner, ends) else inner[:0]
        if order.episodes[0] == MISSING:  # which sorts first
            inner = inner[inner > ends[0]]
        self.problems.add("a step after its episode's end", np.sort(order.rows(inner + 1)))
        open_ends = ends[~(self.terminated[ends] | self.truncated[ends]) & (order.episodes != MISSING)]
        if cut_at_end:
            self.truncated[open_ends] = True
        else:
            self.problems.add(
                'the last step of its episode, but neither terminated nor truncated (if it was cut there: truncated="at end")',
                np.sort(order.rows(open_ends)),
            )

    def _compress(self, keep: np.ndarray) -> None:
        """Only these steps, chunk by chunk, in the arrays' own memory, and several arrays at a time."""

        def compressed(array: np.ndarray) -> np.ndarray:
            to = 0
            for chunk in chunks(len(keep)):
                part = array[chunk].take(np.flatnonzero(keep[chunk]), axis=0)
                array[to : to + len(part)] = part
                to += len(part)
            return array[:to]

        names = ("state", "next_state", "action", "reward", "terminated", "truncated", "log_mu")
        there = [name for name in names if getattr(self, name) is not None]
        with ThreadPoolExecutor() as pool:  # NumPy does not hold the interpreter's lock meanwhile
            for name, array in zip(there, pool.map(compressed, [getattr(self, name) for name in there]), strict=True):
                setattr(self, name, array)

    def _logs(self, starts: np.ndarray, report: ReadReport) -> Logs:
        states, state_names = (0, ())
        assert self.next_state is not None
        if not self.features:
            states, state_names = _numbered((self.state, self.next_state), self.states)
        actions, action_names = _numbered((self.action,), self.actions)
        return Logs(
            starts=starts,
            state=self.state,
            next_state=self.next_state,
            action=self.action,
            reward=self.reward,
            terminated=self.terminated,
            truncated=self.truncated,
            log_mu=self.log_mu,
            states=states,
            actions=actions,
            state_names=state_names,
            action_names=action_names,
            report=report,
        )


def _finite(values: np.ndarray) -> bool:
    """A sum is finite only if all are: one pass without a temporary array. False if it overflows, so that one looks closer."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum()))


def _following(state: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The state of the next step; an episode's last step has its own, which is not read or not known."""
    following = np.empty_like(state)
    following[:-1] = state[1:]
    following[ends] = state[ends]
    return following


def _numbered(arrays: Sequence[np.ndarray], known: Names) -> tuple[int, tuple[Any, ...]]:
    """How many ids there are, and their names; integers that are no ids become ids, in place."""
    if isinstance(known, tuple):
        return len(known), known
    if isinstance(known, int):
        return known, ()
    low, high = min(int(a.min()) for a in arrays), max(int(a.max()) for a in arrays)
    if low >= 0 and high < max(DENSE, len(arrays[0])):
        return high + 1, ()
    names = np.zeros(0, np.int64)
    for array in arrays:
        for chunk in chunks(len(array)):
            names = np.union1d(names, array[chunk])
    for array in arrays:
        for chunk in chunks(len(array)):
            array[chunk] = np.searchsorted(names, array[chunk])
    return len(names), tuple(names.tolist())
