"""Local processes. A worker that dies gives its units back and is replaced; nothing is lost, and nothing counted twice."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any

from offtrace._shared.cores import cores
from offtrace.studies.checks import StudyError
from offtrace.studies.plan import Job, Outcome

AHEAD = 2
"""Jobs that a worker holds: one under way, and one so that it need not wait."""
ATTEMPTS = 3
"""So often may a unit take its worker down with it."""
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA", "VECLIB_MAXIMUM")}
"""One thread each: as many processes as cores, and sums in the same order everywhere."""
SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""JAX would take three quarters of a GPU's memory at once: only one worker could use it."""


class _Worker:
    def __init__(self, answers: queue.Queue[Any]) -> None:
        path = os.pathsep.join(p or str(Path.cwd()) for p in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "offtrace.studies.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ONE_THREAD | SHARED | {"PYTHONPATH": path},
        )
        self.held: deque[Job] = deque()
        self.gone = False
        self.listener = threading.Thread(target=self._listen, args=(answers,), daemon=True)
        self.listener.start()

    def _listen(self, answers: queue.Queue[Any]) -> None:
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

    def end(self) -> int:
        """It is dead, or will be in a moment: its status."""
        self.gone = True
        status = self.process.wait()
        self.listener.join()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if stream:
                    stream.close()
        return status


class LocalPool:
    """So many worker processes, each of which holds `ahead` jobs: where these take minutes, none should wait for another."""

    def __init__(self, workers: int | None, ahead: int = AHEAD) -> None:
        self.ahead = ahead
        self.answers: queue.Queue[Any] = queue.Queue()
        self.workers = [_Worker(self.answers) for _ in range(workers or cores())]
        self.returned: deque[Job] = deque()
        self.deaths: dict[str, int] = {}
        self.failure: StudyError | None = None

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
        """Take a job."""
        self.returned.append(job)
        self._hand_out()

    def _hand_out(self) -> None:
        while self.returned:
            worker = min((w for w in self.workers if not w.gone), key=lambda w: len(w.held))
            if len(worker.held) >= self.ahead:
                return
            worker.give(self.returned.popleft())

    def answered(self, timeout: float) -> list[tuple[Outcome, str]]:
        """What has come in: (outcome, worker); after `timeout` seconds, perhaps nothing."""
        if self.failure:  # what came in with it has been handed on by now
            raise self.failure
        found = []
        try:
            worker, answer = self.answers.get(timeout=timeout)
            while True:
                if answer is None:
                    self._replace(worker)
                elif isinstance(answer, str):
                    self.failure = StudyError(f"a unit failed: {worker.held[0].unit}\n{answer}")
                    return found
                else:
                    worker.held.popleft()
                    found.append((answer, f"local:{worker.process.pid}"))
                worker, answer = self.answers.get_nowait()
        except queue.Empty:
            pass
        self._hand_out()
        return found

    def _replace(self, worker: _Worker) -> None:
        status = worker.end()
        if worker.held:
            unit = worker.held[0].unit
            self.deaths[unit.id] = self.deaths.get(unit.id, 0) + 1
            if self.deaths[unit.id] >= ATTEMPTS:
                self.failure = StudyError(
                    f"a unit has ended its worker {ATTEMPTS} times, the last time with status {status}: {unit}"
                )
        self.returned.extendleft(reversed(worker.held))
        worker.held.clear()
        self.workers[self.workers.index(worker)] = _Worker(self.answers)

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.end()
