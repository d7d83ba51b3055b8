"""A study of seconds for the tests, and how to run one as a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl

# As `python -m offtrace.cli`; Ctrl-C reaches it also where the tests run with SIGINT ignored, which a child inherits.
PROGRAM = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import offtrace.cli.__main__"
COMMAND = [sys.executable, "-c", PROGRAM, "study"]


def declared(**changes: Any) -> dict[str, Any]:
    """Evaluation on a short walk: 24 units for tuning, 8 for the test, milliseconds each."""
    return {
        "name": "small",
        "question": "Does it run?",
        "task": "evaluation",
        "metric": "rms error",
        "environments": ["random-walk:states=5", "random-walk:states=7"],
        "traces": ["Retrace", {"name": "Truncated IS", "bound": [1.0, 2.0]}, "One-step"],
        "lams": [0.5],
        "alphas": [0.1, 0.3, 0.5],
        "seeds": {"tuning": {"first": 0, "count": 3}, "test": {"first": 3, "count": 4}},
        "protocol": {"steps": 200, "behavior": "uniform", "target": [0.3, 0.7]},
        **changes,
    }


def longer(steps: int = 30_000, **changes: Any) -> dict[str, Any]:
    """More of the same, with units of about a tenth of a second."""
    seeds = {"tuning": {"first": 0, "count": 20}, "test": {"first": 20, "count": 20}}
    protocol = {"steps": steps, "behavior": "uniform", "target": [0.3, 0.7]}
    return declared(seeds=seeds, protocol=protocol, lams=[0.0, 0.5, 0.9], **changes)


def equal(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    """Row for row, bit for bit."""
    return one.schema == other.schema and one.equals(other, null_equal=True)


def start(file: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    """`offtrace study run` in a process of its own, quiet."""
    return subprocess.Popen(
        [*COMMAND, "run", str(file), "--out", str(out), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )
