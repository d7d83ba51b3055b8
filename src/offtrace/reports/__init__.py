"""Records → statistics, figures, pages. Runs nothing. Extra `[reports]`.

`write` makes one HTML page from a study, and the figures for a paper: the folder `study`. `evaluation_page` makes one
from what `offtrace.logs.evaluate` returns: the folder `logs`. What both pages consist of is in `html`. `write_explorer` makes
the page that shows what a trace does: the folder `explorer`.
"""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offtrace._shared.extras import from_extra
from offtrace.reports.report_files import put

if TYPE_CHECKING:
    from offtrace.reports.study.views import Views

__all__ = ["evaluation_page", "opened", "summary", "write", "write_explorer"]


def write(study: object, path: str | Path | None = None, *, open_browser: bool = False, figures: bool = True) -> Path:
    """One self-contained page about a study; returns where it is.

    `study` is a `Study`, the folder of one, or what `opened` returned. `path` is the page's; by default it is `report.html` in
    the study's folder. The figures for papers go into `figures/` there, as PNG and PDF, its numbers into `tables/`, as CSV
    and LaTeX, with BibTeX of the traces; `figures=False` leaves both out.

    >>> from offtrace import studies
    >>> study = studies.load("bifurcation", "ci").run()  # doctest: +SKIP
    >>> write(study)  # doctest: +SKIP
    """
    with from_extra("reports", "reports need"):
        from offtrace.reports.study import paper_figures, paper_tables, study_page

    shown = opened(study)
    target = Path(path) if path is not None else shown.folder / "report.html"
    put(study_page.html(shown).encode(), target)
    if figures:
        paper_figures.write(shown, target.parent / "figures")
        paper_tables.write(shown, target.parent / "tables")
    return _shown(target, open_browser)


def summary(study: object) -> str:
    """The study's table in plain text, best trace first: what a terminal shows of the page.

    >>> print(summary("out/bifurcation-ci"))  # doctest: +SKIP
    """
    with from_extra("reports", "reports need"):
        from offtrace.reports.study import terminal_table

    return terminal_table.table(opened(study))


def opened(study: object) -> Views:
    """The statistics of a study, computed once, which `write` and `summary` take in its place.

    >>> report = opened("out/bifurcation-ci")  # doctest: +SKIP
    >>> write(report), print(summary(report))  # doctest: +SKIP
    """
    with from_extra("reports", "reports need"):
        from offtrace.reports.study.views import Views

    if isinstance(study, Views):
        return study
    if isinstance(study, str | Path):
        from offtrace import studies  # pyright: ignore[reportAttributeAccessIssue]

        study = studies.load(study)
    if not all(hasattr(study, name) for name in ("records", "curves", "facts")):
        raise TypeError(
            f"a report is made from a Study or from the folder of one, and {type(study).__name__} was given; "
            "pass the object that study.run() returned or the path where its records are."
        )
    records: Any = study
    return Views(records.records(), records.curves(), records.facts(), getattr(study, "folder", None))


def _shown(target: Path, open_browser: bool, state: str = "") -> Path:
    if open_browser:
        webbrowser.open(target.resolve().as_uri() + state)
    return target


def evaluation_page(
    result: object, path: str | Path, *, command: str | None = None, open_browser: bool = False
) -> Path:
    """One self-contained page about what `offtrace.logs.evaluate` or `compare` returned; returns where it is.

    `command` is the command line to show on the page, where there was one.

    >>> from offtrace.logs import evaluate
    >>> result = evaluate(logs, target, gamma=0.99)  # doctest: +SKIP
    >>> evaluation_page(result, "evaluation.html")  # doctest: +SKIP
    """
    from offtrace.logs import Comparison, Result
    from offtrace.reports.logs import comparison_page
    from offtrace.reports.logs import evaluation_page as page

    if isinstance(result, Comparison):
        html = comparison_page.html(result, command)
    elif isinstance(result, Result):
        html = page.html(result, command)
    else:
        raise TypeError(
            f"evaluation_page shows what offtrace.logs.evaluate or compare returned, and {type(result).__name__} was given; "
            "for a study, call write."
        )
    target = Path(path)
    put(html.encode(), target)
    return _shown(target, open_browser)


def write_explorer(path: str | Path = "explorer.html", *, open_browser: bool = False, state: str = "") -> Path:
    """The explorer as one self-contained page, with every listed rule that is in normal form; returns where it is.

    Rules that were listed by `offtrace.register` before the call are on it too. `state` is what the browser opens: a link that
    somebody copied from the page, from its # on.

    >>> write_explorer("explorer.html", open_browser=True)  # doctest: +SKIP
    """
    from offtrace.reports.explorer import explorer_page

    target = Path(path)
    put(explorer_page.html().encode(), target)
    return _shown(target, open_browser, "#" * bool(state) + state.rpartition("#")[2])
