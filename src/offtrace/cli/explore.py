"""`offtrace explore`, which writes and opens the page on which one sees what a trace does."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from offtrace.cli.commands import Commands


def add(commands: Commands) -> None:
    """Add the command to those of `offtrace`."""
    explore = commands.add_parser(
        "explore",
        help="see what a trace does: one page, live, without a network",
        description="One page with every rule: drag ratios, and watch credit, contraction and variance.",
    )
    explore.add_argument(
        "--output", "-o", type=Path, default=Path("explorer.html"), metavar="FILE", help="the page (explorer.html)"
    )
    explore.add_argument("--no-open", dest="open", action="store_false", help="do not open it")
    explore.add_argument(
        "--module",
        action="append",
        default=[],
        metavar="NAME",
        help="import a Python module first, whose rules are then on the page; this executes it",
    )
    explore.set_defaults(run=_explore)


def _explore(args: argparse.Namespace) -> int:
    from offtrace import reports  # here, so that --help and --version need not wait for Numba

    try:
        for name in args.module:
            import_module(name)
        page = reports.write_explorer(args.output, open_browser=args.open)
    except (ImportError, OSError) as error:
        print(f"offtrace explore: {error}", file=sys.stderr)
        return 1
    print(f"The page: {page}")
    return 0
