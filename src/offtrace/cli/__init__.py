"""The command line: `offtrace audit` decides the paper's claims, by computation; `offtrace study` runs and reports studies;
`offtrace deep` trains agents with replay; `offtrace logs` says what a policy would be worth, from logs of another one;
`offtrace explore` shows what a trace does; `offtrace methods` prints all learning methods; `offtrace doctor` says what was found
on this machine, and whether it works.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

import offtrace
from offtrace.cli import audit, deep, doctor, explore, logs, methods, study, trace_options
from offtrace.cli.commands import commands_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status."""
    trace_options.import_rules(sys.argv[1:] if arguments is None else arguments)
    args = parser().parse_args(arguments)
    args.typed = shlex.join(["offtrace", *(sys.argv[1:] if arguments is None else arguments)])
    return args.run(args)


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(
        prog="offtrace", description="Off-policy reinforcement learning that accounts for past decisions."
    )
    top.add_argument("--version", action="version", version=f"offtrace {offtrace.__version__}")
    commands = commands_of(top)
    for each in (audit, study, deep, logs, explore, doctor, methods):
        each.add(commands)
    return top
