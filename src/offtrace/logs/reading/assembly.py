"""From the rows of a source to logs: they are sorted by episode and step, checked, and what is wrong is refused or dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from offtrace.logs.container import Logs
from offtrace.logs.reading.columns import CONTINUOUS, MISSING, NO_FLAG, NUMBERS, UNKNOWN, Names
from offtrace.logs.reading.problems import LogsError, Problem, ReadReport, refusal
from offtrace.trajectory import TOLERANCE

if TYPE_CHECKING:
    from offtrace.logs.reading.conversion import Conversion

DENSE = 1 << 16
"""Integers from 0 to less than this, or than the number of steps, are ids as they are; others are numbered anew."""
FIRST = 5
"""How many rows are named for each kind of problem."""
SAME_TIME = "two rows of an episode at the same time, so that it is not known which came first"
"""Never dropped: it is not these episodes that are wrong, but the column that says their order."""


@dataclass
class Rows:
    """N rows of a source, sorted by episode and step."""

    how: Conversion
    """What is known of the columns."""
    episode: np.ndarray
    """[N] int64: ids or codes; MISSING, which sorts first, where a row does not say it."""
    step: np.ndarray | None
    """[N] int64, consecutive or times; None: there is no such column."""
    values: dict[str, np.ndarray]
    """state, action, reward, and what there is of terminated, truncated, next_state, mu and log_pi: [N] or [N, d]."""
    number: np.ndarray | None
    """[N]: the number of each row in the source; None: rows were sorted there."""
    keep: Mapping[str, np.ndarray]
    """[N]: further columns, of which an episode's first row says what holds for the episode."""
    cut_at_end: bool
    """An episode whose last step is not terminated was cut there."""

    def __post_init__(self) -> None:
        begin = np.flatnonzero(self.episode[1:] != self.episode[:-1]) + 1
        self.starts = np.concatenate([[0], begin, [len(self.episode)]]).astype(np.int64)
        self.problems: dict[str, list[np.ndarray]] = {}

    @property
    def ends(self) -> np.ndarray:
        """[E]: the last row of each episode."""
        return self.starts[1:] - 1

    @property
    def nameless(self) -> bool:
        """Whether the first episode is none, but the rows that do not say of which they are."""
        return bool(self.episode[0] == MISSING)

    def words(self, row: int) -> str:
        """A row of the source, in words that its user understands."""
        table, names = self.how.table, self.how.episodes
        if table.in_words is not None:
            return table.in_words(row)
        code = int(self.episode[row if self.number is None else np.flatnonzero(self.number == row)[0]])
        name = repr(names[code]) if isinstance(names, tuple) and code != MISSING else str(code)
        return f"{table.words(row)} (episode {'missing' if code == MISSING else name})"

    def note(self, what: str, where: np.ndarray) -> None:
        """Note a problem of the rows where this is true."""
        if where.any():
            self.problems.setdefault(what, []).append(np.flatnonzero(where))

    def settled(self) -> tuple[tuple[Problem, ...], np.ndarray]:
        """Every kind of problem, and the indices of the episodes concerned."""
        kinds: list[Problem] = []
        concerned = [np.zeros(0, np.int64)]
        for what, parts in self.problems.items():
            rows = np.concatenate(parts)
            episodes = np.unique(np.searchsorted(self.starts, rows, side="right") - 1)
            number = np.sort(rows if self.number is None else self.number[rows])
            known = len(episodes) - int(self.nameless and episodes[0] == 0)
            kinds.append(Problem(what, len(rows), known, tuple(self.words(int(row)) for row in number[:FIRST])))
            concerned.append(episodes)
        return tuple(kinds), np.unique(np.concatenate(concerned))


