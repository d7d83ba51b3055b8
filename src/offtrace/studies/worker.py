"""A worker process: `python worker.py SOCKET` takes units from its socket, one after another, and sends what they give.

It is a plain subprocess and not one of `multiprocessing`, which would import the caller's main module again: so a study can be
run from a script, a notebook or a prompt. It leads its own session. When the coordinator has ended, for whatever reason, the
worker ends immediately, with all processes that its units have started.

A message is its length, eight bytes, and a pickle.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import socket
import sys
import threading
from typing import Any

LENGTH = 8


def packed(message: object) -> bytes:
    """A message as it is sent."""
    content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return len(content).to_bytes(LENGTH, "big") + content


def unpacked(received: bytearray) -> list[bytes]:
    """Take all whole messages, still pickled, out of what was received."""
    messages: list[bytes] = []
    while len(received) >= LENGTH and len(received) >= (end := LENGTH + int.from_bytes(received[:LENGTH], "big")):
        messages.append(bytes(received[LENGTH:end]))
        del received[:end]
    return messages


def connected() -> tuple[socket.socket, queue.SimpleQueue[bytes]]:
    """The socket of this process, and what comes from there. What others print goes to the standard error."""
    os.dup2(2, 1)
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # It imports nothing: two threads that import at the same time may wait for each other.
    threading.Thread(target=_listen, args=(connection, messages), daemon=True).start()
    return connection, messages


def _listen(connection: socket.socket, messages: queue.SimpleQueue[bytes]) -> None:
    received = bytearray()
    try:
        while piece := connection.recv(1 << 16):
            received += piece
            for message in unpacked(received):
                messages.put(message)
    finally:
        os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> None:
    """Work until the coordinator is gone."""
    connection, messages = connected()
    from offtrace.studies import tasks
    from offtrace.studies.plan import Failure

    answer = packed("ready")
    while True:
        with contextlib.suppress(OSError):  # the coordinator is gone, and this process will be in a moment
            connection.sendall(answer)
        job: Any = pickle.loads(messages.get())
        try:
            answer = packed(tasks.run(job))
        except Exception as error:
            answer = packed(Failure.raised(job.unit, error))


if __name__ == "__main__":
    main()
