"""What the commands have in common: what each is added to, and how it is run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Protocol

Run = Callable[[argparse.Namespace], int]
"""What a command does with its arguments; it returns the exit status."""

INTERRUPTED = 130
"""The exit status after Ctrl-C, by the convention of shells."""


class Commands(Protocol):
    """What `add_subparsers` of argparse returns, which has no public name."""

    def add_parser(
        self, name: str, *, help: str, description: str, usage: str | None = None
    ) -> argparse.ArgumentParser:
        """Add a command."""
        ...


def commands_of(parser: argparse.ArgumentParser) -> Commands:
    """What the commands of a parser are added to. Whoever names none of them reads which there are."""

    def helped(args: argparse.Namespace) -> int:
        parser.print_help()
        return 2

    parser.set_defaults(run=helped)
    return parser.add_subparsers(metavar="COMMAND")