def assembled(rows: Rows, drop: float | None) -> Logs:
    """The logs, if nothing is wrong with the rows, or without the episodes where something is: at most a share `drop` of all."""
    _check_order(rows)
    terminated, truncated = _flag(rows, "terminated"), _flag(rows, "truncated")
    _check_values(rows, terminated)
    _check_ends(rows, terminated, truncated)
    truncated &= ~terminated
    problems, concerned = rows.settled()
    how = rows.how
    lengths, nameless = np.diff(rows.starts), rows.nameless
    episodes = len(lengths) - nameless
    if problems:
        tied = any(problem.what == SAME_TIME for problem in problems)
        refused = drop is None or tied or len(concerned) - nameless > drop * episodes
        if refused or len(concerned) == len(lengths):
            raise refusal(how.table.name, problems, len(concerned) - nameless, episodes, drop, tied)
    good = np.ones(len(lengths), np.bool_)
    good[concerned] = False
    has_next = "next_state" in rows.values
    only_next = np.zeros_like(good) if has_next else truncated[rows.ends]
    left = good & (lengths > only_next)
    if not left.any():
        raise LogsError(
            f"{how.table.name}: nothing is left, since every episode is one truncated step whose next state is not known: "
            "declare Columns(next_state=…)"
        )
    is_step = np.repeat(left, lengths)
    is_step[rows.ends[only_next]] = False
    dropped_return, kept_return, known = _mean_returns(rows, good, rows.ends[only_next])
    if not has_next:
        state = rows.values["state"]
        rows.values["next_state"] = np.concatenate([state[1:], state[-1:]])
    kept = {name: array if is_step.all() else array[is_step] for name, array in rows.values.items()}
    starts = np.concatenate([[0], np.cumsum((lengths - only_next)[left])])
    flags = {name: np.zeros(starts[-1], np.bool_) for name in ("terminated", "truncated")}
    for name, ended in zip(flags, (terminated[rows.ends[left]], ~terminated[rows.ends[left]]), strict=True):
        flags[name][starts[1:] - 1] = ended
    if not has_next:  # not read there, and the following row is another episode's
        kept["next_state"][flags["terminated"]] = kept["state"][flags["terminated"]]
    report = ReadReport(
        source=how.table.name,
        rows=len(rows.episode),
        episodes=episodes,
        in_order=rows.number is None,
        problems=problems,
        dropped=len(concerned) - nameless,
        dropped_rows=int(lengths[concerned[int(nameless) :]].sum()),
        nameless=int(lengths[0]) if nameless else 0,
        only_next=int((good & only_next).sum()),
        emptied=int((good & ~left).sum()),
        dropped_return=dropped_return,
        kept_return=kept_return,
        dropped_known=known,
        never={what: tuple(names) for what, names in how.never.items() if names},
        passed_over=how.columns.passed_over(how.schema.names()),
    )
    states, state_names = _numbered(kept, ("state", "next_state"), how.states)
    actions, action_names = _numbered(kept, ("action",), how.actions)
    names = {"states": state_names, "actions": action_names}
    return Logs(
        starts=starts,
        state=kept["state"],
        next_state=kept["next_state"],
        action=kept["action"],
        reward=kept["reward"],
        **flags,
        log_mu=kept.get("mu"),
        log_pi=kept.get("log_pi"),
        states=states,
        actions=actions,
        state_names=state_names,
        action_names=action_names,
        sorted_names=tuple(what for what, known in zip(names, how.given, strict=True) if known is None and names[what]),
        kept={name: array[rows.starts[:-1][left]] for name, array in rows.keep.items()},
        report=report,
    )


def _check_order(rows: Rows) -> None:
    """Steps go up by one, from 0, or, if no episode begins there, from 1; times only go up."""
    no_episode = rows.episode == MISSING
    rows.note("episode is missing", no_episode)
    if (step := rows.step) is None:
        return
    inner = np.ones(len(step), np.bool_)
    inner[rows.starts[:-1]] = False
    ahead = np.diff(step, prepend=step[:1])
    if not rows.how.timed and (ahead[inner] == 1).all() and (step[~inner] == step[0]).all() and step[0] in (0, 1):
        return
    rows.note("step is missing or not a whole number", step == MISSING)
    known = ~no_episode & (step != MISSING)
    if rows.how.timed:
        rows.note(SAME_TIME, known & inner & (ahead == 0))
        return
    rows.note("a step that its episode already has", known & inner & (ahead == 0))
    after_known = np.append(False, step[:-1] != MISSING)
    rows.note("a gap before this step", known & inner & after_known & (ahead != 0) & (ahead != 1))
    first = known & ~inner
    base = int(first.any() and step[first].min() >= 1)
    rows.note(f"its episode does not begin at step {base}", first & (step != base))


def _flag(rows: Rows, name: str) -> np.ndarray:
    """Terminated or truncated as booleans; all False where there is no such column."""
    flag = rows.values.pop(name, None)
    if flag is None:
        return np.zeros(len(rows.episode), np.bool_)
    rows.note(f"{name} is missing, or neither 0 nor 1", flag == NO_FLAG)
    return flag == 1


