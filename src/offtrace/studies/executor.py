"""Where units run: in local processes, or in this one. `ray_executor` has those that run on Ray.

`concurrent.futures` and loky cannot end one worker of several, and a unit that hangs must be ended with all processes that it has
started. So each worker is a subprocess in its own session, with one socket to this process. The socket is read only when
data have arrived: nothing here waits for a process that is stopped, or for a child that keeps a socket open.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from offtrace.studies.fields import StudyError
from offtrace.studies.plan import Failure, Job, Outcome
from offtrace.studies.worker import packed, unpacked

START = 300.0
"""Seconds within which a process must have started."""
SENDING = 10.0
"""Seconds within which a process must have taken a message. It takes messages even while it works."""
STARTS = 20
"""How many workers in a row may end before they begin a unit."""
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA", "VECLIB_MAXIMUM")}
"""One thread each: as many processes as cores, and sums in the same order everywhere."""
Answer = tuple[Outcome | Failure, str]
"""What a unit gave, and which worker ran it."""
SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""JAX would take three quarters of a GPU's memory at once: only one worker could use it."""


class Executor:
    """Runs units: the base class."""

    slots = 1
    """How many units it takes at a time."""

    def __init__(self) -> None:
        self.running: dict[str, Job] = {}
        """Units that are running or waiting here, by their ids."""

    @property
    def free(self) -> int:
        """How many more units it takes."""
        return max(0, self.slots - len(self.running))

    def submit(self, job: Job) -> None:
        """Take a unit."""
        self.running[job.unit.id] = job

    def answers(self, timeout: float) -> list[Answer]:
        """What has come in, and from which worker; after `timeout` seconds, perhaps nothing."""
        raise NotImplementedError

    def close(self) -> None:
        """End all that was started."""


class InProcess(Executor):
    """Runs units one after another in this process, where a debugger sees them. Each is tried once."""

    def __str__(self) -> str:
        return "this process"

    def answers(self, timeout: float) -> list[Answer]:
        """Run the unit that waits."""
        from offtrace.studies import tasks

        job = next(iter(self.running.values()))
        try:
            return [(tasks.run(job), f"local:{os.getpid()}")]
        except StudyError:  # it was interrupted
            raise
        except Exception as error:
            return [(Failure.raised(job.unit, error, attempts=1), f"local:{os.getpid()}")]


class Child:
    """A process in its own session, and a socket to it."""

    def __init__(self, script: str, *arguments: str) -> None:
        path = os.pathsep.join(p or str(Path.cwd()) for p in sys.path)
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__).with_name(script)), str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                env=os.environ | ONE_THREAD | SHARED | {"PYTHONPATH": path},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self.socket.setblocking(False)
        self.received = bytearray()

    def send(self, message: object) -> None:
        """Send a message; to a process that is gone, nothing."""
        with contextlib.suppress(OSError):
            self.socket.settimeout(SENDING)
            self.socket.sendall(packed(message))
        self.socket.setblocking(False)

    def messages(self) -> list[Any]:
        """What has come since this was asked before."""
        with contextlib.suppress(OSError):
            while piece := self.socket.recv(1 << 20):
                self.received += piece
        return [pickle.loads(message) for message in unpacked(self.received)]

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self.process.poll()

    def end(self) -> None:
        """End it, and all processes of its session that it has started."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()  # it may have left its group
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10.0)
        self.socket.close()


class Worker(Child):
    """A process that runs one unit after another."""

    def __init__(self) -> None:
        super().__init__("worker.py")
        self.ready = False
        self.job: Job | None = None
        self.since = time.monotonic()
        """When it was started, or began its unit."""

    def give(self, job: Job) -> None:
        """Give it a unit. While it starts, the unit waits in its socket."""
        self.job = job
        self.since = time.monotonic() if self.ready else self.since
        self.send(job)


class Processes(Executor):
    """Worker processes. One that ends, or whose unit takes longer than `patience` seconds, is replaced."""

    def __init__(self, workers: int, patience: float) -> None:
        super().__init__()
        if os.name == "nt":
            raise StudyError("local processes need POSIX: run with workers=0, --workers 0, or on Ray")
        self.slots, self.patience, self.false_starts = workers, patience, 0
        self.workers = [Worker() for _ in range(workers)]

    def __str__(self) -> str:
        return f"{self.slots} process{'es' if self.slots > 1 else ''}"

    def submit(self, job: Job) -> None:
        """Give a unit to an idle worker, preferably to one that is ready."""
        super().submit(job)
        idle = [worker for worker in self.workers if worker.job is None]
        max(idle, key=lambda worker: worker.ready).give(job)

    def answers(self, timeout: float) -> list[Answer]:
        """What has come in, and from which worker; after `timeout` seconds, perhaps nothing."""
        wait([worker.socket for worker in self.workers], timeout)
        answers: list[Answer] = []
        for worker in list(self.workers):
            status = worker.status  # asked first, so that all that it sent before its end is read
            for answer in worker.messages():
                if answer == "ready":
                    worker.ready, worker.since = True, time.monotonic()
                else:
                    answers.append((answer, f"local:{worker.process.pid}"))
                    worker.job, self.false_starts = None, 0
            if why := self._why_ended(worker, status):
                if worker.ready and worker.job is not None:
                    answers.append((Failure(worker.job.unit, why), f"local:{worker.process.pid}"))
                self._replace(worker, why)
        return answers

    def _why_ended(self, worker: Worker, status: int | None) -> str:
        """Say why a worker must be replaced; empty if it must not."""
        if status is not None:
            return f"it has ended its worker with status {_spelt(status)}"
        seconds = time.monotonic() - worker.since
        if worker.ready and worker.job is not None and seconds > self.patience:
            return f"it was not done within {self.patience:g} s (--patience)"
        return f"it has not started within {START:g} s" if not worker.ready and seconds > START else ""

    def _replace(self, worker: Worker, why: str) -> None:
        """Start another worker in its place, which gets the unit that this one has not begun."""
        worker.end()
        self.workers.remove(worker)
        self.false_starts += not worker.ready
        if self.false_starts >= STARTS:
            raise StudyError(
                f"{STARTS} workers have ended before they began a unit, of the last one: {why}. What they said is above"
            )
        self.workers.append(Worker())
        if worker.job is not None and not worker.ready:
            self.workers[-1].give(worker.job)

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.end()


def _spelt(status: int) -> str:
    try:
        return f"{status} ({signal.Signals(-status).name})"
    except ValueError:
        return str(status)
