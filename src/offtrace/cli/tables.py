"""`offtrace audit`, `offtrace methods` and `offtrace explore`, which print a table or write a page."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg, create_mutex_group

from offtrace._shared.progress_bar import ProgressBar
from offtrace._shared.suggestions import closest, ending
from offtrace.cli.options import Modules, Output

FORM = create_mutex_group(required=False)


def audit(
    *,
    json: Annotated[bool, FORM] = False,
    markdown: Annotated[bool, FORM] = False,
    output: Output = None,
    check: bool = False,
    proofs: Annotated[Path | None, arg(metavar="FOLDER")] = None,
) -> int:
    """Every lemma, theorem and convergence claim of Daley and Amato (2021) as a row: computed now, never stored.

    Example: `offtrace audit --markdown --output audit.md`

    Args:
        json: print JSON
        markdown: print a page for the docs
        output: write to a file instead
        check: put the counterexamples into proofs, and verify them by another program
        proofs: the same, and write the proofs into this folder, for `offtrace check`
    """
    from offtrace.operators.auditing import audit_table

    if proofs is not None:
        proofs.mkdir(parents=True, exist_ok=True)

    with ProgressBar(lines=False) as bar:
        rows = audit_table.audit(
            lambda done, total, text: bar.show(done, total, f"{done}/{total} {text}"), check=check, proofs=proofs
        )
    form = audit_table.as_json if json else audit_table.as_markdown if markdown else audit_table.as_text
    text = form(rows).rstrip("\n") + "\n"
    if output:
        output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


def methods(
    name: Positional[str | None] = None,
    *,
    json: Annotated[bool, FORM] = False,
    markdown: Annotated[bool, FORM] = False,
) -> int:
    """All learning methods of offtrace.learners, and every trace by itself.

    Example: `offtrace methods gtd`

    Args:
        name: print those whose name has this in it
        json: print JSON
        markdown: print a table for the docs
    """
    from offtrace.learners.methods import registry

    rows, key = registry.rows(), registry.key
    if name is not None:
        wanted = key(name)
        named = [row for row in rows if wanted in key(row.name) or wanted in key(row.call.split(",")[0])]
        if not named:
            near = closest(wanted, [key(row.name) for row in rows])
            hint = ending(next((row.name for row in rows if key(row.name) == near), None))
            raise ValueError(f"no learning method has {name!r} in its name{hint}")
        rows = named
    form = registry.as_json if json else registry.as_markdown if markdown else registry.as_text
    sys.stdout.write(form(rows) + "\n")
    return 0


def explore(
    link: Positional[str] = "",
    *,
    output: Annotated[Path, arg(aliases=["-o"], metavar="FILE")] = Path("explorer.html"),
    open: bool = True,
    modules: Modules = (),
) -> int:
    """One page with every rule: drag ratios, and watch credit, contraction and variance.

    Example: `offtrace explore --output rules.html --module my_rules`

    Args:
        link: what "Copy link" of the page gave to somebody, from its # on
        output: the page
        open: do not open it
        modules: import a Python module first, whose rules are then on the page; this executes it
    """
    from offtrace import reports

    for name in modules:
        import_module(name)
    print(f"The page: {reports.write_explorer(output, open_browser=open, state=link)}")
    return 0
