"""`offtrace audit`, which decides the claims of the paper by computation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from offtrace._shared.progress_bar import ProgressBar
from offtrace.cli.commands import Commands


def add(commands: Commands) -> None:
    """Add the command to those of `offtrace`."""
    audit = commands.add_parser(
        "audit",
        help="decide every lemma, theorem and convergence claim of the paper",
        description="Every lemma, theorem and convergence claim of Daley and Amato (2021) as a row: computed now, never stored.",
    )
    form = audit.add_mutually_exclusive_group()
    form.add_argument("--json", dest="form", action="store_const", const="json", help="print JSON")
    form.add_argument(
        "--markdown", dest="form", action="store_const", const="markdown", help="print a page for the docs"
    )
    audit.add_argument("--output", "-o", type=Path, metavar="FILE", help="write to a file instead")
    audit.set_defaults(run=_audit)


def _audit(args: argparse.Namespace) -> int:
    from offtrace.operators.auditing import audit_table  # here, so that --help and --version need not wait for Numba

    if sys.stderr.isatty():
        with ProgressBar() as bar:
            rows = audit_table.audit(
                lambda done, total, statement: bar.show(done, total, f"{done}/{total} {statement}")
            )
    else:
        rows = audit_table.audit()
    text = {"json": audit_table.as_json, "markdown": audit_table.as_markdown, None: audit_table.as_text}[args.form](
        rows
    ).rstrip("\n") + "\n"
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0
