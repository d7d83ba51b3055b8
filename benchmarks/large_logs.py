"""One sweep of RBIS over logs that are larger than memory: `python benchmarks/large_logs.py [--steps 1e9] [--folder DIR]`.

Makes Parquet files of 5 million steps each (episodes of 100, 1000 states, 4 actions), all from one: other episode ids, the same
steps. So a billion steps take about 5 GB of disk. Prints seconds, and the largest memory of the process. With `--model linear` or
`fourier` states are two features, and the fixed point is found, with its interval.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

import offtrace as ot
from offtrace.logs import Columns, sweep

STEPS, LENGTH, STATES, ACTIONS = 5_000_000, 100, 1000, 4


def write(folder: Path, files: int) -> None:
    rng, n = np.random.default_rng(0), STEPS
    end = np.zeros(n, bool)
    end[LENGTH - 1 :: LENGTH] = True
    steps = pl.DataFrame(
        {
            "step": np.tile(np.arange(LENGTH, dtype=np.int16), n // LENGTH),
            "state": rng.integers(STATES, size=n, dtype=np.int32),
            "x": rng.normal(size=n).astype(np.float32),
            "y": rng.normal(size=n).astype(np.float32),
            "action": rng.integers(ACTIONS, size=n).astype(np.int8),
            "reward": rng.normal(size=n).astype(np.float32),
            "terminated": end,
            "mu": np.full(n, 1 / ACTIONS, np.float32),
        }
    )
    for i in range(files):
        path = folder / f"part-{i:04}.parquet"
        if not path.exists():
            episode = np.repeat(np.arange(i * n // LENGTH, (i + 1) * n // LENGTH), LENGTH)
            steps.with_columns(episode=episode).write_parquet(path)


def of_features(x: np.ndarray) -> np.ndarray:
    """A target policy."""
    weight = np.exp(x @ np.array([[1.0, 0.0, -1.0, 0.5], [0.0, 0.5, 0.0, -0.5]]))
    return weight / weight.sum(axis=1, keepdims=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=float, default=1e9)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--model", choices=("table", "linear", "fourier"), default="table")
    options = parser.parse_args()
    files = max(1, round(options.steps / STEPS))
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        folder.mkdir(exist_ok=True)
        write(folder, files)
        table = options.model == "table"
        target = np.random.default_rng(1).dirichlet(np.ones(ACTIONS), STATES) if table else of_features
        columns = Columns(state="state" if table else ("x", "y"), mu="mu", truncated=None)
        started, cpu = time.perf_counter(), time.process_time()
        found = sweep(
            folder,
            target,
            trace=ot.RBIS(lam=0.9),
            gamma=0.99,
            columns=columns,
            truncated="never",
            model=options.model,
            actions=ACTIONS,
            sweeps=1 if table else None,
            progress=True,
        )
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"steps": found.steps, "seconds": seconds, "cpu_seconds": cpu, "megabytes": megabytes}))


if __name__ == "__main__":
    main()
