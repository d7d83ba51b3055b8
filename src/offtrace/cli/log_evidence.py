"""`offtrace logs evidence`: when traces help to evaluate a policy from logs, and when not, on cases whose truth is known."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offtrace.logs.cases.measuring import Measured


def add_options(command: argparse.ArgumentParser) -> None:
    """Add what `evidence` takes."""
    command.add_argument("--case", nargs="+", metavar="NAME", help="only these cases (all)")
    command.add_argument("--quick", action="store_true", help="few repetitions: about a minute on two cores")
    command.add_argument("--repetitions", type=int, metavar="N", help="in place of each case's own")
    command.add_argument("--workers", type=int, metavar="N", help="processes (one for each core)")
    command.add_argument("--page", type=Path, metavar="FILE.html", help="also write one HTML page about it")
    command.add_argument("--json", action="store_true", help="print JSON, and nothing else, on standard output")
    command.add_argument("--markdown", action="store_true", help="print tables in Markdown, a column for each case")


def run(args: argparse.Namespace) -> int:
    """Measure, and print what was found."""
    from offtrace._shared.progress_bar import ProgressBar
    from offtrace.logs.cases import tables
    from offtrace.logs.cases.measuring import measure

    with ProgressBar() as bar:
        found = measure(
            args.case, quick=args.quick, repetitions=args.repetitions, workers=args.workers, progress=bar.show
        )
    if args.json:
        print(json.dumps([tables.as_json(each) for each in found], ensure_ascii=False, indent=2))
    elif args.markdown:
        print(tables.markdown(found))
    else:
        _print(found)
    if args.page is not None:
        from offtrace import reports

        target = reports.evidence_page(found, args.page, command=args.typed)
        if not args.json:
            print(f"The page: {target}")
    return 0


def _print(found: list[Measured]) -> None:
    """A table for each case, in the width that it needs where no terminal says another."""
    from rich.console import Console
    from rich.table import Table

    from offtrace.logs.cases import tables

    console = Console()
    if not console.is_terminal:
        console = Console(width=110)
    for each in found:
        table = Table(title=each.case.title, title_justify="left", title_style="bold", caption_justify="left")
        table.caption = tables.about(each)
        for i, head in enumerate(tables.HEADS):
            table.add_column(head, justify="left" if not i else "right", no_wrap=not i)
        best = each.best()
        for score in each.scores:
            table.add_row(*tables.cells(score), style="bold green" if score is best else "")
        console.print(table)
        console.print()
