"""Run the grid of stale.toml, or what is left of it, into FILE: JSON, a line for each unit, written as soon as it is done.

    cd experiments
    python -m stale.run --subset minutes minutes.jsonl            # about six minutes on two cores
    python -m stale.tables minutes.jsonl

A cell is an environment and an age. All its weightings, step sizes and tuning seeds are trained side by side, and then all its
weightings with the step sizes that tuning has chosen and the test seeds, as many at once as `--runs` says, in one compiled
program. Cells follow the order of `--ages`, and within an age that of the environments; with `--threads`, one cell computes
while others compile. Interrupt it at any time: the same command continues with the units that FILE lacks.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import jax
import numpy as np

import offtrace.returns.jax.backend  # noqa: F401 (here, since threads that import JAX at the same time get half of it)
from offtrace.studies import provenance
from stale.grid import Grid, Unit
from stale.units import Columns, train_units


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--subset")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="no cell begins later, and what runs then is lost"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=108, help="how many are trained side by side")
    parser.add_argument("--ages", type=int, nargs="*", help="which, and in which order")
    parser.add_argument("--environments", type=int, nargs="*", help="the numbers of those that are run, from 0; all")
    args = parser.parse_args()
    jax.config.update("jax_default_matmul_precision", "tensorfloat32")  # where "float32" is said, on a GPU
    grid = Grid(args.subset)
    places = [grid.environments[i] for i in args.environments or range(len(grid.environments))]
    ages = args.ages or sorted(grid.ages, reverse=True)
    work = Work(grid, args.file, args.runs, args.seconds)
    pool = ThreadPoolExecutor(args.threads)
    cells = [pool.submit(work.run_cell, place, age) for age in ages for place in places]
    ended, _ = wait(cells, timeout=None if args.seconds == float("inf") else args.seconds)
    for cell in ended:
        if error := cell.exception():
            traceback.print_exception(error)
    print(f"{len(ended)} of {len(cells)} cells in {work.spent():.0f} s", flush=True)
    os._exit(1 if any(cell.exception() for cell in ended) else 0)  # what is still being computed is given up


class Work:
    """What all threads share: the file with the scores in it, and the time."""

    def __init__(self, grid: Grid, file: Path, runs: int, seconds: float = float("inf")) -> None:
        self.grid, self.runs, self.seconds = grid, runs, seconds
        self.started, self.lock = time.monotonic(), threading.Lock()
        self.scores: dict[Unit, float] = {}
        head = {"study": grid.name, "versions": provenance.versions("deep"), "machine": provenance.machine()}
        for line in complete_lines(file) if file.exists() else ():
            if "unit" in line:
                self.scores[unit_of(line)] = line["score"]
            elif line["study"] != grid.name:
                raise SystemExit(f"{file} holds units of {line['study']}, and this is {grid.name}: give another file")
        if file.exists():
            cut_torn_line(file)
        self.file = file.open("a")
        if not self.scores:
            print(json.dumps(head), file=self.file, flush=True)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.started

    def run_cell(self, environment: str, age: int) -> None:
        """Tune and test all weightings in an environment, at an age."""
        tuning = self.grid.units("tuning", environment, age)
        self.run_units([unit for group in tuning for unit in group])
        if self.spent() < self.seconds:  # the first of equals is the smaller step size
            chosen = [max(sorted(group, key=lambda u: u.alpha), key=self.scores.__getitem__) for group in tuning]
            self.run_units([unit._replace(phase="test") for unit in chosen])

    def run_units(self, units: list[Unit]) -> None:
        """Train what is not done, as many runs at once as there may be."""
        left = [unit for unit in units if unit not in self.scores]
        at_once = max(1, self.runs // len(self.grid.seeds_of(units[0].phase)))
        while left and self.spent() < self.seconds:
            first, left = left[:at_once], left[at_once:]
            began = time.monotonic()
            trained = train_units(self.grid, first, self.runs if left else 0)
            with self.lock:
                for unit, (rows, curve) in zip(first, trained, strict=True):
                    self.write(unit, rows, curve, (time.monotonic() - began) / len(first))
                print(
                    f"{self.spent():5.0f} s  {first[0].phase}, age {first[0].age}, {first[0].environment}", flush=True
                )

    def write(self, unit: Unit, rows: Columns, curve: Columns, seconds: float) -> None:
        """Write a line; curves of the test seeds only."""
        score = float(np.mean(rows["value"]))
        line = {
            "unit": unit._asdict(),
            "rows": shortened(rows),
            "curve": shortened(curve) if unit.phase == "test" else {},
        }
        print(json.dumps({**line, "score": score, "seconds": seconds}), file=self.file, flush=True)
        self.scores[unit] = score


def complete_lines(file: Path) -> list[dict[str, Any]]:
    """What was written; a last line that was torn is left out."""
    text = (gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()).decode()
    whole, _, _ = text.rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def cut_torn_line(file: Path) -> None:
    """Remove what a killed process has left of a line, so that the next line does not continue it."""
    text = file.read_bytes()
    file.write_bytes(text[: text.rfind(b"\n") + 1])


def unit_of(line: dict[str, Any]) -> Unit:
    """The unit of a line."""
    return Unit(**{name: line["unit"][name] for name in Unit._fields})


def shortened(columns: Columns) -> dict[str, list[Any]]:
    """With five significant digits, so that a file of an hour can be kept."""
    return {
        name: [float(f"{x:.5g}") for x in column] if column.dtype.kind == "f" else column.tolist()
        for name, column in columns.items()
    }


if __name__ == "__main__":
    main()
