"""Studies of milliseconds for the tests."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import polars as pl

from offtrace.studies import Study
from offtrace.studies.store import NAME, Summary, unseal


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


def half_way(gate: Path) -> dict[str, Any]:
    """Ten units for tuning, two for the test. Workers get through the second half only when there is a file `gate`."""
    places = ["random-walk:states=5", f"gated:states=7,gate={gate}"]
    alphas = [0.1, 0.2, 0.3, 0.4, 0.5]
    return declared(modules=["studies.gated"], environments=places, traces=["Retrace"], alphas=alphas)


def equal(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    """Row for row, bit for bit."""
    return one.schema == other.schema and one.equals(other, null_equal=True)


def units_in(study: Study) -> list[Summary]:
    """The units that are written, each as often as it is; also while another process writes."""
    path = study.folder / NAME
    if not path.exists():
        return []
    with contextlib.closing(sqlite3.connect(path)) as reader:
        try:
            found = reader.execute("SELECT content FROM units ORDER BY number").fetchall()
        except sqlite3.OperationalError:  # its tables are not there yet
            return []
    return [Summary(*json.loads(unseal(content))) for (content,) in found]


def forget(study: Study, *, keep: int) -> None:
    """Remove all units but the first ones, as if the study had been interrupted."""
    with contextlib.closing(sqlite3.connect(study.folder / NAME)) as writer, writer:
        for table in ("units", "numbers"):
            writer.execute(f"DELETE FROM {table} WHERE number > ?", (keep,))
