"""Running a study: what is done already is looked for, and the rest is handed to a pool of workers."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator
from typing import TYPE_CHECKING

from offtrace._shared.cores import cores
from offtrace.studies.plan import Plan
from offtrace.studies.running import Pool
from offtrace.studies.study_records import about, folder_of

if TYPE_CHECKING:
    from offtrace.studies.records import Found
    from offtrace.studies.study import Study


def run(
    study: Study,
    on: str,
    workers: int | None,
    address: str | None,
    progress: bool,
    rerun_changed: bool,
    patience: float,
) -> Study:
    """What `Study.run` does when its arguments have been checked."""
    plan, folder = Plan(study), folder_of(study)

    def look() -> Found:
        found = folder.look(plan.units)
        again = [unit for unit, code in found.codes.items() if rerun_changed and code != study.code.digest]
        plan.take({unit: score for unit, score in found.done.items() if unit not in again})
        return found

    if folder.path.is_dir() and not look().problems and plan.finished:
        return study  # also where nothing can be written
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder.lock())
        pool = None
        if on == "local" and not plan.done:
            pool = stack.enter_context(
                _pool(on, address, workers, plan, patience)
            )  # it starts while the rest is imported
        from offtrace.studies import progress_display, provenance, running

        versions = provenance.versions(study.task)
        said = about(study, versions, provenance.machine(), study.code.about())
        problems = folder.prepare(said, study.as_toml())
        found = look()
        folder.tidy(found)
        folder.keep_code({**study.code.source(), "versions": versions})
        for problem in (*problems, *(str(folder.path / problem) for problem in found.problems)):
            warnings.warn(f"not read: {problem}", stacklevel=4)
        if not plan.finished:
            pool = pool or stack.enter_context(_pool(on, address, workers, plan, patience))
            with progress_display.display(plan, str(pool), progress) as shown:
                running.run(plan, folder, pool, shown, versions)
    return study


@contextlib.contextmanager
def _pool(
    on: str, address: str | None, workers: int | None, plan: Plan, patience: float
) -> Generator[Pool, None, None]:
    if on == "ray":
        from offtrace.studies.on_ray import RayPool

        pool: Pool = RayPool(address, workers)
    elif workers == 0:
        from offtrace.studies.this_process import ThisProcess

        pool = ThisProcess()
    else:
        from offtrace.studies.local_processes import AHEAD, LocalPool

        pool = LocalPool(
            min(workers or cores(), plan.total),
            ahead=1 if plan.study.task == "deep" else AHEAD,
            patience=patience,
        )
    try:
        yield pool
    finally:
        pool.close()
