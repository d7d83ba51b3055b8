"""SIGTERM and SIGHUP, as Ctrl-C: what is under way is left in order, and what must be done whole is not interrupted."""

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


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Within the block no signal interrupts what must be done whole: the first one that came does so at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    with contextlib.ExitStack() as restored:
        for number in ENDING:
            if callable(handler := signal.getsignal(number)):  # otherwise it is ignored, or ends the process at once
                restored.callback(signal.signal, number, handler)
                signal.signal(number, lambda number, frame: came.append(number))
        yield
    if came:
        signal.raise_signal(came[0])


def _stop(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)
