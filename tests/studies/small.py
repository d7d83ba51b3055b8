"""Studies of milliseconds for the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl



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


    """Take what a pool answers until it raises."""
    while True:
        pool.answered(1.0)
