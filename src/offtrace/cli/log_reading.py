"""How commands about logs read a dataset: which columns it has, and what to do with impossible values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import arg

from offtrace._shared.suggestions import did_you_mean
from offtrace.cli.log_policies import Target
from offtrace.cli.options import with_plain_help
from offtrace.logs.container import Logs
from offtrace.logs.reading.columns import CONTINUOUS, Columns
from offtrace.logs.reading.columns import Names as GivenNames

WHAT = ", ".join(field.name for field in fields(Columns))
Names = Annotated[tuple[str, ...] | None, arg(metavar="NAME [NAME …]")]
ColumnWords = Annotated[
    tuple[tuple[str, ...], ...],
    tyro.conf.UseAppendAction,
    arg(
        metavar="WHAT=COLUMN […]",
        help=f"what the columns are called, as in state=x,y mu=p next_state=; nothing after = is none. WHAT is {WHAT}",
    ),
]


@with_plain_help
@dataclass(frozen=True)
class ReadColumns:
    """The options of reading of every command about logs."""

    columns: ColumnWords = ()
    truncated: Literal["never", "at-end"] | None = None
    """where no column says it: no episode was cut, or those whose last step is not terminated"""

    def named(self) -> Columns:
        """The columns that `--columns` names."""
        names = [field.name for field in fields(Columns)]
        given: dict[str, Any] = {}  # `Columns` checks them
        for text in (word for words in self.columns for word in words):
            what, equals, column = text.partition("=")
            if not equals or what not in names:
                raise ValueError(
                    f"--columns takes WHAT=COLUMN, got {text!r}{did_you_mean(what, names)}: WHAT is {WHAT}; "
                    "DATASET comes before it"
                )
            several = tuple(column.split(","))
            given[what] = several if len(several) > 1 else column or None
        return Columns(**given)

    def cuts(self) -> Literal["never", "at end"] | None:
        """`--truncated` as `read` takes it."""
        return "at end" if self.truncated == "at-end" else self.truncated


@with_plain_help
@dataclass(frozen=True)
class ReadOptions(ReadColumns):
    """The options of reading where episodes can be dropped, too."""

    on_error: Literal["raise", "drop"] = "raise"
    """drop: leave out episodes with impossible values"""
    drop_at_most: float = 0.05
    """the share of the episodes that may be dropped; more is an error"""
    actions: Names = None
    """their names in the order of the policy's columns, or how many there are; or `continuous`: they are real numbers, and μ
    are densities (several columns, action=x,y, and lists are so without it)"""
    states: Names = None
    """their names in the order of the policy's rows, or how many there are"""


Reading = Annotated[ReadOptions, arg(name="")]


def read_logs(dataset: str, reading: ReadOptions, target: Target | None) -> Logs:
    """The logs that a command names, with the states and actions of its target policy."""
    from offtrace.logs.reading.sources import read

    return read(
        dataset,
        columns=reading.named(),
        truncated=reading.cuts(),
        on_error=reading.on_error,
        drop_at_most=reading.drop_at_most,
        states=_names("states", reading.states, None if target is None else target.states),
        actions=_names("actions", reading.actions, None if target is None else target.actions),
    )


def names_given(texts: tuple[str, ...] | None) -> GivenNames:
    """States or actions as an option has them: how many there are, where it is one number; else their names."""
    if texts is None:
        return None
    numbers = all(text.removeprefix("-").isdecimal() for text in texts)
    if len(texts) == 1 and numbers:
        return int(texts[0])
    return tuple(int(text) for text in texts) if numbers else texts


def _names(what: str, texts: tuple[str, ...] | None, of_policy: GivenNames) -> int | str | tuple[int | str, ...] | None:
    """The states or actions for `read`: what --states or --actions says of them, or the policy's."""
    if texts is None:
        return of_policy
    if what == "actions" and texts == (CONTINUOUS,):
        if of_policy is not None:
            raise ValueError(
                "--actions continuous says that actions are real numbers, but the policy is a table [S, A] of ids: give a "
                "Density or a Deterministic, --policy FILE.py:NAME, or a column of log π, --columns log_pi=…"
            )
        return CONTINUOUS
    given = names_given(texts)
    if isinstance(of_policy, tuple) and given != of_policy:
        raise ValueError(
            f"--{what} {' '.join(texts)} is another order than that of the policy's file, {' '.join(map(str, of_policy))}: leave "
            f"out --{what}, since the file says what its {what} are"
        )
    return given
