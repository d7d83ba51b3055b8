"""`offtrace logs describe`, `estimators` and `evidence`; `evaluate` and `sweep` have files of their own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from offtrace.cli.log_options import POLICY, Reading
from offtrace.cli.log_policies import load_policy
from offtrace.cli.options import TYPED, Page, with_plain_help

if TYPE_CHECKING:
    from offtrace.logs.cases.measuring import Measured


@with_plain_help
@dataclass(frozen=True, kw_only=True)
class Describe(Reading):
    """The options of `describe`."""

    policy: Annotated[str | None, arg(metavar="FILE", help=POLICY)] = None


def describe(options: Annotated[Describe, arg(name="")]) -> int:
    """Say what logs are like, and what they can say about a target policy.

    Example: `offtrace logs describe logs.parquet --columns mu=propensity --policy greedy.npz`
    """
    from offtrace.logs.description import describe

    target = None if options.policy is None else load_policy(options.policy)
    print(describe(options.read(target), None if target is None else target.policy))
    return 0


def estimators() -> int:
    """List the estimators: what each computes, and what it needs.

    Example: `offtrace logs estimators`
    """
    from offtrace.logs.estimators.built_in import ESTIMATORS
    from offtrace.logs.estimators.registry import NEEDS

    width = max(map(len, ESTIMATORS))
    for name, entry in ESTIMATORS.items():
        needs = f"; needs {' and '.join(NEEDS[need] for need in entry.needs)}" if entry.needs else ""
        print(f"{name:<{width}}  {entry.equation}{needs}")
    return 0


@with_plain_help
@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The options of `evidence`."""

    case: tuple[str, ...] | None = None  # only these cases
    quick: bool = False  # few repetitions: about a minute on two cores
    repetitions: int | None = None  # in place of each case's own
    workers: int | None = None  # processes; one for each core by default
    page: Page = None  # also write one HTML page about it
    json: bool = False  # print JSON, and nothing else, on standard output
    markdown: bool = False  # print tables in Markdown, a column for each case


def evidence(options: Annotated[Evidence, arg(name="")]) -> int:
    """Try traces and the other estimators where the truth is known: when traces help, and when not.

    Example: `offtrace logs evidence --quick --page evidence.html`
    """
    from offtrace._shared.progress_bar import ProgressBar
    from offtrace.logs.cases import tables
    from offtrace.logs.cases.measuring import measure

    numbers = {"quick": options.quick, "repetitions": options.repetitions, "workers": options.workers}
    with ProgressBar() as bar:
        measured = measure(options.case and list(options.case), **numbers, progress=bar.show)
    if options.json:
        print(json.dumps([tables.as_json(each) for each in measured], ensure_ascii=False, indent=2))
    elif options.markdown:
        print(tables.markdown(measured))
    else:
        _print(measured)
    if options.page is not None:
        from offtrace import reports

        target = reports.evidence_page(measured, options.page, command=TYPED.get())
        if not options.json:
            print(f"The page: {target}")
    return 0


def _print(measured: list[Measured]) -> None:
    """A table for each case, in the width that it needs where no terminal says another."""
    from rich.console import Console
    from rich.table import Table

    from offtrace.logs.cases import tables

    console = Console()
    if not console.is_terminal:
        console = Console(width=110)
    for each in measured:
        table = Table(title=each.case.title, title_justify="left", title_style="bold", caption_justify="left")
        table.caption = tables.about(each)
        for i, head in enumerate(tables.HEADS):
            table.add_column(head, justify="left" if not i else "right", no_wrap=not i)
        best = each.best()
        for score in each.scores:
            table.add_row(*tables.cells(score), style="bold green" if score is best else "")
        console.print(table)
        console.print()
