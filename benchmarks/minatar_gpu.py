"""The study `minatar` on a machine that has a GPU but neither polars nor rich, and its records here.

    there   python benchmarks/minatar_gpu.py run --subset h200 --workers 4 --seconds 540 FILE
    here    python benchmarks/minatar_gpu.py bring --subset h200 FILE [FILE …]
            offtrace study report minatar --subset h200

`run` does as many units as there is time for. FILE is JSON, a line for each unit, written as soon as it is done; the first line
says where that was. `--done FILE` leaves out what an earlier call has done. Units are run by the ordinary workers of a study, so
what comes out is what `offtrace study run` gives; `bring` makes ordinary records of it.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from offtrace.studies import Study
from offtrace.studies.local import LocalPool
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
    bring = commands.add_parser("bring")
    bring.add_argument("file", type=Path, nargs="+")
    bring.add_argument("--out", type=Path)
    bring.set_defaults(run=_bring)
    for command in (run, bring):
        command.add_argument("--subset")
        command.add_argument("--study", default="minatar", help="another one, by its name or file")
    args = parser.parse_args()
    args.run(args)


def _run(args: argparse.Namespace) -> None:
    plan = Plan(Study.load(args.study, args.subset))
    for file in args.done:
        for finished in _read(file):
            plan.done[finished.outcome.unit.id] = finished.outcome.score
    # Largest first, so that the end is not one long unit alone; but all traces of a game and an age are near each other, so that
    # what is there when the time is up can be compared.
    waiting = sorted((plan.job(unit) for unit in plan.left()), key=lambda job: (-job.cost, plan.order[job.unit.id]))
    started, total = time.monotonic(), len(waiting)
    pool = LocalPool(args.workers, ahead=1)
    try:
        with args.file.open("w") as file:
            print(
                json.dumps({"digest": plan.study.digest, "versions": _versions(), "machine": _machine()}),
                file=file,
                flush=True,
            )
            while (waiting or pool.pending) and (left := args.seconds - (time.monotonic() - started)) > 0:
                for _ in range(min(pool.room, len(waiting))):
                    pool.submit(waiting.pop(0))
                for outcome, worker in pool.answered(timeout=min(1.0, left)):
                    plan.mark(outcome.unit, outcome.score)
                    print(json.dumps(_spelt(outcome, worker)), file=file, flush=True)
                    spent = time.monotonic() - started
                    print(f"{spent:5.0f} s  {outcome.unit}: {outcome.score:.3f} in {outcome.seconds:.0f} s", flush=True)
    finally:
        pool.close()
    print(
        f"{len(plan.done)} of {plan.total} units are done, {total - len(waiting)} were begun, {args.seconds:.0f} s allowed"
    )


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
