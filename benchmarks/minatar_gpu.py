"""The study `minatar` on a machine that has a GPU but neither polars nor rich, and its records here.

    there   python benchmarks/minatar_gpu.py run --subset h200 --workers 4 --seconds 540 FILE
    here    python benchmarks/minatar_gpu.py bring --subset h200 FILE [FILE …]
            offtrace study report minatar --subset h200

`run` does as many units as there is time for. FILE is JSON, a line for each unit, written as soon as it is done; the first line
says where that was. `--done FILE` leaves out what an earlier call has done. All ages of a game and a trace are one program, so
that it is compiled once; several run at once, so that one computes while others compile. `bring` makes ordinary records of it.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from offtrace.studies import Study, declaration, deep
from offtrace.studies.plan import Plan, Unit
from offtrace.studies.records import Finished
from offtrace.studies.work import Outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run")
    run.add_argument("file", type=Path)
    run.add_argument("--workers", type=int, default=4)
    run.add_argument("--seconds", type=float, default=540.0)
    run.add_argument("--done", type=Path, nargs="*", default=[])
    run.set_defaults(run=_run)
    group = commands.add_parser("group", help="what run calls: one program")
    for name in ("game", "trace", "parameters"):
        group.add_argument(name)
    group.set_defaults(run=_group)
    bring = commands.add_parser("bring")
    bring.add_argument("file", type=Path, nargs="+")
    bring.add_argument("--out", type=Path)
    bring.set_defaults(run=_bring)
    for command in (run, group, bring):
        command.add_argument("--subset")
        command.add_argument("--study", default="minatar", help="another one, by its name or file")
    args = parser.parse_args()
    args.run(args)


def _run(args: argparse.Namespace) -> None:
    plan = Plan(Study.load(args.study, args.subset))
    for file in args.done:
        for finished in _read(file):
            plan.done[finished.outcome.unit.id] = finished.outcome.score
    groups = {_group_of(unit): None for unit in plan.left()}
    started = time.monotonic()
    head = {"digest": plan.study.digest, "versions": _versions(), "machine": _machine()}
    with args.file.open("w") as file, ThreadPoolExecutor(args.workers) as pool:
        print(json.dumps(head), file=file, flush=True)

        def work(group: tuple[str, ...]) -> None:
            left = args.seconds - (time.monotonic() - started)
            command = [sys.executable, __file__, "group", "--study", args.study, *group]
            command += ["--subset", args.subset] if args.subset else []
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=max(left, 0.1))
            except subprocess.TimeoutExpired:
                return
            file.write(done.stdout)
            file.flush()
            spent, units = time.monotonic() - started, done.stdout.count("\n")
            print(
                f"{spent:5.0f} s  {' '.join(group)}: {units} units",
                done.stderr[-2000:] if done.returncode else "",
                flush=True,
            )

        list(pool.map(work, groups))
    left = sum(1 for _ in plan.left())
    print(f"{sum(1 for _ in _read(args.file))} of {left} units in {time.monotonic() - started:.0f} s")


def _group_of(unit: Unit) -> tuple[str, str, str]:
    """Units that run in one program: they differ in their age."""
    return unit.environment, unit.trace, unit.parameters


def _group(args: argparse.Namespace) -> None:
    plan = Plan(Study.load(args.study, args.subset))
    jobs = [plan.job(unit) for unit in plan.left() if _group_of(unit) == (args.game, args.trace, args.parameters)]
    started = time.monotonic()
    traces = [declaration.make(args.trace, json.loads(args.parameters or "{}"), lam) for lam in jobs[0].lams]
    found = deep.together(jobs, traces)
    seconds = (time.monotonic() - started) / len(jobs)
    for job, (rows, curve) in zip(jobs, found, strict=True):
        print(json.dumps(_spelt(Outcome(job.unit, rows, curve, float(np.mean(rows["value"])), seconds), "gpu")))


def _bring(args: argparse.Namespace) -> None:
    study = Study.load(args.study, args.subset, args.out)
    for file in args.file:
        head = json.loads(file.open().readline())
        if head["digest"] != study.digest:
            sys.exit(
                f"{file} is of another study ({head['digest'][:12]}) than {study.name} as it is now ({study.digest[:12]})"
            )
        new = study.bring(list(_read(file)), head["versions"], head["machine"])
        print(f"{file}: {new} new units")
    print(study.status())


def _spelt(outcome: Outcome, worker: str) -> dict[str, Any]:
    columns = {kind: {k: v.tolist() for k, v in getattr(outcome, kind).items()} for kind in ("rows", "curve")}
    when = datetime.now(UTC).isoformat()
    about = {"score": outcome.score, "seconds": outcome.seconds, "worker": worker, "finished": when}
    return {"unit": asdict(outcome.unit), **columns, **about}


def _read(file: Path) -> Iterator[Finished]:
    """What was written; a last line that was torn is left out."""
    for line in file.read_text().splitlines()[1:]:
        try:
            given = json.loads(line)
        except ValueError:
            continue
        rows, curve = ({k: np.array(v) for k, v in given[kind].items()} for kind in ("rows", "curve"))
        outcome = Outcome(Unit(**given["unit"]), rows, curve, given["score"], given["seconds"])
        yield Finished(outcome, given["worker"], datetime.fromisoformat(given["finished"]))


def _versions() -> dict[str, str]:
    packages = {name: metadata.version(name) for name in ("numpy", "jax", "flax", "optax")}
    import offtrace

    return {"offtrace": offtrace.__version__, "python": platform.python_version(), **packages}


def _machine() -> str:
    try:
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        gpu = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip().replace("\n", ", ")
    except (OSError, subprocess.CalledProcessError):
        gpu = "no GPU"
    return f"{platform.system()} {platform.machine()}, {gpu}"


if __name__ == "__main__":
    main()
