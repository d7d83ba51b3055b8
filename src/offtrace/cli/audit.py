"""`offtrace audit`, which decides the claims of the paper by computation."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

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

    rows = audit_table.audit(_bar if sys.stderr.isatty() else None)
    text = {"json": audit_table.as_json, "markdown": audit_table.as_markdown, None: audit_table.as_text}[args.form](
        rows
    ).rstrip("\n") + "\n"
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


def _bar(done: int, total: int, statement: str) -> None:
    """One line on stderr, written over itself; nothing of it stays."""
    width = shutil.get_terminal_size((100, 24)).columns - 1
    filled = 20 * done // total
    line = f"[{'█' * filled}{'░' * (20 - filled)}] {done}/{total} {statement}"[:width]
    sys.stderr.write("\r" + (line if done < total else "").ljust(width) + ("\r" if done == total else ""))
    sys.stderr.flush()
