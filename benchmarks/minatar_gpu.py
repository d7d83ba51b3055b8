"""The study `minatar` on a machine that has a GPU but neither polars nor rich, and its records here.

    there   python benchmarks/minatar_gpu.py run --subset h200 --seconds 540 FILE
    here    python benchmarks/minatar_gpu.py import --subset h200 FILE [FILE …]
            offtrace study report FOLDER                       which `import` names

`run` does as many units as there is time for. FILE is JSON, a line for each unit, written as soon as it is done; the first line
says where that was. It may be compressed afterwards (.gz). `--done FILE` leaves out what an earlier call has done. A few units
run at once, in threads, so that one computes while others compile (in processes the GPU would switch between them, which costs
more than half of its time). `import` makes ordinary records.
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

from offtrace.studies import Study
from offtrace.studies.plan import Job, Outcome, Plan, Unit
from offtrace.studies.provenance import machine, versions
from offtrace.studies.store import Store
from offtrace.studies.tasks import deep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run")
    run.add_argument("file", type=Path)
    run.add_argument("--threads", type=int, default=5)
    run.add_argument("--seconds", type=float, default=540.0)
    run.add_argument("--done", type=Path, nargs="*", default=[])
    run.set_defaults(run=_run)
    imported = commands.add_parser("import")
    imported.add_argument("file", type=Path, nargs="+")
    imported.add_argument("--out", type=Path)
    imported.set_defaults(run=import_files)
    for command in (run, imported):
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
        for outcome, *_ in read(file):
            plan.done[outcome.unit.id] = outcome.score
    jobs = [plan.job(unit) for unit in plan.left()]
    started = time.monotonic()
    head = {"digest": plan.study.digest, "versions": versions(plan.study.task), "machine": machine()}
    head["code"] = plan.study.code.about()
    with args.file.open("w") as file:
        print(json.dumps(head), file=file, flush=True)

        def work(job: Job) -> None:
            began = time.monotonic()
            rows, curve = deep.run(job)
            outcome = Outcome(job.unit, rows, curve, float(np.mean(rows["value"])), time.monotonic() - began)
            file.write(json.dumps(spelt(outcome, "gpu")) + "\n")
            file.flush()
            print(f"{time.monotonic() - started:5.0f} s  {job.unit}", flush=True)

        pool = ThreadPoolExecutor(args.threads)
        ended, late = wait([pool.submit(work, job) for job in jobs], timeout=args.seconds)
        for future in ended:
            if error := future.exception():
                traceback.print_exception(error)
        print(f"{len(jobs) - len(late)} of {len(jobs)} units in {time.monotonic() - started:.0f} s", flush=True)
    os._exit(0)  # what is still being computed is given up


def import_files(args: argparse.Namespace) -> None:
    """Make ordinary records of files that came back."""
    study = Study.load(args.study, args.subset, args.out)
    units = Plan(study).units
    for file in args.file:
        head = json.loads(lines(file)[0])
        if head["digest"] != study.digest:
            sys.exit(f"{file} is of another study than {study.name} as it is declared")
        about = {"study": study.declaration, "versions": head["versions"], "machine": head["machine"]}
        code = {"digest": "", **head.get("code", {})}  # older files have none
        store = Store(study.folder, study.digest)
        with store.writing(about, study.as_toml(), code) as contents:
            new = [f for f in read(file) if f[0].unit.id in units and f[0].unit.id not in contents.done]
            for outcome, worker, finished in new:
                store.add(outcome, worker, code["digest"], finished)
        print(f"{file}: {len(new)} new units")
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


def read(file: Path) -> Iterator[tuple[Outcome, str, datetime]]:
    """What was written; a last line that was torn is left out."""
    for line in lines(file)[1:]:
        try:
            given = json.loads(line)
        except ValueError:
            continue
        rows, curve = ({k: np.array(v) for k, v in given[kind].items()} for kind in ("rows", "curve"))
        outcome = Outcome(Unit(**given["unit"]), rows, curve, given["score"], given["seconds"])
        yield outcome, given["worker"], datetime.fromisoformat(given["finished"])


if __name__ == "__main__":
    main()
