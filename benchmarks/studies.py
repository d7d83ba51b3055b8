"""Studies: what the framework costs over calling the learners, two processes against one, the first result, reading records.

The units are those of the shipped `bifurcation` study at its 1,000 seeds, on the first gridworld and at few λ and α.
Directly, they are called one after another in this process; the study's time is taken from its first unit on, its start apart.

    .venv/bin/python benchmarks/run.py studies
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import tomllib
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl
from listed_rules import trajectory_aware
from timing import emit

import offtrace as ot
from offtrace import studies
from offtrace.reports.study import statistics
from offtrace.studies import tasks
from offtrace.studies.plan import Plan
from offtrace.studies.store import NAME, Store

TRACES = [rule.title for rule in (ot.Retrace(), *trajectory_aware(0.9))]


def part(out: Path, seeds: int = 1000) -> studies.Study:
    whole = tomllib.loads(studies.load("bifurcation").as_toml())
    few = {"environments": ["bifurcation-1"], "lams": [0.5, 0.9], "alphas": [0.5, 0.9], "traces": TRACES, "subsets": {}}
    grid = {"tuning": {"first": 0, "count": seeds}, "test": {"first": seeds, "count": seeds}}
    return studies.Study.declared({**whole, **few, "name": "benchmark", "seeds": grid}).at(out)


def of_workers(study: studies.Study, workers: int) -> tuple[float, float]:
    """Seconds in all, and from when the first worker was ready on: its first unit's end less its length."""
    start, began = time.perf_counter(), time.time()
    study.run(workers=workers, progress=False)
    seconds = time.perf_counter() - start
    done = Store(study.folder, study.digest).read().done.values()
    ready = min(datetime.fromisoformat(unit.finished).timestamp() - unit.seconds for unit in done) - began
    return seconds, seconds - ready


def framework() -> None:
    with tempfile.TemporaryDirectory() as folder:
        one, two = part(Path(folder) / "one"), part(Path(folder) / "two")
        jobs = [Plan(one).job(unit) for unit in Plan(one).left()]
        tasks.run(jobs[0])
        alone, net_alone = of_workers(one, 1)
        pair, net_pair = of_workers(two, 2)
        tested = set(one.records().filter(phase="test")["unit"])
        plan = Plan(one)
        start = time.perf_counter()
        for job in jobs:
            plan.mark(job.unit, tasks.run(job).score)
        for unit in [u for u in plan.left() if u.id in tested]:
            tasks.run(plan.job(unit))
        direct = time.perf_counter() - start
    emit(
        "framework",
        direct=direct,
        alone=alone,
        net_alone=net_alone,
        pair=pair,
        net_pair=net_pair,
        units=len(jobs) + len(tested),
    )


def first_result() -> None:
    """From the command to the first unit on disk."""
    command = [str(Path(sys.executable).with_name("offtrace")), "study", "run", "bifurcation", "--subset", "ci", "-q"]
    taken = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            process = subprocess.Popen([*command, "--out", folder], stdout=subprocess.DEVNULL)
            while not units(Path(folder)) and process.poll() is None:
                time.sleep(0.01)
            taken.append(time.perf_counter() - start)
            process.wait()
    emit("first result", seconds=float(np.median(taken)))


def units(folder: Path) -> int:
    """How many are written."""
    for file in folder.glob(f"*/{NAME}"):
        return len(Store(file.parent, "").read().done)
    return 0


def reading(rows: int = 1_000_000) -> None:
    """Of records like those of `bifurcation`: 1,000 seeds a unit, one part of ten units."""
    rng, parts = np.random.default_rng(0), 100
    with tempfile.TemporaryDirectory() as folder:
        study = part(Path(folder))
        study.run(workers=2, progress=False)
        some = study.records().head(rows // parts)
        frame = pl.concat([some] * (rows // parts // max(1, len(some)) + 1)).head(rows // parts)
        for i in range(parts):
            lam = pl.lit(round(i / parts, 2)).alias("lam")
            frame.with_columns(lam, value=rng.random(len(frame))).write_parquet(Path(folder) / f"{i:03d}.parquet")
        start = time.perf_counter()
        read = pl.read_parquet(Path(folder) / "*.parquet")
        middle = time.perf_counter()
        statistics.summarise(read, "higher")
        emit("reading", rows=len(read), read=middle - start, summarised=time.perf_counter() - middle)


if __name__ == "__main__":
    framework()
    first_result()
    reading()
