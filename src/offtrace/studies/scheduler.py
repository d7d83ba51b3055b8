"""The coordinator: hands out units, the largest first, and commits what comes back."""

from __future__ import annotations

import contextlib
import heapq
import shutil
import time
from pathlib import Path

from offtrace._shared.number_text import duration
from offtrace._shared.progress_bar import ProgressBar
from offtrace.studies.executor import Executor
from offtrace.studies.fields import StudyError
from offtrace.studies.plan import Failure, Job, Plan, Unit
from offtrace.studies.store import Store

SHOWN = 8
"""Units that were set aside and are named at the end."""


def run(plan: Plan, store: Store, executor: Executor, progress: bool) -> None:
    """Run what is left. Whatever ends it, what has come in is written. Units that fail are set aside, and an error at the end."""
    order = {id: i for i, id in enumerate(plan.units)}
    waiting: list[tuple[float, int, Unit]] = []
    attempts: dict[str, int] = {}
    failed: list[Failure] = []
    code = plan.study.code.digest

    def push(unit: Unit) -> None:
        heapq.heappush(waiting, (-plan.cost(unit), order.setdefault(unit.id, len(order)), unit))

    for unit in plan.left():
        push(unit)
    with Progress(plan, str(executor), progress) as shown:
        while waiting or executor.busy:
            while waiting and executor.free:
                executor.submit(plan.job(heapq.heappop(waiting)[-1]))
            for answer, worker in executor.answers(timeout=0.5):
                id = answer.unit.id
                if isinstance(answer, Failure):
                    attempts[id] = attempts.get(id, 0) + 1
                    if attempts[id] < answer.attempts:
                        push(answer.unit)
                    else:
                        failed.append(answer)
                        store.fail(answer)
                elif id not in plan.done:
                    store.add(answer, worker, code)
                    if test := plan.mark(answer.unit, answer.score):
                        push(test)
                    shown.step(answer.unit)
                    _forget_checkpoints(plan.job(answer.unit))
    if failed:
        each = "".join(f"\n  {failure.unit}: {failure.error}" for failure in failed[:SHOWN])
        more = f"\n  and {len(failed) - SHOWN} more: `offtrace study status` names them" if len(failed) > SHOWN else ""
        raise StudyError(
            f"{len(failed)} unit{'s were' if len(failed) > 1 else ' was'} set aside; the others are done, but for tests that "
            f"wait for them. The same command tries again. The tracebacks are in {store.folder / 'failed'}{each}{more}"
        )


class Progress:
    """A bar with the rate and the time that is left, by the work that is left and not by the number of units."""

    def __init__(self, plan: Plan, where: str, shown: bool) -> None:
        self.plan, self.where = plan, where
        self.bar = ProgressBar() if shown else None
        self.before, self.started, self.cost = len(plan.done), time.monotonic(), 0.0
        costs = [(plan.cost(group[0]), len(group)) for group in plan.groups.values()]
        tests = sum(self._test_cost(group[0]) for group in plan.groups.values()) if plan.tunes else 0.0
        done = sum(plan.cost(plan.units[id]) for id in plan.done)
        self.left = sum(cost * n for cost, n in costs) + tests - done

    def _test_cost(self, unit: Unit) -> float:
        seeds = self.plan.study.seeds
        return self.plan.cost(unit) * seeds[self.plan.last_phase].count / seeds[self.plan.first_phase].count

    def __enter__(self) -> Progress:
        self._show()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self._show(last=True)
            self.bar.close()

    def step(self, unit: Unit) -> None:
        """Count a unit that is done."""
        self.cost += self.plan.cost(unit)
        self._show()

    def _show(self, last: bool = False) -> None:
        if self.bar is None:
            return
        spent = time.monotonic() - self.started
        rate = (len(self.plan.done) - self.before) / max(spent, 1e-9)
        left = max(0.0, self.left - self.cost)
        time_left = f", {rate:.2g}/s, {duration(spent * left / self.cost)} left" if self.cost else ""
        time_left = f", {duration(spent)}" if last else time_left
        text = f"{self.plan.study.name}: {len(self.plan.done)}/{self.plan.total} units done on {self.where}{time_left}"
        # With as much done as there is, the bar shows the text whatever was shown when.
        self.bar.show(1.0 if last else self.cost, 1.0 if last else max(self.left, self.cost) + 1e-9, text)


def _forget_checkpoints(job: Job) -> None:
    """Remove the checkpoints of a unit: its records are written."""
    if job.unfinished:
        shutil.rmtree(job.unfinished, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are under way
            Path(job.unfinished).parent.rmdir()
