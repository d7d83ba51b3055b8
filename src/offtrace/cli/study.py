"""`offtrace study run`, `status`, `list`, `report` and `export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from offtrace.cli.options import Modules, Output, Quiet, command_options

if TYPE_CHECKING:
    from offtrace.studies import Study

Folder = Annotated[Path | None, arg(metavar="FOLDER")]


@command_options
class Named:
    """Which study."""

    study: Positional[str]  # a shipped study by name, the path of a TOML file, or a folder of records
    subset: Annotated[str | None, arg(metavar="NAME")] = None  # a smaller one that the study declares, such as ci
    out: Folder = None  # where records are kept; offtrace-studies by default

    def load(self, trust: bool | tuple[str, ...] = False) -> Study:
        """The study."""
        from offtrace.studies import Study

        return Study.load(self.study, self.subset, self.out, trust=list(trust) if isinstance(trust, tuple) else trust)


@command_options
class Run(Named):
    """The options of `run`."""

    on: Literal["local", "ray"] = "local"  # local processes, or Ray
    address: str | None = None  # of an existing Ray cluster; without it, a new one on this machine
    workers: int | None = None  # processes; one for each core by default, 0: in this one
    quiet: Quiet = False  # show no progress
    other_code: bool = False  # keep the units of other code, and run the others
    rerun_changed: bool = False  # run the units of other code again
    # end a unit that takes longer, and try it again; an hour by default, no limit for deep agents
    patience: Annotated[float | None, arg(metavar="SECONDS")] = None
    trust: bool = False  # import the modules that a folder of records names: this executes their code
    modules: Modules = ()  # import this one of them


def run(options: Annotated[Run, arg(name="")]) -> int:
    """Run what has not been run yet; interrupt it at any time, and run it again to continue.

    Example: `offtrace study run bifurcation --subset minute --out out`
    """
    study = options.load(options.trust or options.modules)
    names = ("workers", "address", "other_code", "rerun_changed", "patience")
    try:
        study.run(options.on, progress=not options.quiet, **{name: getattr(options, name) for name in names})
    except KeyboardInterrupt as stop:
        by = f"by {stop}" if str(stop) else ""
        stop.args = (f"{by}; the same command continues from here",)
        raise
    status = study.status()
    print(status)
    return 0 if status.finished else 1


def status(options: Annotated[Named, arg(name="")]) -> int:
    """Show what there is of a study.

    Example: `offtrace study status bifurcation --out out`
    """
    study = options.load()
    print(study, study.status(), sep="\n")
    return 0


def list_studies(*, out: Folder = None) -> int:
    """List the shipped studies, and those that have been run.

    Example: `offtrace study list --out out`

    Args:
        out: where records are kept; offtrace-studies by default
    """
    from offtrace.studies import DeclarationError, Study, StudyError, shipped

    print("Shipped:")
    for name in shipped():
        study = Study.load(name)
        facts = (f"    {key:<13} {value}" for key, value in study.summary() if key in ("in all", "subsets"))
        print(f"  {name:<18}{study.question}", *facts, sep="\n")
    files = ("study.toml", "records.sqlite")
    folders = sorted({file.parent for name in files for file in (out or Path("offtrace-studies")).glob(f"*/{name}")})
    print("Run:" if folders else "None has been run here.")
    for folder in folders:
        try:
            print("  " + str(Study.load(folder).status()).replace("\n", "\n  "))
        except (DeclarationError, StudyError, OSError) as error:
            print(f"  {folder.name}: cannot be read: {error}")
    return 0


@command_options
class Report(Named):
    """The options of `report`."""

    output: Output = None  # the page; report.html in the study's folder by default
    open: bool = True  # do not open it
    figures: bool = True  # write no figures and tables for a paper


def report(options: Annotated[Report, arg(name="")]) -> int:
    """Write one HTML page about a study, and open it.

    Example: `offtrace study report bifurcation --subset minute --out out --no-open`
    """
    from offtrace import reports
    from offtrace.studies import StudyError

    study = options.load()
    if study.records().is_empty():
        raise StudyError(f"there are no rows to report: run the study first\n{study.status()}")
    opened = reports.opened(study)
    page = reports.write(opened, options.output, open_browser=options.open, figures=options.figures)
    print(reports.summary(opened), f"\nThe page: {page}", sep="\n")
    return 0


@command_options
class Export(Named):
    """The options of `export`."""

    to: Folder = None  # where the files go; the study's folder by default


def export(options: Annotated[Export, arg(name="")]) -> int:
    """Write the rows and curves of a study as Parquet and CSV.

    Example: `offtrace study export bifurcation --subset minute --out out --to files`
    """
    for file in options.load().export(options.to):
        print(file)
    return 0