def _check_values(rows: Rows, terminated: np.ndarray) -> None:
    values, how = rows.values, rows.how
    is_log = how.columns.log_mu is not None
    if (
        following := values.get("next_state")
    ) is not None:  # after a terminated step it is not read, and may be missing
        lacks = terminated & (following == MISSING if following.ndim == 1 else ~np.isfinite(following).all(axis=1))
        if lacks.any():
            values["next_state"] = following = following.copy()
            following[lacks] = values["state"][lacks]
    for name, known in (("state", how.states), ("next_state", how.states), ("action", how.actions)):
        if name in values:
            _check_ids(rows, name, known) if values[name].ndim == 1 else _check_numbers(rows, name)
    _check_numbers(rows, "reward")
    numbers = values["action"].ndim == 2
    if "mu" in values:
        given = values["mu"]
        with np.errstate(divide="ignore", invalid="ignore"):
            values["mu"] = log_mu = given if is_log else np.log(given)
        most = np.finfo(np.float64).max if numbers else TOLERANCE  # a density may be above 1
        wrong = ~((log_mu <= most) & (log_mu > -np.inf))
        if wrong.any():
            rows.note(_wrong_mu(given, is_log, numbers), wrong)
    if "log_pi" in values:
        rows.note("log_pi is missing, NaN or +∞", ~(values["log_pi"] < np.inf))


def _check_numbers(rows: Rows, name: str) -> None:
    fine: Any = np.isfinite(rows.values[name].reshape(len(rows.episode), -1)).all(axis=1)
    rows.note(f"{name} is missing, NaN or infinite", ~fine)


def _check_ids(rows: Rows, name: str, known: Names) -> None:
    ids = rows.values[name]
    numbers = f' (if actions are real numbers: actions="{CONTINUOUS}")' if name == "action" else ""
    rows.note(f"{name} is missing or not a whole number{numbers}", ids == MISSING)
    if isinstance(known, int):
        kind = name.removeprefix("next_")
        rows.note(
            f"{name} is none of the {known:,} that there are, 0 to {known - 1:,} ({kind}s={known})",
            ((ids < 0) | (ids >= known)) & (ids != MISSING),
        )
    elif isinstance(known, tuple):
        rows.note(f"{name} is none of those that were given{rows.how.hints.get(name, '')}", ids == UNKNOWN)


def _wrong_mu(given: np.ndarray, is_log: bool, numbers: bool) -> str:
    if numbers:
        return "log_mu is missing or infinite" if is_log else "mu, a density, is missing, infinite or not above 0"
    if is_log:
        return "log_mu is missing, −∞ or above 0"
    percent = np.nanmedian(given) > 1.0 and np.nanmax(given) <= 100.0 and np.nanmin(given) > 0.0
    more = ": the numbers look like percent; divide them by 100" if percent else ""
    return f"mu is missing or outside (0, 1]{more}"


def _check_ends(rows: Rows, terminated: np.ndarray, truncated: np.ndarray) -> None:
    """An episode ends with its last step, and there only; the rows without an episode have no end."""
    last = np.zeros(len(terminated), np.bool_)
    last[rows.ends] = True
    named = rows.episode != MISSING
    ended = terminated | truncated
    early = ended & ~last & named
    rows.note("a step after its episode's end", np.append(False, early[:-1]))
    still_going = last & ~ended & named
    if rows.cut_at_end:
        truncated |= still_going
    else:
        rows.note(
            'the last step of its episode, but neither terminated nor truncated (if it was cut there: truncated="at end")',
            still_going,
        )


def _mean_returns(rows: Rows, good: np.ndarray, not_steps: np.ndarray) -> tuple[float, float, int]:
    """The mean sum of rewards of the episodes that are dropped, if all their rewards are known, that of the others, and how many
    of the dropped are known."""
    if good.all():
        return float("nan"), float("nan"), 0
    reward = rows.values["reward"].copy()
    reward[not_steps] = 0.0
    sums = np.add.reduceat(reward, rows.starts[:-1])
    known = np.isfinite(sums) & ~good
    known[0] &= not rows.nameless
    return float(sums[known].mean()) if known.any() else float("nan"), float(sums[good].mean()), int(known.sum())


def _numbered(kept: dict[str, np.ndarray], of: tuple[str, ...], known: Names) -> tuple[int, tuple[int | str, ...]]:
    """How many ids there are, and their names; integers that are no ids become ids."""
    if kept[of[0]].ndim == 2:
        return NUMBERS, ()
    if isinstance(known, tuple):
        return len(known), known
    if isinstance(known, int):
        return known, ()
    low, high = min(int(kept[name].min()) for name in of), max(int(kept[name].max()) for name in of)
    if low >= 0 and high < max(DENSE, len(kept[of[0]])):
        return high + 1, ()
    names = np.unique(np.concatenate([np.unique(kept[name]) for name in of]))
    for name in of:
        kept[name] = np.searchsorted(names, kept[name])
    return len(names), tuple(names.tolist())
