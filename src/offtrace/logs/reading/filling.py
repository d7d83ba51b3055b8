"""Batches of rows, checked, into the arrays of Logs.

A batch has numpy arrays under the names of `Columns`: integers for state and action (MISSING and UNKNOWN where there is no
id), or floats [n, d] for features; floats for reward and mu, which may be log μ (NaN where missing); 0, 1 or NO_FLAG for the
flags, which may be absent.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offtrace._shared.compile_cache import kept_njit
from offtrace.logs.container import Following, Logs
from offtrace.logs.reading.columns import CONTINUOUS, MISSING, NO_FLAG, NUMBERS, UNKNOWN, Names
from offtrace.logs.reading.ordering import SAME_TIME, Order, chunks
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
        self.place = None if self.order is None else self.order.place
        self.at_once = self.order is not None and self.place is None and not self.has_next
        """Rows come in order, and it is known where episodes end: a row that only says where one was cut is left out at once."""
        self.state = _room(shape, kind)
        self.next_state = _room(shape, kind) if self.has_next else None
        self.beyond: list[np.ndarray] = []
        self.action = _room((self.n, self.numbers), np.float64) if self.numbers else _room(self.n, np.int64)
        self.reward = _room(self.n, np.float64)
        self.terminated = _room(self.n, np.bool_)
        self.truncated = _room(self.n, np.bool_)
        self.log_mu = _room(self.n, np.float64) if self.has_mu else None
        self.log_pi = _room(self.n, np.float64) if self.has_pi else None
        self.scratch = np.empty(0)
        """For log μ of a batch: new memory for each costs more than the logarithm."""

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

        def put(array: np.ndarray, values: np.ndarray) -> None:
            if cut is None:
                array[at] = values
            else:
                given, into = values.reshape(-1).view(np.int64), array[at].reshape(-1).view(np.int64)
                given.flags.writeable = False  # as most are: one type of arrays, compiled once
                _put_others(given, len(given) // len(values), cut, into)

        self._check_states("state", batch["state"], bad)
        put(self.state, batch["state"])
        if self.next_state is not None:
            self._check_states("next_state", beyond := self._beyond(batch, at), bad)
            put(self.next_state, beyond)
        if self.numbers:
            self._check_numbers("action", batch["action"], bad)
        else:
            self._check_ids("action", batch["action"], self.actions, bad)
        put(self.action, batch["action"])
        if not within(batch["reward"], -LARGEST, LARGEST):
            bad("reward is missing, NaN or infinite", ~np.isfinite(batch["reward"]))
        put(self.reward, batch["reward"])
        if self.log_mu is not None:
            put(self.log_mu, self._log_mu(batch, bad))
        if self.log_pi is not None:
            bad("log_pi is missing, NaN or +∞", ~(batch["log_pi"] < np.inf))
            put(self.log_pi, batch["log_pi"])

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

    def _check_states(self, name: str, values: np.ndarray, bad: Any) -> None:
        if self.features:
            self._check_numbers(name, values, bad)
        else:
            self._check_ids(name, values, self.states, bad)

    def _check_numbers(self, name: str, values: np.ndarray, bad: Any) -> None:
        if not within(values, -LARGEST, LARGEST):
            bad(f"{name} is missing, NaN or infinite", ~np.isfinite(values).all(axis=1))

    def _check_ids(self, name: str, values: np.ndarray, known: Names, bad: Any) -> None:
        if within(values, 0, known - 1 if isinstance(known, int) else LAST):
            return
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

    def _log_mu(self, batch: dict[str, np.ndarray], bad: Any) -> np.ndarray:
        given = batch["mu"]
        if len(self.scratch) < len(given):
            self.scratch = np.empty(len(given))
        with np.errstate(divide="ignore", invalid="ignore"):
            log_mu = given if self.is_log else np.log(given, out=self.scratch[: len(given)])
        most = LARGEST if self.numbers else TOLERANCE  # a density may be above 1
        if not within(log_mu, -LARGEST, most):
            if self.numbers:
                what = (
                    "log_mu is missing or infinite"
                    if self.is_log
                    else "mu, a density, is missing, infinite or not above 0"
                )
            else:
                what = "log_mu is missing, −∞ or above 0" if self.is_log else "mu is missing or outside (0, 1]"
            bad(what, ~((log_mu <= most) & (log_mu > -np.inf)))
        return log_mu

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
        inner = np.flatnonzero(self.terminated | self.truncated)
        inner = inner[~np.isin(inner, ends)] if not np.array_equal(inner, ends) else inner[:0]
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
            states, state_names = _numbered((self.state, others), self.states)
        actions, action_names = (NUMBERS, ()) if self.numbers else _numbered((self.action,), self.actions)
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


def _room(shape: int | tuple[int, int], kind: type[np.generic]) -> np.ndarray:
    """An array whose memory is there already: to ask for it page by page while polars does so, too, takes far longer."""
    array = np.empty(shape, kind)
    array.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE] = 0
    return array


@kept_njit(nogil=True)
def _put_others(values: np.ndarray, width: int, without: np.ndarray, out: np.ndarray) -> None:
    """Rows of `width` values, one after the other, but for those in `without`, which is sorted."""
    begin = 0
    for left_out in range(len(without) + 1):
        end = without[left_out] if left_out < len(without) else len(values) // width
        out[(begin - left_out) * width : (end - left_out) * width] = values[begin * width : end * width]
        begin = end + 1


def within(values: np.ndarray, low: float, high: float) -> bool:
    """Whether all lie in [low, high]; NaN does not."""
    flat = values.reshape(-1).view()
    flat.flags.writeable = False  # as most are: one type of arrays, compiled once
    return _within(flat, flat.dtype.type(low), flat.dtype.type(high))


@kept_njit(nogil=True)
def _within(values, low, high):
    fine = True
    for x in values:
        fine &= (x >= low) & (x <= high)
    return fine


@kept_njit(nogil=True)
def _range(values):
    low = high = values[0]
    for x in values:
        low, high = min(low, x), max(high, x)
    return low, high


def _numbered(arrays: Sequence[np.ndarray], known: Names) -> tuple[int, tuple[int | str, ...]]:
    """How many ids there are, and their names; integers that are no ids become ids, in place."""
    if isinstance(known, tuple):
        return len(known), known
    if isinstance(known, int):
        return known, ()
    ranges = np.array([_range(array) for array in arrays if len(array)])
    if ranges.min() >= 0 and ranges.max() < max(DENSE, len(arrays[0])):
        return int(ranges.max()) + 1, ()
    parts = [array[chunk] for array in arrays for chunk in chunks(len(array))]
    names = np.zeros(0, np.int64)
    for part in parts:
        names = np.union1d(names, part)
    for part in parts:
        part[:] = np.searchsorted(names, part)
    return len(names), tuple(names.tolist())
