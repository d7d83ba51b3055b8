"""In which order a log's rows stand, and where its episodes begin.

Row r of the source becomes step place[r] of the log. Where the rows already are sorted by (episode, step), as most logs are,
place[r] = r, and nothing is kept of either column but where episodes start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from offtrace._shared.compile_cache import cached_njit
from offtrace.logs.reading.columns import MISSING
from offtrace.logs.reading.problems import Problems

CHUNK = 1 << 17
Batches = Callable[[], Iterator[tuple[np.ndarray, np.ndarray | None]]]
"""What makes the batches (episode, step); all steps are None where there is no column of them."""
SAME_TIME = "two rows of an episode at the same time, so that it is not known which came first"
"""Never dropped: it is not these episodes that are wrong, but the column that says their order."""


@dataclass(frozen=True)
class Order:
    """E episodes of N rows."""

    starts: np.ndarray
    """[E + 1] int64."""
    episodes: np.ndarray
    """[E] int64: their ids in the source, or codes of them."""
    place: np.ndarray | None = None
    """[N] int64: the step of each row; None: they stand in order."""

    def rows(self, steps: np.ndarray) -> np.ndarray:
        """The source's rows of these steps."""
        return steps if self.place is None or not len(steps) else _inverse(self.place)[steps]

    def episode(self, rows: np.ndarray) -> np.ndarray:
        """The index of each row's episode."""
        return np.searchsorted(self.starts, rows if self.place is None else self.place[rows], side="right") - 1


class _UnsortedError(Exception):
    """The rows are not in the order of (episode, step)."""


def as_they_stand(batches: Batches, problems: Problems, timed: bool = False) -> Order | None:
    """The order of the batches (episode, step) that `batches()` makes; None if rows do not stand in it. A step may be None.

    Duplicate steps and gaps become problems. `timed`: steps are times, which have gaps and begin anywhere.
    """
    sorting = _Sorting(problems, timed)
    try:
        for episode, step in batches():
            sorting.add(episode, step)
        return sorting.finished()
    except _UnsortedError:
        problems.clear()
        return None


def sorted_rows(batches: Batches, problems: Problems, timed: bool = False) -> Order:
    """The same where rows stand in any order."""
    parts = list(batches())
    episode = np.concatenate([part[0] for part in parts])
    steps = [part[1] for part in parts if part[1] is not None]
    step = np.concatenate(steps) if steps else None
    del parts, steps
    if not timed and (found := _by_counting(episode, step)) is not None:
        return found
    row = _argsort(episode, step)
    sorting = _Sorting(problems, timed)
    for chunk in chunks(len(row)):
        at = row[chunk]
        sorting.add(episode[at], None if step is None else step[at], at)
    del episode, step
    found = sorting.finished()
    return Order(found.starts, found.episodes, _inverse(row))


class _Sorting:
    """Goes over rows that should be in order; keeps one row, and one number for each episode."""

    def __init__(self, problems: Problems, timed: bool) -> None:
        self.problems, self.timed = problems, timed
        self.n = 0
        self.last: tuple[int, int] | None = None
        self.starts: list[np.ndarray] = []
        self.episodes: list[np.ndarray] = []
        self.first_steps: list[np.ndarray] = []
        self.first_rows: list[np.ndarray] = []

    def add(self, episode: np.ndarray, step: np.ndarray | None, rows: np.ndarray | None = None) -> None:
        """The next rows; `rows` are their numbers in the source, where they do not stand in order."""
        if not len(episode):
            return
        begin = None
        if step is not None and self.last is not None and episode[0] != MISSING:
            room = np.empty(len(episode), np.int64)
            found = _beginnings(episode, step, *self.last, room)
            begin = None if found < 0 else room[:found]
        if begin is None:  # something is not as it should be, or it is the first batch
            rows = np.arange(self.n, self.n + len(episode)) if rows is None else rows
            begin = self._checked(episode, step, rows)
        self.starts.append(begin + self.n)
        self.episodes.append(episode[begin])
        self.first_rows.append(begin + self.n if rows is None else rows[begin])
        self.first_steps.append(np.zeros(0, np.int64) if step is None else step[begin])
        self.last = int(episode[-1]), 0 if step is None else int(step[-1])
        self.n += len(episode)

    def _checked(self, episode: np.ndarray, step: np.ndarray | None, rows: np.ndarray) -> np.ndarray:
        """Where episodes begin among these rows."""
        begin = 1 + np.flatnonzero(episode[1:] != episode[:-1])
        down = (episode[begin] < episode[begin - 1]).any()
        if self.last is None or episode[0] != self.last[0]:
            down |= self.last is not None and episode[0] < self.last[0]
            begin = np.append(0, begin)
        if down:
            raise _UnsortedError
        if episode[0] == MISSING:  # which sorts first
            self.problems.add("episode is missing", rows[episode == MISSING])
        if step is not None:
            self._steps(episode, step, begin, rows)
        return begin

    def _steps(self, episode: np.ndarray, step: np.ndarray, begin: np.ndarray, rows: np.ndarray) -> None:
        last = step[:1] if self.last is None else [self.last[1]]
        ahead = np.diff(step, prepend=last)
        ahead[begin] = 1
        if (ahead == 1).all() and (step[begin] != MISSING).all():
            return
        before = np.append(last, step[:-1])
        down = step < before
        down[begin] = False
        if down.any():
            raise _UnsortedError
        known = (episode != MISSING) & (step != MISSING)
        self.problems.add("step is missing or not a whole number", rows[step == MISSING])
        if self.timed:
            self.problems.add(SAME_TIME, rows[known & (ahead == 0)])
            return
        self.problems.add("a step that its episode already has", rows[known & (ahead == 0)])
        self.problems.add("a gap before this step", rows[known & (before != MISSING) & (ahead != 0) & (ahead != 1)])

    def finished(self) -> Order:
        """All rows were given: an episode must begin at 0, or, if none does, at 1."""
        starts = np.concatenate([*self.starts, [self.n]]).astype(np.int64)
        episodes = np.concatenate(self.episodes) if self.episodes else np.zeros(0, np.int64)
        steps = np.concatenate(self.first_steps) if self.first_steps else np.zeros(0, np.int64)
        if len(steps) and not self.timed:
            known = (steps != MISSING) & (episodes != MISSING)
            base = int(known.any() and steps[known].min() >= 1)
            late = known & (steps != base)
            self.problems.add(f"its episode does not begin at step {base}", np.concatenate(self.first_rows)[late])
        return Order(starts, episodes)


