"""Values from logs: reading 10⁷ steps of Parquet, against polars' own scan and collect of the same columns.

The two take turns in one process; seconds of the processor are told too, since the machine may be busy. Memory is the peak of a
fresh process beyond what it has before reading, beside the size of the logs themselves. Linux only (/proc).

    .venv/bin/python benchmarks/run.py evaluation
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
from memory import RESET, resident
from timing import Competitor, emit, interleave, ratio

from offtrace.logs import Columns, Logs, read

ROWS = 10_000_000
FEATURES = ("x0", "x1", "x2", "x3")
CASES = {"states": Columns(mu="mu"), "features": Columns(state=FEATURES, mu="mu"), "shuffled": Columns(mu="mu")}


def written(folder: Path, case: str, rows: int = ROWS) -> Path:
    """Episodes of 1 to 200 steps, a third of them truncated."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 201, rows)
    lengths = lengths[: np.searchsorted(np.cumsum(lengths), rows)]
    lengths = np.append(lengths, rows - lengths.sum())
    ends = np.cumsum(lengths)
    last = np.zeros(rows, bool)
    last[ends - 1] = True
    cut = last & (rng.random(rows) < 1 / 3)
    columns = {
        "episode": np.repeat(np.arange(len(lengths)), lengths),
        "step": np.arange(rows) - np.repeat(ends - lengths, lengths),
        "action": rng.integers(0, 6, rows),
        "reward": rng.normal(size=rows),
        "terminated": last & ~cut,
        "truncated": cut,
        "mu": rng.uniform(0.1, 1, rows),
    }
    if case == "features":
        columns |= {name: rng.normal(size=rows) for name in FEATURES}
    else:
        columns["state"] = rng.integers(0, 500, rows)
    frame = pl.DataFrame(columns)
    if case == "shuffled":
        frame = frame[rng.permutation(rows)]
    frame.write_parquet(folder / f"{case}.parquet")
    return folder / f"{case}.parquet"


def size(logs: Logs) -> int:
    arrays = [array for array in vars(logs).values() if isinstance(array, np.ndarray)]
    return sum(array.nbytes for array in arrays)


def reading(case: str, file: Path) -> None:
    columns = CASES[case]
    names = [column for _, column in columns.used()]
    competitors = {
        "read": Competitor(lambda _: file, lambda path: read(path, columns=columns)),
        "polars": Competitor(lambda _: file, lambda path: pl.scan_parquet(path).select(names).collect()),
    }
    times = interleave(competitors, lambda _: None, seconds=30, least=5, most=15)
    cpu = ratio(
        interleave(competitors, lambda _: None, seconds=30, least=5, most=15, clock=time.process_time), "read", "polars"
    )
    told = subprocess.run([sys.executable, __file__, case, str(file)], check=True, capture_output=True, text=True)
    extra, logs = map(int, told.stdout.split())
    found = ratio(times, "read", "polars")
    emit("logs", case=case, rows=ROWS, **found, cpu_ratio=cpu["ratio"], extra_mb=extra / 1e6, logs_mb=logs / 1e6)


def memory(case: str, file: Path) -> None:
    """In this process, once the compiled code is loaded: how much its peak grows, and the size of the logs."""
    with tempfile.TemporaryDirectory() as folder:
        read(written(Path(folder), case, 10_000), columns=CASES[case])
    RESET.write_text("5")
    before = resident("VmRSS")
    logs = read(file, columns=CASES[case])
    print(resident("VmHWM") - before, size(logs))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        memory(sys.argv[1], Path(sys.argv[2]))
    else:
        for case in CASES:
            with tempfile.TemporaryDirectory() as folder:
                reading(case, written(Path(folder), case))
