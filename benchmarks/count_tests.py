"""A plugin of pytest for peer_suites.py: it leaves out what cannot apply, and counts the tests of each file.

The plugin `ours_in_NAME` may define two functions, which return why a test is left out, or None: `left_out(item)`, asked before
the tests run, and `did_not_apply(item)`, asked after the test.
"""

from __future__ import annotations

import importlib
import json
import os
from collections import Counter, defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

OPTIONS = json.loads(os.environ["COUNT_TESTS"])
OURS = importlib.import_module(OPTIONS["plugin"])
LEFT_OUT: dict[str, str] = {}
OUTCOMES: dict[str, str] = {}


def _reason(question: str, item: Any) -> None:
    why = getattr(OURS, question, lambda item: None)(item)
    if why:
        LEFT_OUT[item.nodeid] = why


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Leave out what cannot apply."""
    for item in items:
        _reason("left_out", item)
    items[:] = [item for item in items if item.nodeid not in LEFT_OUT]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: Any) -> None:
    """Ask whether the test called ours."""
    _reason("did_not_apply", item)


def pytest_runtest_logreport(report: Any) -> None:
    """Keep what became of the test."""
    if report.when == "call" or report.failed or (report.skipped and report.when == "setup"):
        OUTCOMES[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    """Write the counts."""
    files: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    failed: dict[str, list[str]] = defaultdict(list)
    for test in LEFT_OUT.keys() | OUTCOMES.keys():
        file, _, name = test.partition("::")
        files[file]["tests"] += 1
        if test in LEFT_OUT:
            reasons[file][LEFT_OUT[test]] += 1
        else:
            files[file][OUTCOMES[test]] += 1
            if OUTCOMES[test] == "failed":
                failed[file].append(name)
    package = OPTIONS["package"]
    named = package if " " in package else f"{package} {version(package)}"  # a checkout is named with its commit
    counts = [
        {"version": named, "file": Path(file).name, "tests": n["tests"], "passed": n["passed"], "skipped": n["skipped"],
         "failed": sorted(failed[file]), "left_out": reasons[file]}
        for file, n in sorted(files.items())
    ]  # fmt: skip
    Path(OPTIONS["result"]).write_text(json.dumps(counts))
