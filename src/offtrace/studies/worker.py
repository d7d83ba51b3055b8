"""A local worker: `python -m offtrace.studies.worker` takes jobs from its standard input and answers on its standard output.

It is a plain subprocess and not one of `multiprocessing`, which would import the caller's main module again: so a study runs from
a script, a notebook or a prompt alike. When the coordinator is gone, however it went, the worker ends at once.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from typing import Any


def main() -> None:
    """Work until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's
    inward, outward = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what others print must not get between the answers
    jobs: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_listen, args=(inward, jobs), daemon=True).start()
    from offtrace.studies import work

    while True:
        job = jobs.get()
        try:
            answer: Any = work.run(job)
        except Exception:
            answer = traceback.format_exc()
        pickle.dump(answer, outward, protocol=pickle.HIGHEST_PROTOCOL)
        outward.flush()


def _listen(inward: Any, jobs: queue.Queue[Any]) -> None:
    try:
        while True:
            jobs.put(pickle.load(inward))
    except (EOFError, OSError, pickle.UnpicklingError):
        os._exit(0)


if __name__ == "__main__":
    main()
