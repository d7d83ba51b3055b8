"""Local processes. A worker that dies or hangs gives its units back and is replaced: nothing is lost or counted twice."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from pathlib import Path
from typing import Literal

from offtrace._shared.cores import cores
from offtrace.studies.declaration_checks import StudyError
from offtrace.studies.plan import Failure, Job, Outcome

AHEAD = 2
"""Jobs that a worker holds: one under way, and one so that it need not wait."""
ATTEMPTS = 3
"""So often may a unit raise, or take its worker down with it; then it is set aside."""
STARTS = 20
"""So many workers in a row may end before they begin a unit."""
PATIENCE = 60.0
"""Seconds after which a worker that gives no sign of life is replaced. While it starts, ten times as many."""
BEATS = 10
"""Signs of life that a worker gives in that time."""
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA", "VECLIB_MAXIMUM")}
"""One thread each: as many processes as cores, and sums in the same order everywhere."""
SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""JAX would take three quarters of a GPU's memory at once: only one worker could use it."""

Answer = Outcome | Failure | Literal[True] | None
"""Of a worker: an outcome, a failure, that it begins a unit, that it is gone."""


class _Worker:
    def __init__(self, answers: queue.Queue[tuple[_Worker, Answer]], patience: float) -> None:
        path = os.pathsep.join(p or str(Path.cwd()) for p in sys.path)
        self.beats, beating = os.pipe() if hasattr(signal, "setitimer") else (None, None)
        command = [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))]
        self.process = subprocess.Popen(
            command if beating is None else [*command, str(beating), str(patience / BEATS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ONE_THREAD | SHARED | {"PYTHONPATH": path},
            pass_fds=() if beating is None else (beating,),
        )
        if self.beats is not None and beating is not None:
            os.close(beating)
            os.set_blocking(self.beats, False)
        self.held: deque[Job] = deque()
        self.gone = self.begun = False
        self.silent, self.patience, self.patience_later = 0.0, 10 * patience, patience
        self.listener = threading.Thread(target=self._listen, args=(answers,), daemon=True)
        self.listener.start()

    def _listen(self, answers: queue.Queue[tuple[_Worker, Answer]]) -> None:
        assert self.process.stdout is not None
        try:
            while True:
                answers.put((self, pickle.load(self.process.stdout)))
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            answers.put((self, None))

    def give(self, job: Job) -> None:
        self.held.append(job)
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it is dead: `_listen` will say so
            pickle.dump(job, self.process.stdin)
            self.process.stdin.flush()

    def hangs(self, seconds: float) -> bool:
        """Whether it has given no sign of life for too long, of which `seconds` have passed since this was asked before."""
        if self.beats is None:
            return False
        self.silent += seconds
        with contextlib.suppress(BlockingIOError):
            while os.read(self.beats, 4096):
                self.silent, self.patience = 0.0, self.patience_later
        return self.silent > self.patience

    def end(self) -> int:
        """Wait for a process that is dead, or will be in a moment, and return its status."""
        self.gone = True
        status = self.process.wait()
        self.listener.join()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if stream:
                    stream.close()
        if self.beats is not None:
            os.close(self.beats)
            self.beats = None
        return status


class LocalPool:
    """So many worker processes, each of which holds `ahead` jobs: where these take minutes, none should wait for another."""

    def __init__(self, workers: int | None, ahead: int = AHEAD, patience: float = PATIENCE) -> None:
        self.ahead, self.patience = ahead, patience
        self.answers: queue.Queue[tuple[_Worker, Answer]] = queue.Queue()
        self.workers = [self._started() for _ in range(workers or cores())]
        self.returned: deque[Job] = deque()
        self.failures: dict[str, int] = {}
        self.false_starts = 0
        self.failure: StudyError | None = None
        self.looked = time.monotonic()

    def _started(self) -> _Worker:
        return _Worker(self.answers, self.patience)

    def __str__(self) -> str:
        n = len(self.workers)
        return f"{n} process{'es' if n > 1 else ''}"

    @property
    def pending(self) -> int:
        """Jobs that were taken and not answered."""
        return len(self.returned) + sum(len(w.held) for w in self.workers)

    @property
    def room(self) -> int:
        """How many more jobs it would take."""
        return max(0, self.ahead * len(self.workers) - self.pending)

    def submit(self, job: Job) -> None:
        """Give a job to a worker, now or as soon as one can take it."""
        self.returned.append(job)
        self._hand_out()

    def _hand_out(self) -> None:
        while self.returned:
            worker = min((w for w in self.workers if not w.gone), key=lambda w: len(w.held))
            if len(worker.held) >= self.ahead:
                return
            worker.give(self.returned.popleft())

    def answered(self, timeout: float) -> list[tuple[Outcome | Failure, str]]:
        """What has come in: (outcome, worker); after `timeout` seconds, perhaps nothing."""
        if self.failure:  # what came in with it has been handed on by now
            raise self.failure
        found: list[tuple[Outcome | Failure, str]] = []
        try:
            worker, answer = self.answers.get(timeout=min(timeout, self.patience / BEATS))
            while True:
                if answer is None:
                    found += self._replace(worker)
                elif answer is True:
                    worker.begun, self.false_starts = True, 0
                else:
                    job, worker.begun = worker.held.popleft(), False
                    if isinstance(answer, Failure) and not self._failed_for_good(job):
                        self.returned.append(job)
                    else:
                        found.append((answer, f"local:{worker.process.pid}"))
                worker, answer = self.answers.get_nowait()
        except queue.Empty:
            pass
        self._end_those_that_hang()
        self._hand_out()
        return found

    def _end_those_that_hang(self) -> None:
        now = time.monotonic()
        passed = min(
            now - self.looked, 2 * self.patience / BEATS
        )  # if this process was stopped, they were perhaps, too
        self.looked = now
        for worker in self.workers:
            if worker.hangs(passed):
                worker.process.kill()  # then `_listen` says that it is gone
                worker.silent = 0.0
                what = f" in {worker.held[0].unit}" if worker.begun and worker.held else ""
                warnings.warn(
                    f"worker {worker.process.pid} has given no sign of life for {worker.patience:g} s{what}: it is replaced",
                    stacklevel=2,
                )

    def _failed_for_good(self, job: Job) -> bool:
        """Count a failure of a unit; whether it was the last one that it may have."""
        self.failures[job.unit.id] = self.failures.get(job.unit.id, 0) + 1
        return self.failures[job.unit.id] >= ATTEMPTS

    def _replace(self, worker: _Worker) -> list[tuple[Failure, str]]:
        """Another worker in its place, which gets its units; but not one that has ended too many."""
        status, failed = worker.end(), []
        if worker.begun:
            if self._failed_for_good(worker.held[0]):
                error = f"it has ended its worker {ATTEMPTS} times, the last time with status {_spelt(status)}"
                failed.append((Failure(worker.held.popleft().unit, error), f"local:{worker.process.pid}"))
        else:
            self.false_starts += 1
            if self.false_starts >= STARTS:
                self.failure = StudyError(
                    f"{STARTS} workers have ended before they began a unit, the last one with status {_spelt(status)}: what they "
                    "said stands above"
                )
        self.returned.extendleft(reversed(worker.held))
        worker.held.clear()
        self.workers[self.workers.index(worker)] = self._started()
        return failed

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.end()


def _spelt(status: int) -> str:
    if status >= 0:
        return str(status)
    try:
        return f"{status} ({signal.Signals(-status).name})"
    except ValueError:
        return str(status)
