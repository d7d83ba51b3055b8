"""Logs of the arrays that are filled: episodes are checked, what is wrong is dropped or refused, and ids are numbered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from offtrace.logs.container import Following, Logs
from offtrace.logs.reading.checked_copies import range_of
from offtrace.logs.reading.columns import MISSING, NUMBERS, Names
from offtrace.logs.reading.filling import Filling
from offtrace.logs.reading.ordering import SAME_TIME, Order, chunks
from offtrace.logs.reading.problems import LogsError, ReadReport, refusal

DENSE = 1 << 16
"""Integers from 0 to less than this, or than the number of steps, are ids as they are; others are numbered anew."""


def finished(
    filling: Filling,
    order: Order,
    source: str,
    *,
    drop: float | None,
    words: Callable[[int], str],
    given: tuple[Names, Names],
) -> Logs:
    """The logs, if nothing is wrong with them, or without the episodes where something is: at most a share `drop` of all.

    `given`: what the user, or the source's spaces, say of states and actions; the names of others are sorted.
    """
    lengths, ends = np.diff(order.starts), order.starts[1:] - 1
    _check_ends(filling, order)
    filling.truncated[ends] &= ~filling.terminated[ends]
    nameless = bool(order.episodes[0] == MISSING)  # which sorts first
    problems, concerned = filling.problems.settled(order.episode, words, nameless)
    if problems:
        at_once = any(problem.what == SAME_TIME for problem in problems)
        refused = drop is None or at_once or len(concerned) - nameless > drop * (len(ends) - nameless)
        if refused or len(concerned) == len(ends):
            raise refusal(source, problems, len(concerned) - nameless, len(ends) - nameless, None if at_once else drop)
    good = np.ones(len(ends), np.bool_)
    good[concerned] = False
    cut = np.zeros_like(good) if filling.has_next else filling.truncated[ends]
    kept = np.where(good, lengths - cut, 0)
    if not (left := kept > 0).any():
        raise LogsError(
            f"{source}: nothing is left, since every episode is one truncated step whose next state is not known: "
            "declare Columns(next_state=…)"
        )
    returns = _mean_returns(filling, good, lengths - cut if filling.at_once else lengths, nameless)
    beyond = np.concatenate(filling.beyond) if filling.at_once else filling.state[ends[cut]]
    beyond = beyond[(good & (lengths > 1))[cut]]
    if good.all() and (filling.at_once or not cut.any()):
        _keep(filling, slice(kept.sum()))
    else:
        filling.largest.clear()
        keep = np.repeat(good, lengths - cut if filling.at_once else lengths)
        if not filling.at_once:
            keep[ends[cut]] = False
        _keep(filling, keep)
    starts = np.concatenate([[0], np.cumsum(kept[left])])
    terminated = filling.terminated[ends[left]]
    for name, flag in (("terminated", terminated), ("truncated", ~terminated)):
        setattr(filling, name, flags := getattr(filling, name)[: starts[-1]])
        flags[:] = False
        flags[starts[1:] - 1] = flag
    report = ReadReport(
        source=source,
        rows=filling.n,
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
        dropped_known=returns[2],
        never={what: tuple(names) for what, names in filling.never.items() if names},
        passed_over=filling.passed_over,
    )
    return _logs(filling, starts, beyond, report, given)


def _mean_returns(filling: Filling, good: np.ndarray, lengths: np.ndarray, nameless: bool) -> tuple[float, float, int]:
    """The mean sum of rewards of the episodes that are dropped, if all their rewards are known, that of the others, and how many
    of the dropped are known. `nameless`: the first is no episode."""
    nan = float("nan")
    if good.all():
        return nan, nan, 0
    sums = np.bincount(np.repeat(np.arange(len(lengths)), lengths), filling.reward[: lengths.sum()], len(lengths))
    known = np.isfinite(sums) & ~good
    known[0] &= not nameless
    return float(sums[known].mean()) if known.any() else nan, float(sums[good].mean()), int(known.sum())


def _check_ends(filling: Filling, order: Order) -> None:
    """An episode ends with its last step, and there only; the rows without an episode have no end."""
    ends = order.starts[1:] - 1
    ended = filling.terminated | filling.truncated
    inner = ends[:0]
    if np.count_nonzero(ended) > np.count_nonzero(ended[ends]):
        inner = np.setdiff1d(np.flatnonzero(ended), ends, assume_unique=True)
    if order.episodes[0] == MISSING:  # which sorts first
        inner = inner[inner > ends[0]]
    filling.problems.add("a step after its episode's end", np.sort(order.rows(inner + 1)))
    open_ends = ends[~(filling.terminated[ends] | filling.truncated[ends]) & (order.episodes != MISSING)]
    if filling.cut_at_end:
        filling.truncated[open_ends] = True
    else:
        filling.problems.add(
            'the last step of its episode, but neither terminated nor truncated (if it was cut there: truncated="at end")',
            np.sort(order.rows(open_ends)),
        )


def _keep(filling: Filling, keep: np.ndarray | slice) -> None:
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
    there = {name: array for name in names if (array := getattr(filling, name)) is not None}
    with ThreadPoolExecutor() as pool:  # NumPy does not hold the interpreter's lock meanwhile
        vars(filling).update(zip(there, pool.map(compressed, there.values()), strict=True))


def _logs(
    filling: Filling, starts: np.ndarray, beyond: np.ndarray, report: ReadReport, given: tuple[Names, Names]
) -> Logs:
    states, state_names = (0, ())
    if not filling.features:
        others = beyond if filling.next_state is None else filling.next_state
        states, state_names = _numbered((filling.state, others), filling.states, filling.largest.get("state"))
    actions, action_names = NUMBERS, ()
    if not filling.numbers:
        actions, action_names = _numbered((filling.action,), filling.actions, filling.largest.get("action"))
    return Logs(
        starts=starts,
        state=filling.state,
        next_state=Following(filling.state, filling.terminated, filling.truncated, beyond)
        if filling.next_state is None
        else filling.next_state,
        action=filling.action,
        reward=filling.reward,
        terminated=filling.terminated,
        truncated=filling.truncated,
        log_mu=filling.log_mu,
        log_pi=filling.log_pi,
        states=states,
        actions=actions,
        state_names=state_names,
        action_names=action_names,
        sorted_names=tuple(
            what
            for what, known, names in zip(("states", "actions"), given, (state_names, action_names), strict=True)
            if known is None and names
        ),
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
