"""How commands about logs are told what to read: the dataset's columns, and what to do with impossible values."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from offtrace._shared.suggestions import did_you_mean
from offtrace.cli.log_policies import Target
from offtrace.logs.container import Logs
from offtrace.logs.reading.columns import Columns


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
        choices=("continuous",),
        help="they are real numbers, and μ are densities; several columns (action=x,y) and lists are so without it",
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
        states=None if target is None else target.states,
        actions=_actions(args.actions, target),
    )


def _actions(said: str | None, target: Target | None) -> int | str | tuple[int | str, ...] | None:
    """The actions for `read`: what --actions says of them, or the policy's."""
    of_policy = None if target is None else target.actions
    if said is not None and of_policy is not None:
        raise ValueError(
            "--actions continuous says that actions are real numbers, but the policy is a table [S, A] of ids: give a Density or "
            "a Deterministic, --policy FILE.py:NAME, or a column of log π, --columns log_pi=…"
        )
    return said if said is not None else of_policy
