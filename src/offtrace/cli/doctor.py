"""`offtrace doctor`, which says what was found on this machine, whether it works, and what to do about the rest."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterable
from importlib import metadata
from typing import TYPE_CHECKING

import offtrace
from offtrace._shared.cores import cores
from offtrace.cli.commands import Commands

if TYPE_CHECKING:
    from offtrace.cli.installed import Found

MARKS = {True: "✓", False: "✗", None: "–"}


def add(commands: Commands) -> None:
    """Add the command to those of `offtrace`."""
    doctor = commands.add_parser(
        "doctor",
        help="what was found on this machine, whether it works, and what to do about the rest",
        description="Backends, devices and extras: each backend computes a few targets, which are held to the definition. "
        "The exit status is 1 if something that is there does not work.",
    )
    doctor.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    from offtrace.cli import installed  # here, so that --help and --version need not wait for Numba

    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "numba", "scipy"))
    print(f"offtrace {offtrace.__version__}, Python {platform.python_version()}, {versions}")
    print(f"{platform.system()} on {platform.machine()}, {cores()} cores")
    parts = {"Compiled code": [installed.compiled()], "Backends": installed.backends(), "Extras": installed.extras()}
    broken = sum(_shown(title, lines) for title, lines in parts.items())
    print(f"\n{broken} of these do not work." if broken else "\nAll that is there works.")
    return 1 if broken else 0


def _shown(title: str, lines: Iterable[Found]) -> int:
    """Print what was found as it comes in; how much of it does not work."""
    print(f"\n{title}")
    broken = 0
    for one in lines:
        print(f"  {MARKS[one.good]} {one.name}: {one.says}", flush=True)
        if one.remedy:
            print(f"      {one.remedy}")
        broken += one.good is False
    return broken
