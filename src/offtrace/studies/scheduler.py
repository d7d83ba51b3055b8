"""The coordinator: hands out units, the largest first, and commits what comes back. SIGTERM and SIGHUP end it as Ctrl-C does."""

from __future__ import annotations

import contextlib
import heapq
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from offtrace._shared.number_text import duration
from offtrace._shared.progress_bar import ProgressBar
from offtrace.studies.executor import Executor
from offtrace.studies.fields import StudyError
from offtrace.studies.plan import Failure, Job, Plan, Unit
from offtrace.studies.store import Store

SHOWN = 8
"""Units that were set aside and are named at the end."""
ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that ask a process to end."""


class Interrupted(KeyboardInterrupt):
    """A signal asks this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def as_ctrl_c() -> Iterator[None]:
    """Within the block, signals that would end the process raise Interrupted; but not where somebody handles or ignores them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    own = [number for number in ENDING if signal.getsignal(number) == signal.SIG_DFL]
    for number in own:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number in own:
            signal.signal(number, signal.SIG_DFL)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


def run(plan: Plan, store: Store, executor: Executor, progress: bool) -> None:
    """Run what is left. Results are written as they arrive. Units that fail are set aside, and are an error at the end."""
    order = {id: i for i, id in enumerate(plan.units)}
    waiting: list[tuple[float, int, Unit]] = []
    attempts: dict[str, int] = {}
    failed: list[Failure] = []
    code = plan.study.code.digest

    def push(unit: Unit) -> None:
        heapq.heappush(waiting, (-plan.cost(unit), order.setdefault(unit.id, len(order)), unit))

    for unit in plan.left():
        push(unit)
    with contextlib.closing(ProgressBar()) as bar:
        before, started = len(plan.done), time.monotonic()

        def show() -> None:
            done, spent, rest = len(plan.done), time.monotonic() - started, ""
            if done > before:
                left = spent * (plan.total - done) / (done - before)
                rest = f", {duration(left)} left" if done < plan.total else f", {duration(spent)}"
            if progress:
                bar.show(done, plan.total, f"{plan.study.name}: {done}/{plan.total} units done on {executor}{rest}")

        show()
        while waiting or executor.running:
            while waiting and executor.free:
                executor.submit(plan.job(heapq.heappop(waiting)[-1]))
            for answer, worker in executor.answers(timeout=0.5):
                id = answer.unit.id
                executor.running.pop(id, None)
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
                    show()
                    _forget_checkpoints(plan.job(answer.unit))
    if failed:
        each = "".join(f"\n  {failure.unit}: {failure.error}" for failure in failed[:SHOWN])
        more = f"\n  and {len(failed) - SHOWN} more: `offtrace study status` names them" if len(failed) > SHOWN else ""
        raise StudyError(
            f"{len(failed)} unit{'s were' if len(failed) > 1 else ' was'} set aside; the others are done, but for tests that "
            f"wait for them. The same command tries again. The tracebacks are in {store.folder / 'failed'}{each}{more}"
        )


def _forget_checkpoints(job: Job) -> None:
    """Remove the checkpoints of a unit: its records are written."""
    if job.unfinished:
        shutil.rmtree(job.unfinished, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are under way
            Path(job.unfinished).parent.rmdir()
