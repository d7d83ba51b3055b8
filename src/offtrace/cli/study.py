"""`offtrace study run`, `status`, `list`, `report` and `export`."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

Run = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str]) -> int:
    """Run a command of `offtrace study`."""
    parser = argparse.ArgumentParser(prog="offtrace study", description="A declared grid, run anywhere, gives records.")
    parser.set_defaults(run=lambda args: parser.print_help() or 2)
    of_study = parser.add_subparsers(metavar="COMMAND")

    def command(name: str, run: Run, words: str, named: bool = True) -> argparse.ArgumentParser:
        made = of_study.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
        if named:
            made.add_argument("study", help="a shipped study by name, the path of a TOML file, or a folder of records")
            made.add_argument("--subset", metavar="NAME", help="a smaller one that the study declares, such as ci")
        made.add_argument("--out", type=Path, metavar="FOLDER", help="where records are kept (offtrace-studies)")
        made.set_defaults(run=lambda args: _said(run, args))
        return made

    run = command(
        "run", _run_study, "run what has not been run yet; interrupt it at any time, and run it again to continue"
    )
    run.add_argument("--on", choices=("local", "ray"), default="local", help="local processes (default), or Ray")
    run.add_argument("--address", help="of an existing Ray cluster; without it, a new one on this machine")
    run.add_argument("--workers", type=int, metavar="N", help="processes (one for each core); 0: in this one")
    run.add_argument("--quiet", "-q", action="store_true", help="show no progress")
    run.add_argument(
        "--other-code", action="store_true", help="keep the units that other code has made, and run the others"
    )
    run.add_argument("--rerun-changed", action="store_true", help="run the units again that other code has made")
    run.add_argument(
        "--patience",
        type=float,
        metavar="SECONDS",
        help="end a unit that takes longer, and try it again (an hour; deep agents: no limit)",
    )
    run.add_argument(
        "--trust",
        action="store_true",
        help="import the modules that a folder of records names: this executes their code",
    )
    run.add_argument("--module", action="append", default=[], metavar="NAME", help="import this one of them")
    command("status", _study_status, "show what there is of a study")
    command("list", _list_studies, "list the shipped studies, and those that have been run", named=False)
    export = command("export", _export_study, "write the rows and curves of a study as Parquet and CSV")
    export.add_argument("--to", type=Path, metavar="FOLDER", help="where the files go (the study's folder)")
    report = command("report", _report_study, "write one HTML page about a study, and open it")
    report.add_argument(
        "--output", "-o", type=Path, metavar="FILE", help="the page (report.html in the study's folder)"
    )
    report.add_argument("--no-open", dest="open", action="store_false", help="do not open it")
    report.add_argument(
        "--no-figures", dest="figures", action="store_false", help="no figures and tables for a paper beside it"
    )
    args = parser.parse_args(arguments)
    return args.run(args)


def _said(run: Run, args: argparse.Namespace) -> int:
    """Errors of studies are words, not tracebacks; warnings are lines."""
    from offtrace._shared.whole_files import why_not_written
    from offtrace.studies import DeclarationError, StudyError
    from offtrace.studies.interruption import Interrupted

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print(f"offtrace: {message}", file=sys.stderr)
        try:
            return run(args)
        except (DeclarationError, StudyError, ImportError) as error:
            print(f"offtrace: {error}", file=sys.stderr)
            return 2
        except OSError as error:
            where = f" {error.filename}" if error.filename else ""
            print(f"offtrace: cannot write{where}: {why_not_written(error)}", file=sys.stderr)
            return 2
        except KeyboardInterrupt as stop:
            number = stop.number if isinstance(stop, Interrupted) else signal.SIGINT
            by = f" by {stop}" if isinstance(stop, Interrupted) else ""
            with contextlib.suppress(OSError):  # after SIGHUP there may be no terminal
                print(f"offtrace: interrupted{by}; the same command continues from here", file=sys.stderr, flush=True)
            return 128 + number


def _run_study(args: argparse.Namespace) -> int:
    from offtrace.studies import Study

    study = Study.load(args.study, args.subset, args.out, trust=args.trust or args.module)
    study.run(
        args.on,
        workers=args.workers,
        address=args.address,
        progress=not args.quiet,
        other_code=args.other_code,
        rerun_changed=args.rerun_changed,
        patience=args.patience,
    )
    status = study.status()
    print(status)
    return 0 if status.finished else 1


def _export_study(args: argparse.Namespace) -> int:
    from offtrace.studies import Study

    for file in Study.load(args.study, args.subset, args.out).export(args.to):
        print(file)
    return 0


def _study_status(args: argparse.Namespace) -> int:
    from offtrace.studies import Study

    study = Study.load(args.study, args.subset, args.out)
    print(study, study.status(), sep="\n")
    return 0


def _list_studies(args: argparse.Namespace) -> int:
    from offtrace.studies import DeclarationError, Study, StudyError, shipped

    print("Shipped:")
    for name in shipped():
        study = Study.load(name)
        print(
            f"  {name:<18}{study.question}",
            *(f"    {k:<13} {v}" for k, v in study.summary() if k in ("in all", "subsets")),
            sep="\n",
        )
    out = args.out or Path("offtrace-studies")
    folders = sorted({file.parent for name in ("study.toml", "records.sqlite") for file in out.glob(f"*/{name}")})
    print("Run:" if folders else "None has been run here.")
    for folder in folders:
        try:
            print("  " + str(Study.load(folder).status()).replace("\n", "\n  "))
        except (DeclarationError, StudyError, OSError) as error:
            print(f"  {folder.name}: cannot be read: {error}")
    return 0


def _report_study(args: argparse.Namespace) -> int:
    from offtrace import reports
    from offtrace.studies import Study, StudyError

    study = Study.load(args.study, args.subset, args.out)
    if study.records().is_empty():
        raise StudyError(f"there are no rows to report: run the study first\n{study.status()}")
    report = reports.opened(study)
    page = reports.write(report, args.output, open_browser=args.open, figures=args.figures)
    print(reports.summary(report), f"\nThe page: {page}", sep="\n")
    return 0
