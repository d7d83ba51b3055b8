"""The options of commands about logs: what to read, the rule, and the target policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg

from offtrace._shared.suggestions import did_you_mean
from offtrace.cli.log_policies import Target
from offtrace.cli.options import command_options
from offtrace.cli.rule_options import named_or_in_file, parameters
from offtrace.logs.container import Logs
from offtrace.logs.reading.columns import CONTINUOUS, Columns
from offtrace.logs.reading.columns import Names as GivenNames
from offtrace.traces import Trace

WHAT = ", ".join(field.name for field in fields(Columns))
COLUMNS = f"what the columns are called, as in state=x,y mu=p next_state=; nothing after = is none. WHAT is {WHAT}"
POLICY = (
    "the target: an .npz file of `probabilities` [S, A] and, where the log has names, `states` and `actions`; or FILE.py:NAME, a "
    "function (states → probabilities) or a classifier that the Python file makes, or, where actions are real numbers, a "
    "Density or a Deterministic (none: --columns log_pi=…). offtrace executes the whole file: name only files that you would run "
    "yourself"
)
Names = Annotated[tuple[str, ...] | None, arg(metavar="NAME [NAME …]")]
Rule = Annotated[Mapping[str, Any], arg(name="", constructor_factory=parameters)]
ColumnWords = Annotated[
    tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, arg(metavar="WHAT=COLUMN […]", help=COLUMNS)
]


@command_options
class Dataset:
    """What to read."""

    dataset: Positional[str]  # a table, a folder or a pattern of them, or a Minari dataset
    columns: ColumnWords = ()
    # where no column says it: no episode was cut, or those whose last step is not terminated
    truncated: Literal["never", "at-end"] | None = None

    def named(self, *further: str | None) -> Columns:
        """The columns that `--columns` names, and further ones to keep."""
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
        keep = given.get("keep") or ()
        given["keep"] = tuple(dict.fromkeys([*([keep] if isinstance(keep, str) else keep), *filter(None, further)]))
        return Columns(**given)

    def cuts(self) -> Literal["never", "at end"] | None:
        """`--truncated` as `read` takes it."""
        return "at end" if self.truncated == "at-end" else self.truncated


@command_options
class Reading(Dataset):
    """What to read where all of it fits into memory, so that episodes can be dropped."""

    on_error: Literal["raise", "drop"] = "raise"  # drop: leave out episodes with impossible values
    drop_at_most: float = 0.05  # the share of the episodes that may be dropped; more is an error
    # their names in the order of the policy's columns, or how many there are; or `continuous`: they are real numbers, and μ
    # are densities (several columns, action=x,y, and lists are so without it)
    actions: Names = None
    states: Names = None  # their names in the order of the policy's rows, or how many there are

    def read(self, target: Target | None, *further: str | None) -> Logs:
        """The logs, with the states and actions of the target policy, and with further columns."""
        from offtrace.logs.reading.sources import read

        return read(
            self.dataset,
            columns=self.named(*further),
            truncated=self.cuts(),
            on_error=self.on_error,
            drop_at_most=self.drop_at_most,
            states=_names("states", self.states, None if target is None else target.states),
            actions=_names("actions", self.actions, None if target is None else target.actions),
        )


@command_options
class ByTrace(Dataset):
    """The rule of an estimate."""

    gamma: float  # the discount γ
    # of the fitted estimate, by its name, or FILE.py:NAME, a trace that the Python file makes. offtrace executes the whole file:
    # name only files that you would run yourself. By default λ = 0, and more only where the logs ask for it
    trace: Annotated[str | None, arg(metavar="NAME")] = None
    rule: Rule = field(default_factory=dict)

    def rule_of(self) -> Trace | None:
        """The trace with its parameters; None where none is named, nor any parameter."""
        if self.trace is None and not self.rule:
            return None
        return named_or_in_file(self.trace or "rbis", self.rule, gamma=self.gamma)


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
