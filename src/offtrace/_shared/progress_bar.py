"""A bar that shows how far some work is: drawn by rich on a terminal, as HTML in a notebook, and plain lines elsewhere."""

from __future__ import annotations

import html
import math
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.progress import Progress

LINES = 10.0
"""Seconds between two plain lines."""
FRAMES = 0.2
"""Seconds between two pictures: each costs time, and in a notebook a message to the browser."""


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this, which shows HTML and may change it later. IPython is not imported to find out."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def watched() -> bool:
    """Whether somebody looks at what is shown: a terminal or a notebook, and no file."""
    return sys.stderr.isatty() or in_notebook()


class ProgressBar:
    """A bar and a text, cut to the width of the terminal. It is erased at the end unless it `stays`.

    Where nobody looks, since stderr is a file or a log, the text is printed as a line at first, then every ten seconds and at
    the end; without `lines` nothing is. With `after` the bar appears only once the work has taken so many seconds.
    """

    def __init__(self, *, stays: bool = False, lines: bool = True, after: float = 0.0) -> None:
        self.stays, self.lines = stays, lines
        self._begins = time.perf_counter() + after
        self._shown = -math.inf
        self._bar: Progress | None = None
        self._picture: Any = None  # what IPython calls a DisplayHandle
        self._notebook = in_notebook()
        if not self._notebook and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn
            from rich.table import Column

            text_column = Column(no_wrap=True, overflow="ellipsis", ratio=1)  # the text is cut, and not the bar
            self._bar = Progress(
                BarColumn(bar_width=20),
                TextColumn("{task.description}", markup=False, table_column=text_column),
                console=Console(stderr=True),
                expand=True,
                transient=not stays,
                redirect_stdout=False,
            )
            self._task = self._bar.add_task("", total=None)

    def show(self, done: float, total: float, text: str) -> None:
        """Show that so much is done of so much; the bar appears with the first call."""
        now = time.perf_counter()
        if now < self._begins or (not self.lines and OPEN[:1] not in ([], [self])):
            return
        drawn = self._bar is not None or self._notebook
        if now - self._shown < (FRAMES if drawn else LINES) and done < total:
            return
        self._shown = now
        if self._bar is not None:
            self._bar.start()
            self._bar.update(self._task, completed=done, total=total, description=text, refresh=True)
        elif self._notebook:
            self._draw(f'<progress max="{total}" value="{done}"></progress> {html.escape(text)}', text)
        elif self.lines:
            print(text, file=sys.stderr, flush=True)

    def _draw(self, picture: str, text: str) -> None:
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        shown = {"text/html": picture, "text/plain": text}
        if self._picture is None:
            self._picture = display(shown, raw=True, display_id=True)
        else:
            self._picture.update(shown, raw=True)

    def close(self) -> None:
        """Nothing more is shown."""
        if self in OPEN:
            OPEN.remove(self)
        if self._bar is not None:
            self._bar.stop()
        if self._picture is not None and not self.stays:
            self._draw("", "")

    def __enter__(self) -> Self:
        OPEN.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


OPEN: list[ProgressBar] = []
"""Those that are in use: work inside of other work, which has a bar, shows none."""


def for_watchers() -> ProgressBar:
    """A bar for work that is mostly short: seen on a terminal or in a notebook, after a second, if no other one is."""
    return ProgressBar(lines=False, after=1.0)
