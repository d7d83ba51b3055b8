"""The coordinator: hands out units, the largest first, and writes what comes back about once a second."""

from __future__ import annotations

import contextlib
import heapq
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from offtrace.studies.declaration_checks import StudyError
from offtrace.studies.interruption import held_back
from offtrace.studies.plan import Failure, Job, Outcome, Plan
from offtrace.studies.progress_display import Display
from offtrace.studies.records import Finished, Folder

FLUSH = 1.0
"""Seconds between two writes: what a SIGKILL may cost."""


SHOWN = 8
"""Units that were set aside and are named at the end."""


class Pool(Protocol):
    """Where units are run."""

    @property
    def pending(self) -> int: ...  # noqa: D102
    @property
    def room(self) -> int: ...  # noqa: D102
    def submit(self, job: Job) -> None: ...  # noqa: D102
    def answered(self, timeout: float) -> Sequence[tuple[Outcome | Failure, str]]: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class _Queue:
    """Units that wait, the largest first; but the very first ones are small, so that something is seen soon."""

    def __init__(self, jobs: list[Job], order: dict[str, int], small: int) -> None:
        self.order = order
        jobs = sorted(jobs, key=lambda job: (job.cost, order[job.unit.id]))
        self.small, self.heap = jobs[:small][::-1], []
        for job in jobs[small:]:
            self.add(job)

    def add(self, job: Job) -> None:
        heapq.heappush(self.heap, (-job.cost, self.order[job.unit.id], job))

    def pop(self) -> Job:
        return self.small.pop() if self.small else heapq.heappop(self.heap)[-1]

    def __len__(self) -> int:
        return len(self.small) + len(self.heap)


def run(plan: Plan, folder: Folder, pool: Pool, display: Display, versions: dict[str, str]) -> None:
    """Run what is left. Whatever ends it, what has come in is written. Units that fail are set aside, and an error at the end."""
    waiting = _Queue([plan.job(unit) for unit in plan.left()], plan.order, small=1)
    batch: list[Finished] = []
    failed: list[Failure] = []
    written = time.monotonic()

    def collect() -> None:
        for answer, worker in pool.answered(timeout=0.25 if batch else 1.0):
            if isinstance(answer, Failure):
                failed.append(answer)
                folder.fail(answer)
            elif answer.unit.id not in plan.done:
                batch.append(Finished(answer, worker, datetime.now(UTC)))
                if following := plan.mark(answer.unit, answer.score):
                    waiting.add(plan.job(following))
                display.step(answer.unit, answer.score, plan.job(answer.unit).cost)

    def flush() -> None:
        nonlocal written
        if batch:
            with held_back():  # interrupted when it is written but not cleared, it would be written once more
                folder.write(batch, versions)
                for finished in batch:
                    _forget_checkpoints(plan.job(finished.outcome.unit))
                batch.clear()
        written = time.monotonic()

    try:
        while waiting or pool.pending:
            for _ in range(min(pool.room, len(waiting))):
                pool.submit(waiting.pop())
            collect()
            if time.monotonic() - written >= FLUSH:
                flush()
    finally:
        flush()
    if failed:
        each = "".join(f"\n  {failure.unit}: {failure.error}" for failure in failed[:SHOWN])
        more = f"\n  and {len(failed) - SHOWN} more: `offtrace study status` names them" if len(failed) > SHOWN else ""
        raise StudyError(
            f"{len(failed)} unit{'s were' if len(failed) > 1 else ' was'} set aside; the others are done, but for tests that "
            f"wait for them. The same command tries again. The tracebacks are in {folder.path / 'failed'}{each}{more}"
        )


def _forget_checkpoints(job: Job) -> None:
    """Remove what a unit has kept to go on from: its records are written."""
    if job.unfinished:
        shutil.rmtree(job.unfinished, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are under way
            Path(job.unfinished).parent.rmdir()
