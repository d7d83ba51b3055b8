"""How commands about logs are told what to read: the dataset's columns, and what to do with impossible values."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from offtrace._shared.suggestions import did_you_mean
from offtrace.cli.log_policies import Target
from offtrace.logs.container import Logs
from offtrace.logs.reading.columns import CONTINUOUS, Columns, Names


def add_options(command: argparse.ArgumentParser, *, drops: bool) -> None:
    """Add the options of reading; `drops`: those of episodes that may be dropped, too."""
    group = command.add_argument_group("reading")
    group.add_argument(
        "--columns",
        nargs="+",
        default=[],
        metavar="WHAT=COLUMN",
        help=f"what the columns are called, as in state=x,y mu=p next_state=; nothing after = is none. "
        f"WHAT is {', '.join(field.name for field in fields(Columns))}",
    )
    group.add_argument(
        "--truncated",
        choices=("never", "at-end"),
        help="where no column says it: no episode was cut, or those whose last step is not terminated",
    )
    if not drops:
        return
    group.add_argument(
        "--actions",
        nargs="+",
        metavar="NAME",
        help="their names in the order of the policy's columns, or how many there are; or `continuous`: they are real numbers, "
        "and μ are densities (several columns, action=x,y, and lists are so without it)",
    )
    group.add_argument(
        "--states",
        nargs="+",
        metavar="NAME",
        help="their names in the order of the policy's rows, or how many there are",
    )
    group.add_argument(
        "--on-error", choices=("raise", "drop"), default="raise", help="drop: leave out episodes with impossible values"
    )
    group.add_argument(
        "--drop-at-most",
        type=float,
        default=0.05,
        metavar="X",
        help="the share of the episodes that may be dropped; more is an error (0.05)",
    )


def columns_of(texts: list[str]) -> Columns:
    """Columns as --columns has them."""
    known = [field.name for field in fields(Columns)]
    given: dict[str, Any] = {}  # `Columns` checks them
    for text in texts:
        what, equals, column = text.partition("=")
        if not equals or what not in known:
            raise ValueError(
                f"--columns takes WHAT=COLUMN, got {text!r}{did_you_mean(what, known)}: WHAT is {', '.join(known)}; "
                "DATASET comes before it"
            )
        several = tuple(column.split(","))
        given[what] = several if len(several) > 1 else column or None
    return Columns(**given)


def read_logs(args: argparse.Namespace, target: Target | None) -> Logs:
    """The logs that a command names, with the states and actions of its target policy."""
    from offtrace.logs.reading.sources import read

    return read(
        args.dataset,
        columns=columns_of(args.columns),
        truncated="at end" if args.truncated == "at-end" else args.truncated,
        on_error=args.on_error,
        drop_at_most=args.drop_at_most,
        states=_names("states", args.states, None if target is None else target.states),
        actions=_names("actions", args.actions, None if target is None else target.actions),
    )


def names_given(texts: list[str] | None) -> Names:
    """States or actions as an option has them: how many there are, where it is one number; else their names."""
    if texts is None:
        return None
    numbers = all(text.removeprefix("-").isdecimal() for text in texts)
    if len(texts) == 1 and numbers:
        return int(texts[0])
    return tuple(int(text) for text in texts) if numbers else tuple(texts)


def _names(what: str, texts: list[str] | None, of_policy: Names) -> int | str | tuple[int | str, ...] | None:
    """The states or actions for `read`: what --states or --actions says of them, or the policy's."""
    if texts is None:
        return of_policy
    if what == "actions" and texts == [CONTINUOUS]:
        if of_policy is not None:
            raise ValueError(
                "--actions continuous says that actions are real numbers, but the policy is a table [S, A] of ids: give a "
                "Density or a Deterministic, --policy FILE.py:NAME, or a column of log π, --columns log_pi=…"
            )
        return CONTINUOUS
    said = names_given(texts)
    if isinstance(of_policy, tuple) and said != of_policy:
        raise ValueError(
            f"--{what} {' '.join(texts)} is another order than that of the policy's file, {' '.join(map(str, of_policy))}: leave "
            f"out --{what}, since the file says what its {what} are"
        )
    return said
