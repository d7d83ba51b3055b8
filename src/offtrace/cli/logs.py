"""`offtrace logs describe`, `estimators` and `evidence`; `evaluate` and `sweep` have files of their own."""

from __future__ import annotations

import json as json_format
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from offtrace.cli.log_policies import POLICY, load_policy
from offtrace.cli.log_reading import Reading, read_logs
from offtrace.cli.options import TYPED, Page

if TYPE_CHECKING:
    from offtrace.logs.cases.measuring import Measured


def describe(
    dataset: Positional[str],
    *,
    policy: Annotated[str | None, arg(metavar="FILE", help=POLICY)] = None,
    reading: Reading,
) -> int:
    """Say what logs are like, and what they can say about a target policy.

    Example: `offtrace logs describe logs.parquet --columns mu=propensity --policy greedy.npz`

    Args:
        dataset: a table, a folder or a pattern of them, or a Minari dataset
    """
    from offtrace.logs.description import describe

    target = None if policy is None else load_policy(policy)
    print(describe(read_logs(dataset, reading, target), None if target is None else target.policy))
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


def evidence(
    *,
    case: tuple[str, ...] | None = None,
    quick: bool = False,
    repetitions: int | None = None,
    workers: int | None = None,
    page: Page = None,
    json: bool = False,
    markdown: bool = False,
) -> int:
    """Try traces and the other estimators where the truth is known: when traces help, and when not.

    Example: `offtrace logs evidence --quick --page evidence.html`

    Args:
        case: only these cases
        quick: few repetitions: about a minute on two cores
        repetitions: in place of each case's own
        workers: processes; one for each core by default
        page: also write one HTML page about it
        json: print JSON, and nothing else, on standard output
        markdown: print tables in Markdown, a column for each case
    """
    from offtrace._shared.progress_bar import ProgressBar
    from offtrace.logs.cases import tables
    from offtrace.logs.cases.measuring import measure

    with ProgressBar() as bar:
        cases = None if case is None else list(case)
        measured = measure(cases, quick=quick, repetitions=repetitions, workers=workers, progress=bar.show)
    if json:
        print(json_format.dumps([tables.as_json(each) for each in measured], ensure_ascii=False, indent=2))
    elif markdown:
        print(tables.markdown(measured))
    else:
        _print(measured)
    if page is not None:
        from offtrace import reports

        target = reports.evidence_page(measured, page, command=TYPED.get())
        if not json:
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
