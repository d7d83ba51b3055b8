"""The coordinator: hands out units, the largest first, and writes what comes back about once a second."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from offtrace.studies.plan import Job, Outcome, Plan, Unit
from offtrace.studies.progress_display import Display
from offtrace.studies.records import Finished, Folder

FLUSH = 1.0
"""Seconds between two writes: what a SIGKILL may cost."""


class Pool(Protocol):
    """Where units are run."""

    @property
    def pending(self) -> int: ...  # noqa: D102
    @property
    def room(self) -> int: ...  # noqa: D102
    def submit(self, job: Job) -> None: ...  # noqa: D102
    def answered(self, timeout: float) -> list[tuple[Outcome, str]]: ...  # noqa: D102
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
    """Run what is left. Whatever ends it, what has come in is written."""
    waiting = _Queue([plan.job(unit) for unit in plan.left()], plan.order, small=1)
    batch: list[Finished] = []
    written = time.monotonic()

    def flush() -> None:
        nonlocal written
        if batch:
            folder.write(batch, versions)
            batch.clear()
        written = time.monotonic()

    try:
        while waiting or pool.pending:
            for _ in range(min(pool.room, len(waiting))):
                pool.submit(waiting.pop())
            _collect(plan, pool, batch, waiting.add, display)
            if time.monotonic() - written >= FLUSH:
                flush()
    finally:
        flush()


def _collect(plan: Plan, pool: Pool, batch: list[Finished], add: Callable[[Job], None], display: Display) -> None:
    for outcome, worker in pool.answered(timeout=0.25 if batch else 1.0):
        unit: Unit = outcome.unit
        if unit.id in plan.done:
            continue
        batch.append(Finished(outcome, worker, datetime.now(UTC)))
        following = plan.mark(unit, outcome.score)
        if following:
            add(plan.job(following))
        display.step(unit, outcome.score, plan.job(unit).cost)
