"""Batches of rows, checked, into the arrays of Logs.

A batch has numpy arrays under the names of `Columns`: integers for state and action (MISSING and UNKNOWN where there is no
id), or floats [n, d] for features; floats for reward and mu, which may be log μ (NaN where missing); 0, 1 or NO_FLAG for the
flags, which may be absent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from offtrace.logs.reading.checked_copies import copy_ids, copy_numbers, touched, within
from offtrace.logs.reading.columns import CONTINUOUS, MISSING, NO_FLAG, UNKNOWN, Names
from offtrace.logs.reading.ordering import Order
from offtrace.logs.reading.problems import LogsError, Problems
from offtrace.trajectory import TOLERANCE

LARGEST, LAST = np.finfo(np.float64).max, np.iinfo(np.int64).max


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

    def _beyond(self, batch: dict[str, np.ndarray], at: slice | np.ndarray) -> np.ndarray:
        """The column `next_state`; after a terminated step nothing is read: a missing one is no problem."""
        beyond, ended = batch["next_state"], self.terminated[at]
        if not within(beyond, -LARGEST, LARGEST) if self.features else not within(beyond, MISSING + 1, LAST):
            lacks = ended & (~np.isfinite(beyond).all(axis=1) if self.features else beyond == MISSING)
            beyond = beyond.copy()
            beyond[lacks] = batch["state"][lacks]
        return beyond

    def _wrong_ids(self, name: str, values: np.ndarray, known: Names, bad: Callable[[str, np.ndarray], None]) -> None:
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