def _by_counting(episode: np.ndarray, step: np.ndarray | None) -> Order | None:
    """The order without sorting, where episodes are numbered without large gaps, and steps without any. None: they are not."""
    first, last = int(episode.min()), int(episode.max())
    if last - first >= 2 * len(episode) + CHUNK:  # a row that is MISSING is far from all others, too
        return None
    base = 0 if step is None else int(step.min())
    if base not in (0, 1):
        return None
    counts = np.zeros(last - first + 1, np.int64)
    _count(episode, first, counts)
    starts = np.concatenate([[0], np.cumsum(counts)])
    place = np.empty(len(episode), np.int64)
    if step is None:
        _place_as_they_come(episode, first, starts[:-1].copy(), place)
    elif not _place_by_step(episode, step, first, base, starts, np.zeros(len(episode), np.bool_), place):
        return None
    there = np.flatnonzero(counts)
    return Order(np.append(starts[there], len(episode)), there + first, place)


@cached_njit(nogil=True)
def _beginnings(episode, step, last_episode, last_step, begin):
    """How many episodes begin; `begin` is set to their first rows. −1: they do not go up, or steps do not go up by one."""
    found = 0
    for i in range(len(episode)):
        if episode[i] == last_episode:
            if step[i] != last_step + 1:
                return -1
        elif episode[i] < last_episode or step[i] == MISSING:
            return -1
        else:
            begin[found] = i
            found += 1
        last_episode, last_step = episode[i], step[i]
    return found


@cached_njit(nogil=True)
def _count(episode, first, counts):
    for each in episode:
        counts[each - first] += 1


@cached_njit(nogil=True)
def _place_as_they_come(episode, first, following, place):
    """The rows of an episode in the order in which they stand; `following` [episodes] has the place of the next one."""
    for i in range(len(episode)):
        each = episode[i] - first
        place[i] = following[each]
        following[each] += 1


@cached_njit(nogil=True)
def _place_by_step(episode, step, first, base, starts, taken, place):
    """The place of each row; False where one would be outside its episode, or taken already."""
    for i in range(len(episode)):
        each = episode[i] - first
        at = starts[each] + step[i] - base
        if step[i] < base or at >= starts[each + 1] or taken[at]:
            return False
        taken[at] = True
        place[i] = at
    return True


def _argsort(episode: np.ndarray, step: np.ndarray | None) -> np.ndarray:
    """Return the rows in the order of (episode, step), by a stable sort: of one key, if they fit into it, which is faster."""
    if step is None:
        return np.argsort(episode, kind="stable")
    low, high = (int(step.min()), int(step.max())) if len(step) else (0, 0)
    width, first, last = high - low + 1, int(episode.min()), int(episode.max())
    if low == MISSING or first == MISSING or (last - first + 1) * width >= 2**63:
        return np.lexsort((step, episode))
    return np.argsort((episode - first) * width + (step - low), kind="stable")


def _inverse(permutation: np.ndarray) -> np.ndarray:
    inverse = np.empty_like(permutation)
    for chunk in chunks(len(permutation)):
        inverse[permutation[chunk]] = np.arange(chunk.start, chunk.stop)
    return inverse


def chunks(n: int) -> Iterator[slice]:
    """0 … n in pieces that fit a cache."""
    for begin in range(0, n, CHUNK):
        yield slice(begin, min(begin + CHUNK, n))
