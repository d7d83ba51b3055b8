"""`offtrace methods`, which prints the table of all learning methods."""

from __future__ import annotations

import argparse
import sys

from offtrace._shared.suggestions import closest, ending
from offtrace.cli.commands import Commands


def add(commands: Commands) -> None:
    """Add the command to those of `offtrace`."""
    methods = commands.add_parser(
        "methods",
        help="print all learning methods: equation, source, what is proven, what each needs, one line of code",
        description="All learning methods of offtrace.learners, and every trace by itself.",
    )
    methods.add_argument("name", nargs="?", help="print those whose name has this in it")
    form = methods.add_mutually_exclusive_group()
    form.add_argument("--json", dest="form", action="store_const", const="json", help="print JSON")
    form.add_argument(
        "--markdown", dest="form", action="store_const", const="markdown", help="print a table for the docs"
    )
    methods.set_defaults(run=_methods)


def _methods(args: argparse.Namespace) -> int:
    from offtrace.learners.methods import (
        registry as table,  # here, so that --help and --version need not wait for Numba
    )
    from offtrace.learners.methods.registry import key

    rows = table.rows()
    if args.name is not None:
        wanted = key(args.name)
        found = [row for row in rows if wanted in key(row.name) or wanted in key(row.call.split(",")[0])]
        if not found:
            near = closest(wanted, [key(row.name) for row in rows])
            hint = ending(next((row.name for row in rows if key(row.name) == near), None))
            sys.stderr.write(f"offtrace methods: there is none with {args.name!r} in its name{hint}\n")
            return 2
        rows = found
    made = {"json": table.as_json, "markdown": table.as_markdown, None: table.as_text}[args.form]
    sys.stdout.write(made(rows) + "\n")
    return 0
