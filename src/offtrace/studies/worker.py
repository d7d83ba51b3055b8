"""A local worker: `python worker.py PIPE SECONDS` takes jobs from its standard input and answers on its standard output.

It is a plain subprocess and not one of `multiprocessing`, which would import the caller's main module again: so a study runs from
a script, a notebook or a prompt alike. When the coordinator is gone, however it went, the worker ends at once.

It answers True when it begins a unit, and then the outcome, or the failure. Meanwhile its heart beats: every so many
SECONDS it writes a byte into PIPE. The system's timer and Python's C code do that, so that a unit which holds Python's lock for
hours does not stop it; a process that is stopped, or frozen, beats no more.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from offtrace.studies.plan import Job


def main() -> None:
    """Work until the input ends."""
    if len(sys.argv) > 2:
        _beat(int(sys.argv[1]), float(sys.argv[2]))
    for name in ("SIGINT", "SIGHUP"):  # they are the coordinator's
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    inward, outward = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what others print must not get between the answers
    # before a thread reads jobs: two that import at the same time wait for each other
    from offtrace.studies import work
    from offtrace.studies.plan import Failure

    jobs: queue.Queue[Job] = queue.Queue()
    threading.Thread(target=_listen, args=(inward, jobs), daemon=True).start()
    while True:
        job = jobs.get()
        _say(True, outward)
        try:
            answer: object = work.run(job)
        except Exception as error:
            answer = Failure.raised(job.unit, error)
        _say(answer, outward)


def _beat(pipe: int, seconds: float) -> None:
    os.set_blocking(pipe, False)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, False)  # system calls of others go on
    signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)


def _say(answer: object, outward: BinaryIO) -> None:
    pickle.dump(answer, outward, protocol=pickle.HIGHEST_PROTOCOL)
    outward.flush()


def _listen(inward: BinaryIO, jobs: queue.Queue[Job]) -> None:
    try:
        while True:
            jobs.put(pickle.load(inward))
    except (EOFError, OSError, pickle.UnpicklingError):
        os._exit(0)


if __name__ == "__main__":
    main()
