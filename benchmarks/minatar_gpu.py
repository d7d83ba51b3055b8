"""The study `minatar` on a machine that has a GPU but neither polars nor rich, and its records here.

    there   python benchmarks/minatar_gpu.py run --subset h200 --seconds 540 FILE
    here    python benchmarks/minatar_gpu.py bring --subset h200 FILE [FILE …]
            offtrace study report FOLDER                       which `bring` names

`run` does as many units as there is time for. FILE is JSON, a line for each unit, written as soon as it is done; the first line
says where that was. It may be compressed afterwards (.gz). `--done FILE` leaves out what an earlier call has done. All ages of a
game and a trace are one program, so that it is compiled once; a few run at once, in threads, so that one computes while others
compile (in processes the GPU would switch between them, which costs more than half of its time). `bring` makes ordinary records.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from offtrace.studies import Study, StudyError, declared_traces, deep_units
from offtrace.studies.plan import Job, Outcome, Plan, Unit
from offtrace.studies.provenance import machine, versions
from offtrace.studies.records import Finished


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run")
    run.add_argument("file", type=Path)
    run.add_argument("--threads", type=int, default=5)
    run.add_argument("--seconds", type=float, default=540.0)
    run.add_argument("--done", type=Path, nargs="*", default=[])
    run.set_defaults(run=_run)
    brought = commands.add_parser("bring")
    brought.add_argument("file", type=Path, nargs="+")
    brought.add_argument("--out", type=Path)
    brought.set_defaults(run=bring)
    for command in (run, brought):
        command.add_argument("--subset")
        command.add_argument("--study", default="minatar", help="another one, by its name or file")
    args = parser.parse_args()
    args.run(args)


def _run(args: argparse.Namespace) -> None:
    import gymnax  # noqa: F401

    import offtrace.deep.runs
    import offtrace.returns.jax.backend  # noqa: F401 (here, since threads that import JAX at the same time get half of it)

    plan = Plan(Study.load(args.study, args.subset))
    for file in args.done:
        if json.loads(lines(file)[0])["digest"] != plan.study.digest:
            sys.exit(f"{file} was made by other code, or is of another study: its units are not those of now")
        for finished in read(file):
            plan.done[finished.outcome.unit.id] = finished.outcome.score
    groups: dict[tuple[str, ...], list[Job]] = {}
    for unit in plan.left():
        groups.setdefault((unit.environment, unit.trace, unit.parameters), []).append(plan.job(unit))
    started = time.monotonic()
    head = {"digest": plan.study.digest, "versions": versions(plan.study.task), "machine": machine()}
    head["code"] = plan.study.code.about()
    with args.file.open("w") as file:
        print(json.dumps(head), file=file, flush=True)

        def work(jobs: list[Job]) -> None:
            began = time.monotonic()
            unit = jobs[0].unit
            traces = [
                declared_traces.make(unit.trace, json.loads(unit.parameters or "{}"), lam) for lam in jobs[0].lams
            ]
            found = deep_units.together(jobs, traces)
            seconds = (time.monotonic() - began) / len(jobs)
            for job, (rows, curve) in zip(jobs, found, strict=True):
                outcome = Outcome(job.unit, rows, curve, float(np.mean(rows["value"])), seconds)
                file.write(json.dumps(spelt(outcome, "gpu")) + "\n")
            file.flush()
            print(f"{time.monotonic() - started:5.0f} s  {unit.trace} on {unit.environment}", flush=True)

        pool = ThreadPoolExecutor(args.threads)
        ended, late = wait([pool.submit(work, jobs) for jobs in groups.values()], timeout=args.seconds)
        for future in ended:
            if error := future.exception():
                traceback.print_exception(error)
        print(f"{len(groups) - len(late)} of {len(groups)} programs in {time.monotonic() - started:.0f} s", flush=True)
    os._exit(0)  # what is still being computed is given up


def bring(args: argparse.Namespace) -> None:
    """Make ordinary records of files that came back."""
    study = now = Study.load(args.study, args.subset, args.out)
    for file in args.file:
        head = json.loads(lines(file)[0])
        code = head.get("code", {})  # older files have none
        try:
            study = now.as_recorded(head["digest"], code.get("digest", ""))
        except StudyError as error:
            sys.exit(f"{file} is of another study: {error}")
        new = study.bring(list(read(file)), head["versions"], head["machine"], code)
        print(f"{file}: {new} new units")
    print(study.status())


def spelt(outcome: Outcome, worker: str) -> dict[str, Any]:
    """What a line of a file says of a unit."""
    columns = {kind: {k: v.tolist() for k, v in getattr(outcome, kind).items()} for kind in ("rows", "curve")}
    when = datetime.now(UTC).isoformat()
    about = {"score": outcome.score, "seconds": outcome.seconds, "worker": worker, "finished": when}
    return {"unit": asdict(outcome.unit), **columns, **about}


def lines(file: Path) -> list[str]:
    """The lines of a file, which may be compressed."""
    return (gzip.open(file, "rt").read() if file.suffix == ".gz" else file.read_text()).splitlines()


def read(file: Path) -> Iterator[Finished]:
    """What was written; a last line that was torn is left out."""
    for line in lines(file)[1:]:
        try:
            given = json.loads(line)
        except ValueError:
            continue
        rows, curve = ({k: np.array(v) for k, v in given[kind].items()} for kind in ("rows", "curve"))
        outcome = Outcome(Unit(**given["unit"]), rows, curve, given["score"], given["seconds"])
        yield Finished(outcome, given["worker"], datetime.fromisoformat(given["finished"]))


if __name__ == "__main__":
    main()
