"""Passes over all files, each of which adds something up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from offtrace._shared.number_text import duration
from offtrace._shared.progress_bar import ProgressBar
from offtrace.logs.partitions.executing import Executor
from offtrace.logs.partitions.kept_sums import KeptSums, Sums


@dataclass(frozen=True, eq=False)
class Passes:
    """The files, who reads them, and where sums are kept."""

    files: tuple[Path, ...]
    executor: Executor
    kept: KeptSums
    bar: ProgressBar | None

    def over(self, asked: str, work: Callable[..., Sums], *given: object) -> Sums:
        """Σ over all files of `work(file, *given)`. `asked` tells this pass from others, in the folder of a checkpoint."""
        begun, sums = self.kept.begun(asked)
        started = time.monotonic()
        found = self.executor.each(work, self.files[begun:], *given)
        for done, now in self.kept.keeping(asked, len(self.files), begun, sums, found):
            sums = now
            left = duration((time.monotonic() - started) / max(done - begun, 1) * (len(self.files) - done))
            self.tell(done, len(self.files), f"{done:,} of {len(self.files):,} files, {left} left of this sweep")
        return sums

    def tell(self, done: int, of: int, text: str) -> None:
        """Show how far this pass is."""
        if self.bar is not None:
            self.bar.show(done, of, f"sweep {self.kept.sweeps + 1}: {text}")
