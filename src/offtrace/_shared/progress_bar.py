"""A bar that shows how far some work is, drawn by rich on stderr; plain lines where that is no terminal."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress

LINES = 10.0
"""Seconds between two plain lines."""


class ProgressBar:
    """A bar and a text beside it, cut to the width of the terminal. It is erased at the end unless it `stays`.

    Where stderr is no terminal, a file or a log, the text is printed as a line at first, then every ten seconds and at the end.
    """

    def __init__(self, *, stays: bool = False) -> None:
        self.stays = stays
        self._shown = -math.inf
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn
            from rich.table import Column

            beside = Column(no_wrap=True, overflow="ellipsis", ratio=1)  # the text is cut, and not the bar
            self._bar = Progress(
                BarColumn(bar_width=20),
                TextColumn("{task.description}", markup=False, table_column=beside),
                console=Console(stderr=True),
                expand=True,
                transient=not stays,
                redirect_stdout=False,
            )
            self._task = self._bar.add_task("", total=None)

    def show(self, done: float, total: float, text: str) -> None:
        """Show that so much is done of so much; the bar appears with the first call."""
        if self._bar is not None:
            self._bar.start()
            self._bar.update(self._task, completed=done, total=total, description=text, refresh=True)
        elif time.perf_counter() - self._shown >= LINES or done >= total:
            self._shown = time.perf_counter()
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing more is shown."""
        if self._bar is not None:
            self._bar.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()
