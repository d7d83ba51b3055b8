"""Where the time of the tests goes: `pytest -p cpu_seconds tests/returns` ends with the costliest tests and files.

In seconds of CPU, of this process and of those that it started and that have ended: what else the machine does is not in them.
With xdist, each worker sends its seconds to the process that prints them.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any

import pytest

SHOWN = int(os.environ.get("SHOWN", "40"))
spent: defaultdict[str, float] = defaultdict(float)
"""By test, its parameters left out; and what each worker of xdist spent before its first test."""


def now() -> float:
    both = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in both)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = now()
    try:
        return (yield)
    finally:
        spent[item.nodeid.partition("[")[0]] += now() - before


def pytest_collection_finish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        spent["start and collection::of the workers"] += now()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        session.config.workeroutput["cpu_seconds"] = dict(spent)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """In the process that prints: what a worker of xdist has spent."""
    for test, seconds in getattr(node, "workeroutput", {}).get("cpu_seconds", {}).items():
        spent[test] += seconds


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    files: defaultdict[str, float] = defaultdict(float)
    for test, seconds in spent.items():
        files[test.partition("::")[0]] += seconds
    for title, counted in (("tests", spent), ("files", files)):
        terminalreporter.section(f"CPU-seconds of {title}: {sum(counted.values()):.1f} in all, {now():.1f} with start")
        for name, seconds in sorted(counted.items(), key=lambda item: -item[1])[:SHOWN]:
            terminalreporter.line(f"{seconds:8.1f} {name}")
