"""The study `stale` on a machine that has a GPU but neither polars nor rich, and its records here.

    there   python benchmarks/stale_gpu.py run --subset h200 --seconds 540 FILE
    here    python benchmarks/stale_gpu.py bring --subset h200 FILE [FILE …]
            offtrace study report FOLDER                       which `bring` names

A cell is an environment and an age. All its weightings, step sizes and tuning seeds are trained side by side, and then all its
weightings with the step sizes that tuning has chosen and the test seeds, as many at once as `--runs` says, in one compiled
program. Cells go by the order of `--ages`, and within an age by that of the environments; a few threads take them, so that one
cell computes while others compile. FILE is JSON, a line for each unit, written as soon as it is done, curves
of the test seeds only. No cell is begun after
`--seconds`, and what runs then is given up. `--done FILE` leaves out what an earlier call has done.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TextIO

import numpy as np
from minatar_gpu import bring, lines, read, spelt

from offtrace.studies import Study
from offtrace.studies.plan import Job, Outcome, Plan, Unit
from offtrace.studies.provenance import machine, versions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run")
    run.add_argument("file", type=Path)
    run.add_argument("--seconds", type=float, default=540.0)
    run.add_argument("--threads", type=int, default=3)
    run.add_argument("--runs", type=int, default=108, help="how many are trained side by side")
    run.add_argument("--ages", type=int, nargs="*", default=[64, 16, 4, 1], help="which, and in which order")
    run.add_argument("--environments", type=int, nargs="*", help="the numbers of those that are run, from 0; all")
    run.add_argument("--updates", type=int, help="fewer, to try it out: what comes of it cannot be brought")
    run.add_argument(
        "--at-least", type=float, default=0.0, help="exit with 3 if no weighting's test reaches this reward"
    )
    run.add_argument("--done", type=Path, nargs="*", default=[])
    run.set_defaults(run=_run)
    brought = commands.add_parser("bring")
    brought.add_argument("file", type=Path, nargs="+")
    brought.add_argument("--out", type=Path)
    brought.set_defaults(run=bring)
    for command in (run, brought):
        command.add_argument("--subset")
        command.add_argument("--study", default="stale", help="another one, by its name or file")
    args = parser.parse_args()
    args.run(args)


def _run(args: argparse.Namespace) -> None:
    import jax

    import offtrace.returns.jax.backend
    import offtrace.studies.stale.units  # noqa: F401 (here, since threads that import JAX at the same time get half of it)

    jax.config.update("jax_default_matmul_precision", "tensorfloat32")  # where "float32" is said, on a GPU
    study = Study.load(args.study, args.subset)
    if args.updates:
        study = Study.declared(
            {**study.given, "protocol": {**study.given["protocol"], "updates": args.updates}}, args.subset
        )
    plan = Plan(study)
    for file in args.done:
        if json.loads(lines(file)[0])["digest"] != study.digest:
            sys.exit(f"{file} was made by other code, or is of another study: its units are not those of now")
        for finished in read(file):
            plan.done[finished.outcome.unit.id] = finished.outcome.score
    names = [place.name for place in study.environments]
    chosen = names if args.environments is None else [names[i] for i in args.environments]
    cells = [(name, age) for age in args.ages if age in study.ages for name in chosen]
    head = {"digest": study.digest, "versions": versions(study.task), "machine": machine(), "code": study.code.about()}
    with args.file.open("w") as file:
        print(json.dumps(head), file=file, flush=True)
        work = Work(plan, args.runs, args.seconds, file)
        pool = ThreadPoolExecutor(args.threads)
        left = time.monotonic() - work.started
        ended, _ = wait([pool.submit(work.cell, *cell) for cell in cells], timeout=args.seconds - left)
        for future in ended:
            if error := future.exception():
                traceback.print_exception(error)
        print(f"{len(ended)} of {len(cells)} cells, {work.written} units in {work.spent():.0f} s", flush=True)
        file.flush()
    failed = any(future.exception() for future in ended)
    os._exit(1 if failed else 3 if work.best < args.at_least else 0)  # what is still being computed is given up


class Work:
    """What all threads share: the plan, the file, and the time."""

    def __init__(self, plan: Plan, runs: int, seconds: float, file: TextIO) -> None:
        self.plan, self.runs, self.seconds, self.file = plan, runs, seconds, file
        self.started, self.written, self.lock = time.monotonic(), 0, threading.Lock()
        self.best = 0.0  # the best mean reward of a test

    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.started

    def cell(self, environment: str, age: int) -> None:
        """Tune and test all weightings there."""
        plan = self.plan
        groups = [g for g in plan.groups.values() if (g[0].environment, g[0].age) == (environment, age)]
        self.units([unit for group in groups for unit in group])
        if plan.tunes and self.spent() < self.seconds:
            self.units([plan.test_of(group) for group in groups])

    def units(self, units: list[Unit]) -> None:
        """Train what is not done, as many runs at once as there may be."""
        from offtrace.studies.stale.units import together

        jobs = [self.plan.job(unit) for unit in units if unit.id not in self.plan.done]
        while jobs and self.spent() < self.seconds:
            first: list[Job] = []
            while jobs and (not first or sum(j.count for j in first) + jobs[0].count <= self.runs):
                first.append(jobs.pop(0))
            began = time.monotonic()
            found = together(first, self.runs)
            seconds = time.monotonic() - began
            with self.lock:
                for job, (rows, curve) in zip(first, found, strict=True):
                    score = float(np.mean(rows["value"]))
                    self.plan.mark(job.unit, score)
                    kept = curve if job.unit.phase == self.plan.last_phase else {}
                    outcome = Outcome(job.unit, shortened(rows), shortened(kept), score, seconds / len(first))
                    self.file.write(json.dumps(spelt(outcome, "gpu")) + "\n")
                self.file.flush()
                self.written += len(first)
                unit, n = first[0].unit, sum(job.count for job in first)
                print(
                    f"{self.spent():5.0f} s  {n} runs in {seconds:.0f} s: {unit.phase}, age {unit.age}, {unit.environment}",
                    flush=True,
                )
                if unit.phase == self.plan.last_phase:
                    self.say(first, [rows for rows, _ in found])

    def say(self, jobs: list[Job], rows: list[dict[str, np.ndarray]]) -> None:
        """A first look."""
        self.best = max([self.best, *(float(found["reward"].mean()) for found in rows)])
        for job, found in zip(jobs, rows, strict=True):
            label = json.loads(job.unit.parameters)["label"]
            told = " ".join(
                f"{name} {found[name].mean():.2f}" for name in ("reward", "success", "collapsed", "entropy", "ess")
            )
            print(f"         {label:<34} α {job.unit.alpha:g}  {told}", flush=True)


def shortened(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With five significant digits, so that a file of an hour can be brought back."""
    return {
        name: np.array([float(f"{x:.5g}") for x in column]) if column.dtype.kind == "f" else column
        for name, column in columns.items()
    }


if __name__ == "__main__":
    main()
