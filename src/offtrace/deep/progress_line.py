"""How a run shows its progress: a line in the terminal, and a log for TensorBoard."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from offtrace._shared.number_text import clock, short_count
from offtrace._shared.progress_bar import ProgressBar
from offtrace.deep.settings import Settings

if TYPE_CHECKING:
    from tensorboard.summary.writer.record_writer import RecordWriter

SCALARS = ("return", "loss", "length", "magnitude", "cut")


class Line:
    """A bar on stderr, and what the agents learn; where that is no terminal, a line every ten seconds."""

    def __init__(self, config: Settings, seeds: int) -> None:
        self.config, self.seeds = config, seeds
        self.began, self.first = time.monotonic(), None
        if config.end != config.frames:
            why = f"{config.envs} games step together, and every {config.round} frames an update is made"
            print(f"training ends after {config.end:,} frames, not {config.frames:,}: {why}", file=sys.stderr)
        self.bar = ProgressBar(stays=True)

    def report(self, frames: int, rows: np.ndarray) -> None:
        """Show the rows of the latest report."""
        now = time.monotonic()
        if self.first is None:  # the first piece was mostly compilation
            self.began, self.first = now, frames
        done = frames - self.first
        rate = done / (now - self.began) if done else 0.0
        mean = {name: _mean(rows[name]) for name in SCALARS}
        left = clock((self.config.end - frames) / rate) if rate else "?"
        text = (
            f"{short_count(frames)} of {short_count(self.config.end)} frames  {short_count(rate * self.seeds)}/s  left {left}  "
            f"return {mean['return']:.2f}  loss {mean['loss']:.3g}"
        )
        if np.isfinite(mean["length"]):  # else the rule has no β, or there are no sequences to measure it on
            text += f"  trace {mean['length']:.2f}  cut {mean['cut']:.0%}  Σγᵗβ {mean['magnitude']:.2f}"
        self.bar.show(frames, self.config.end, text)

    def close(self) -> None:
        """End the line, so that what follows stands on another one."""
        self.bar.close()


class TensorBoard:
    """Writes the scalars of every seed for TensorBoard. If they cannot be written, a line says so, and training continues.

    TensorBoard's own writer is a thread, whose errors nobody catches; its records are written here instead.
    """

    def __init__(self, folder: Path, seeds: list[int]) -> None:
        self.writers: dict[int, RecordWriter] = {}
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            print("no TensorBoard log: pip install tensorboard", file=sys.stderr)
            return
        self.event = event_pb2.Event  # pyright: ignore[reportAttributeAccessIssue]
        self.summary = summary_pb2.Summary  # pyright: ignore[reportAttributeAccessIssue]
        name = f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}"
        with self._said():
            for seed in seeds:
                path = folder / f"seed-{seed}" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                self.writers[seed] = RecordWriter(path.open("wb", buffering=0))
                self._write(seed, file_version="brain.Event:2")

    def report(self, frames: int, rows: np.ndarray) -> None:
        """Log the rows of the latest report."""
        with self._said():
            for row in rows if self.writers else ():
                known = {name: float(row[name]) for name in SCALARS if np.isfinite(row[name])}
                values = [self.summary.Value(tag=tag, simple_value=value) for tag, value in known.items()]
                self._write(int(row["seed"]), step=frames, summary=self.summary(value=values))

    def _write(self, seed: int, **what: object) -> None:
        self.writers[seed].write(self.event(wall_time=time.time(), **what).SerializeToString())

    @contextmanager
    def _said(self) -> Generator[None, None, None]:
        try:
            yield
        except OSError as error:
            print(f"no TensorBoard log any more: {error}; training continues", file=sys.stderr)
            self.close()
            self.writers = {}

    def close(self) -> None:
        """Close the files: nothing more is written."""
        for writer in self.writers.values():
            writer.close()


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
