"""SIGTERM and SIGHUP, as Ctrl-C: what is under way is left in order."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

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
