"""What is wrong with a log: each kind of it with the rows concerned, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from offtrace._shared.number_text import counted

FIRST = 5
"""How many names are listed."""


class LogsError(ValueError):
    """The log holds what cannot be; `problems` has every kind of it."""

    def __init__(self, message: str, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


@dataclass(frozen=True)
class Problem:
    """One kind of impossible value."""

    what: str
    rows: int
    """How many rows of the source have it."""
    episodes: int
    """How many episodes have such rows, as far as the rows say in which they are."""
    first: tuple[str, ...]
    """The first of these rows: their numbers in the source, from 0 on, with the episode and, if there are several, the file."""

    def __str__(self) -> str:
        more = ", …" if self.rows > len(self.first) else ""
        whose = counted(self.episodes, "episode") if self.episodes else "unknown episodes"
        return f"{self.what}: {counted(self.rows, 'row')} of {whose}: {', '.join(self.first)}{more}"


@dataclass(frozen=True)
class ReadReport:
    """What was read, and what was not."""

    source: str
    rows: int
    """How many rows the source has."""
    episodes: int
    """How many episodes the source has."""
    in_order: bool
    """Whether the rows were sorted by episode and step; if not, they are now."""
    problems: tuple[Problem, ...] = ()
    """What was wrong with the episodes that were dropped."""
    dropped: int = 0
    """How many episodes were dropped, whole."""
    dropped_rows: int = 0
    """How many rows the dropped episodes had."""
    nameless: int = 0
    """Rows that do not say of which episode they are, and were dropped too; how many episodes that were is not known."""
    only_next: int = 0
    """Last rows of truncated episodes which, for want of a next state, only are the next state of the row before."""
    emptied: int = 0
    """Truncated episodes of one row, of which nothing is left in this way."""
    passed_over: tuple[str, ...] = ()
    """Columns that were not declared, but whose names are those of optional columns."""
    dropped_return: float = float("nan")
    """The mean sum of rewards of the dropped episodes whose rewards are all known; NaN where there is none."""
    dropped_known: int = 0
    """How many these are."""
    kept_return: float = float("nan")
    """That of the others."""
    never: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict[str, "tuple[int | str, ...]"])
    """Names of states and actions that were given, and never occur in the source."""

    @property
    def loss(self) -> str:
        """Who was dropped, in words; nothing where nobody was."""
        if not self.dropped:
            return ""
        part = (
            f" (of the {self.dropped_known:,} whose rewards are all known)" if self.dropped_known < self.dropped else ""
        )
        means = f", with a mean sum of rewards of {self.dropped_return:.4g}{part} against {self.kept_return:.4g} of the rest"
        return (
            f"{self.dropped:,} of {self.episodes:,} episodes ({100 * self.dropped / self.episodes:.2g} %) were dropped"
            + (means if self.dropped_return == self.dropped_return else "")
            + ": if what was wrong with them depends on what happened, the rest is a biased sample"
        )

    def __str__(self) -> str:
        lines = [f"{self.source}: {counted(self.rows, 'row')}, {counted(self.episodes, 'episode')}"]
        if not self.in_order:
            lines.append("sorted by episode and step")
        if self.only_next:
            gone = f"; {counted(self.emptied, 'episode')} of one row vanished" if self.emptied else ""
            lines.append(
                f"the last row of {counted(self.only_next, 'truncated episode')} only served as the next state of the row "
                f"before, since no next_state is declared: its action and reward are not used{gone}"
            )
        lines += [
            f"the column {name!r} was not used, since it is not declared: Columns({name}={name!r}), or --columns {name}={name}"
            for name in self.passed_over
        ]
        if self.problems:
            rows = f", and {counted(self.nameless, 'row')} of unknown episodes" if self.nameless else ""
            lines.append(f"dropped {counted(self.dropped, 'episode')} ({counted(self.dropped_rows, 'row')}){rows}:")
            lines += [f"  {problem}" for problem in self.problems]
            lines += [self.loss] if self.loss else []
        for what, names in self.never.items():
            more = f" and {len(names) - FIRST} more" if len(names) > FIRST else ""
            lines.append(f"of the {what}s given, these never occur: {', '.join(map(repr, names[:FIRST]))}{more}")
        return "\n".join(lines)


def refusal(
    source: str, problems: tuple[Problem, ...], concerned: int, episodes: int, drop: float | None, tied: bool
) -> LogsError:
    """Make the error that names all problems. `drop`: the share of episodes that may be dropped; `tied`: times do not tell."""
    remedy = 'Mend it, or leave these episodes out, whole, with on_error="drop" (--on-error drop).'
    if tied:
        remedy = (
            "No episode is dropped for this: the column of times does not say the order of the rows. Name another one with "
            "Columns(step=…), or, if the rows of an episode stand in order, Columns(step=None) (--columns step=)."
        )
    elif drop is not None and concerned >= episodes:
        remedy = "Nothing would be left without them."
    elif drop is not None:
        remedy = (
            f"That is {100 * concerned / episodes:.3g} % of the episodes, and at most {100 * drop:g} % may be dropped: the rest "
            "may be a biased sample. Mend it, or allow more with drop_at_most (--drop-at-most)."
        )
    lines = [
        f"{source} holds what cannot be, in {concerned:,} of {counted(episodes, 'episode')}:",
        *(f"  {problem}" for problem in problems),
        remedy,
    ]
    return LogsError("\n".join(lines), problems)
