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

from offtrace.logs.container import Following, Logs
from offtrace.logs.reading.columns import CONTINUOUS, MISSING, NO_FLAG, NUMBERS, UNKNOWN, Names
from offtrace.logs.reading.ordering import SAME_TIME, Order, chunks
from offtrace.logs.reading.passes import copy_ids, copy_numbers, range_of, touched, within
from offtrace.logs.reading.problems import LogsError, Problems, ReadReport, refusal
from offtrace.trajectory import TOLERANCE

LARGEST, LAST = np.finfo(np.float64).max, np.iinfo(np.int64).max
DENSE = 1 << 16
"""Integers from 0 to less than this, or than the number of steps, are ids as they are; others are numbered anew."""


@dataclass
class Filling:
    """Arrays for N steps, filled batch after batch."""

    n: int
    features: int
    """The number of features of a state; 0 where states are ids."""
    has_next: bool
    has_mu: bool
    """The source has μ or log μ."""
    is_log: bool
    """The source has log μ."""
    states: Names = None
    actions: Names = None
    numbers: int = 0
    """The number of numbers that an action has; 0 where actions are ids."""
    has_pi: bool = False
    """The source has log π of a target policy."""
    cut_at_end: bool = False
    """An episode whose last step is not terminated was cut there."""
    passed_over: tuple[str, ...] = ()
    """The columns that were not read, for the report."""
    order: Order | None = None
    """The order of the rows; None: they stand in order, and where episodes begin is said when all are there."""
    problems: Problems = field(default_factory=Problems)
    hints: dict[str, str] = field(default_factory=dict)
    """For states and actions given by name: which names of the source are none of them, in words."""
    never: dict[str, list[str]] = field(default_factory=dict)
    """And which of them the source does not have."""

    def __post_init__(self) -> None:
        shape, kind = ((self.n, self.features), np.float64) if self.features else (self.n, np.int64)
        self.filled = self.steps = 0
        self.state = touched(shape, kind)
        self.next_state = touched(shape, kind) if self.has_next else None
        self.beyond: list[np.ndarray] = []
        self.action = touched((self.n, self.numbers), np.float64) if self.numbers else touched(self.n, np.int64)
        self.reward = touched(self.n, np.float64)
        self.terminated = touched(self.n, np.bool_)
        self.truncated = touched(self.n, np.bool_)
        self.log_mu = touched(self.n, np.float64) if self.has_mu else None
        self.log_pi = touched(self.n, np.float64) if self.has_pi else None
        self.scratch = np.empty(0)
        """For log μ of a batch: new memory for each costs more than the logarithm."""
        self.largest: dict[str, int] = {"state": -1, "action": -1}
        """The largest id so far; there is none where one was not a number from 0 on, or this was not looked at."""

    @property
    def place(self) -> np.ndarray | None:
        """The step of each row; None: they stand in order."""
        return None if self.order is None else self.order.place

    @property
    def at_once(self) -> bool:
        """Rows come in order, and it is known where episodes end: a row that only says where one was cut is left out at once."""
        return self.order is not None and self.place is None and not self.has_next

    def add(self, batch: dict[str, np.ndarray]) -> None:
        """The next rows of the source."""
        begin, end = self.filled, self.filled + len(batch["reward"])
        if end > self.n:
            raise LogsError(
                f"the source has more than the {self.n:,} rows that were counted: it changed while it was read"
            )
        self.filled = end
        at = slice(begin, end) if self.place is None else self.place[begin:end]

        def bad(what: str, where: np.ndarray | np.bool_) -> None:
            if where.any():
                self.problems.add(what, begin + np.flatnonzero(where))

        for name in ("terminated", "truncated"):
            if (flag := batch.get(name)) is None:
                flag = np.zeros(end - begin, np.uint8)
            if not within(flag, 0, 1):
                bad(f"{name} is missing, or neither 0 nor 1", flag >= NO_FLAG)
                flag = flag == 1
            getattr(self, name)[at] = flag
        cut = None
        if self.at_once:
            cut = self._cut(begin, end)
            self.beyond.append(batch["state"][cut])
            at = slice(self.steps, self.steps + end - begin - len(cut))
            self.steps = at.stop

        def put(array: np.ndarray, values: np.ndarray, low: float = -LARGEST, high: float = LARGEST) -> bool:
            """Whether all numbers lie in [low, high]."""
            if cut is not None:
                return copy_numbers(values, cut, array[at], low, high)
            array[at] = values
            return within(values, low, high)

        def put_ids(name: str, array: np.ndarray, values: np.ndarray, known: Names) -> None:
            high = known - 1 if isinstance(known, int) else LAST
            if cut is not None:
                fine, largest = copy_ids(values, cut, array[at], 0, high)
                if name in self.largest:
                    self.largest[name] = max(self.largest[name], largest)
            else:
                array[at] = values
                fine = within(values, 0, high)
            if not fine or cut is None:
                self.largest.pop(name, None)
            if not fine:
                self._wrong_ids(name, values, known, bad)

        def put_numbers(name: str, array: np.ndarray, values: np.ndarray) -> None:
            if not put(array, values):
                bad(f"{name} is missing, NaN or infinite", ~np.isfinite(values).all(axis=1))

        def put_states(name: str, array: np.ndarray, values: np.ndarray) -> None:
            if self.features:
                put_numbers(name, array, values)
            else:
                put_ids(name, array, values, self.states)

        put_states("state", self.state, batch["state"])
        if self.next_state is not None:
            put_states("next_state", self.next_state, self._beyond(batch, at))
        if self.numbers:
            put_numbers("action", self.action, batch["action"])
        else:
            put_ids("action", self.action, batch["action"], self.actions)
        if not put(self.reward, batch["reward"]):
            bad("reward is missing, NaN or infinite", ~np.isfinite(batch["reward"]))
        if self.log_mu is not None:
            log_mu = self._log_mu(batch)
            most = LARGEST if self.numbers else TOLERANCE  # a density may be above 1
            if not put(self.log_mu, log_mu, high=most):
                bad(self._wrong_mu(), ~((log_mu <= most) & (log_mu > -np.inf)))
        if self.log_pi is not None:
            put(self.log_pi, batch["log_pi"])
            bad("log_pi is missing, NaN or +∞", ~(batch["log_pi"] < np.inf))

    def _cut(self, begin: int, end: int) -> np.ndarray:
        """Which of these rows only say where an episode was cut, and are no steps."""
        assert self.order is not None
        first, last = np.searchsorted(self.order.starts, [begin, end], side="right")
        ends = self.order.starts[first:last] - 1
        cut = ~self.terminated[ends]
        if not self.cut_at_end:
            cut &= self.truncated[ends]
        self.truncated[ends] = cut
        return ends[cut] - begin

    def _beyond(self, batch: dict[str, np.ndarray], at: Any) -> np.ndarray:
        """The column `next_state`; after a terminated step nothing is read: a missing one is no problem."""
        beyond, ended = batch["next_state"], self.terminated[at]
        if not within(beyond, -LARGEST, LARGEST) if self.features else not within(beyond, MISSING + 1, LAST):
            lacks = ended & (~np.isfinite(beyond).all(axis=1) if self.features else beyond == MISSING)
            beyond = beyond.copy()
            beyond[lacks] = batch["state"][lacks]
        return beyond

    def _wrong_ids(self, name: str, values: np.ndarray, known: Names, bad: Any) -> None:
        numbers = f' (if actions are real numbers: actions="{CONTINUOUS}")' if name == "action" else ""
        bad(f"{name} is missing or not a whole number{numbers}", values == MISSING)
        if isinstance(known, int):
            kind = name.removeprefix("next_")
            bad(
                f"{name} is none of the {known:,} that there are, 0 to {known - 1:,} ({kind}s={known})",
                ((values < 0) | (values >= known)) & (values != MISSING),
            )
        elif isinstance(known, tuple):
            bad(f"{name} is none of those that were given{self.hints.get(name, '')}", values == UNKNOWN)

    def _log_mu(self, batch: dict[str, np.ndarray]) -> np.ndarray:
        given = batch["mu"]
        if len(self.scratch) < len(given):
            self.scratch = np.empty(len(given))
        with np.errstate(divide="ignore", invalid="ignore"):
            return given if self.is_log else np.log(given, out=self.scratch[: len(given)])

    def _wrong_mu(self) -> str:
        if self.numbers:
            return (
                "log_mu is missing or infinite" if self.is_log else "mu, a density, is missing, infinite or not above 0"
            )
        return "log_mu is missing, −∞ or above 0" if self.is_log else "mu is missing or outside (0, 1]"

    def finished(self, order: Order, source: str, *, drop: float | None, words: Any) -> Logs:
        """The logs, if nothing is wrong with them, or without the episodes where something is: at most a share `drop` of all."""
        lengths, ends = np.diff(order.starts), order.starts[1:] - 1
        self._check_ends(order)
        self.truncated[ends] &= ~self.terminated[ends]
        nameless = bool(order.episodes[0] == MISSING)  # which sorts first
        problems, concerned = self.problems.settled(order.episode, words, nameless)
        if problems:
            at_once = any(problem.what == SAME_TIME for problem in problems)
            refused = drop is None or at_once or len(concerned) - nameless > drop * (len(ends) - nameless)
            if refused or len(concerned) == len(ends):
                raise refusal(
                    source, problems, len(concerned) - nameless, len(ends) - nameless, None if at_once else drop
                )
        good = np.ones(len(ends), np.bool_)
        good[concerned] = False
        cut = np.zeros_like(good) if self.has_next else self.truncated[ends]
        kept = np.where(good, lengths - cut, 0)
        if not (left := kept > 0).any():
            raise LogsError(
                f"{source}: nothing is left, since every episode is one truncated step whose next state is not known: "
                "declare Columns(next_state=…)"
            )
        returns = self._mean_returns(good, lengths - cut if self.at_once else lengths)
        beyond = np.concatenate(self.beyond) if self.at_once else self.state[ends[cut]]
        beyond = beyond[(good & (lengths > 1))[cut]]
        if good.all() and (self.at_once or not cut.any()):
            self._keep(slice(kept.sum()))
        else:
            self.largest.clear()
            keep = np.repeat(good, lengths - cut if self.at_once else lengths)
            if not self.at_once:
                keep[ends[cut]] = False
            self._keep(keep)
        starts = np.concatenate([[0], np.cumsum(kept[left])])
        terminated = self.terminated[ends[left]]
        for name, flag in (("terminated", terminated), ("truncated", ~terminated)):
            setattr(self, name, flags := getattr(self, name)[: starts[-1]])
            flags[:] = False
            flags[starts[1:] - 1] = flag
        report = ReadReport(
            source=source,
            rows=self.n,
            episodes=len(ends) - nameless,
            in_order=order.place is None,
            problems=problems,
            dropped=len(concerned) - nameless,
            dropped_rows=int(lengths[concerned[int(nameless) :]].sum()),
            nameless=int(lengths[0]) if nameless else 0,
            only_next=int((good & cut).sum()),
            emptied=int((good & ~left).sum()),
            dropped_return=returns[0],
            kept_return=returns[1],
            never={what: tuple(names) for what, names in self.never.items() if names},
            passed_over=self.passed_over,
        )
        return self._logs(starts, beyond, report)

    def _mean_returns(self, good: np.ndarray, lengths: np.ndarray) -> tuple[float, float]:
        """The mean sum of rewards of the episodes that are dropped, as far as rewards are known, and of the others."""
        if good.all():
            return float("nan"), float("nan")
        reward = self.reward[: lengths.sum()]
        known = np.where(np.isfinite(reward), reward, 0.0)
        sums = np.bincount(np.repeat(np.arange(len(lengths)), lengths), known, len(lengths))
        return float(sums[~good].mean()), float(sums[good].mean())

    def _check_ends(self, order: Order) -> None:
        """An episode ends with its last step, and there only; the rows without an episode have no end."""
        ends = order.starts[1:] - 1
        ended = self.terminated | self.truncated
        inner = ends[:0]
        if np.count_nonzero(ended) > np.count_nonzero(ended[ends]):
            inner = np.setdiff1d(np.flatnonzero(ended), ends, assume_unique=True)
        if order.episodes[0] == MISSING:  # which sorts first
            inner = inner[inner > ends[0]]
        self.problems.add("a step after its episode's end", np.sort(order.rows(inner + 1)))
        open_ends = ends[~(self.terminated[ends] | self.truncated[ends]) & (order.episodes != MISSING)]
        if self.cut_at_end:
            self.truncated[open_ends] = True
        else:
            self.problems.add(
                'the last step of its episode, but neither terminated nor truncated (if it was cut there: truncated="at end")',
                np.sort(order.rows(open_ends)),
            )

    def _keep(self, keep: np.ndarray | slice) -> None:
        """Only these steps, chunk by chunk, in the arrays' own memory, and several arrays at a time."""

        def compressed(array: np.ndarray) -> np.ndarray:
            if isinstance(keep, slice):
                return array[keep]
            to = 0
            for chunk in chunks(len(keep)):
                part = array[chunk].take(np.flatnonzero(keep[chunk]), axis=0)
                array[to : to + len(part)] = part
                to += len(part)
            return array[:to]

        names = ("state", "next_state", "action", "reward", "log_mu", "log_pi")
        there = {name: array for name in names if (array := getattr(self, name)) is not None}
        with ThreadPoolExecutor() as pool:  # NumPy does not hold the interpreter's lock meanwhile
            vars(self).update(zip(there, pool.map(compressed, there.values()), strict=True))

    def _logs(self, starts: np.ndarray, beyond: np.ndarray, report: ReadReport) -> Logs:
        states, state_names = (0, ())
        if not self.features:
            others = beyond if self.next_state is None else self.next_state
            states, state_names = _numbered((self.state, others), self.states, self.largest.get("state"))
        actions, action_names = NUMBERS, ()
        if not self.numbers:
            actions, action_names = _numbered((self.action,), self.actions, self.largest.get("action"))
        return Logs(
            starts=starts,
            state=self.state,
            next_state=Following(self.state, self.terminated, self.truncated, beyond)
            if self.next_state is None
            else self.next_state,
            action=self.action,
            reward=self.reward,
            terminated=self.terminated,
            truncated=self.truncated,
            log_mu=self.log_mu,
            log_pi=self.log_pi,
            states=states,
            actions=actions,
            state_names=state_names,
            action_names=action_names,
            report=report,
        )


def _numbered(arrays: Sequence[np.ndarray], known: Names, largest: int | None) -> tuple[int, tuple[int | str, ...]]:
    """How many ids there are, and their names; integers that are no ids become ids, in place.

    `largest`: of the first array, where none of its ids is below 0; None: this is not known.
    """
    if isinstance(known, tuple):
        return len(known), known
    if isinstance(known, int):
        return known, ()
    first = [(0, largest)] if largest is not None else [range_of(arrays[0])]
    ranges = np.array([*first, *(range_of(array) for array in arrays[1:] if len(array))])
    if ranges.min() >= 0 and ranges.max() < max(DENSE, len(arrays[0])):
        return int(ranges.max()) + 1, ()
    parts = [array[chunk] for array in arrays for chunk in chunks(len(array))]
    names = np.zeros(0, np.int64)
    for part in parts:
        names = np.union1d(names, part)
    for part in parts:
        part[:] = np.searchsorted(names, part)
    return len(names), tuple(names.tolist())
