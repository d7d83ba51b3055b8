"""This very process: units are run one after another, nothing is started, and a debugger sees them."""

from __future__ import annotations

import os

from offtrace.studies.declaration_checks import StudyError
from offtrace.studies.plan import Failure, Job, Outcome


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

    def answered(self, timeout: float) -> list[tuple[Outcome | Failure, str]]:
        """Run the unit that waits: (outcome or failure, worker)."""
        from offtrace.studies import work

        job, worker = self.waiting.pop(), f"local:{os.getpid()}"
        try:
            return [(work.run(job), worker)]
        except StudyError:  # it was interrupted
            raise
        except Exception as error:
            return [(Failure.raised(job.unit, error), worker)]

    def close(self) -> None:
        """There is nothing to end."""
