"""This very process: units are run one after another, nothing is started, and a debugger sees them."""

from __future__ import annotations

import os
import traceback

from offtrace.studies.declaration_checks import StudyError
from offtrace.studies.plan import Job, Outcome


class ThisProcess:
    """A pool without workers."""

    def __init__(self) -> None:
        self.waiting: list[Job] = []

    def __str__(self) -> str:
        return "this process"

    @property
    def pending(self) -> int:
        """Jobs that were taken and not answered."""
        return len(self.waiting)

    @property
    def room(self) -> int:
        """How many more jobs it would take."""
        return 1 - self.pending

    def submit(self, job: Job) -> None:
        """Keep a job until its answer is asked for."""
        self.waiting.append(job)

    def answered(self, timeout: float) -> list[tuple[Outcome, str]]:
        """Run the unit that waits: (outcome, worker)."""
        from offtrace.studies import work

        job = self.waiting.pop()
        try:
            return [(work.run(job), f"local:{os.getpid()}")]
        except Exception:
            raise StudyError(f"a unit failed: {job.unit}\n{traceback.format_exc()}") from None

    def close(self) -> None:
        """There is nothing to end."""
