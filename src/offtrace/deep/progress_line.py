"""How a run shows its progress: a line in the terminal, and a log for TensorBoard."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from offtrace.deep.config import Config

if TYPE_CHECKING:
    from tensorboard.summary.writer.record_writer import RecordWriter

SCALARS = ("return", "loss", "length", "magnitude", "cut")


class Line:
    """One line on stderr. In a terminal it is written over itself, elsewhere there is a new one every ten seconds."""

    def __init__(self, config: Config, seeds: int) -> None:
        self.config, self.seeds = config, seeds
        self.began, self.first, self.shown = time.monotonic(), None, 0.0
        self.terminal = sys.stderr.isatty()
        if config.end != config.frames:
            why = f"{config.envs} games step together, and every {config.round} frames an update is made"
            print(f"training ends after {config.end:,} frames, not {config.frames:,}: {why}", file=sys.stderr)

    def report(self, frames: int, rows: np.ndarray) -> None:
        """Show the rows of the latest report."""
        now = time.monotonic()
        if self.first is None:  # the first piece was mostly compilation
            self.began, self.first = now, frames
        if not self.terminal and now - self.shown < 10 and frames < self.config.end:
            return
        self.shown = now
        done = frames - self.first
        rate = done / (now - self.began) if done else 0.0
        mean = {name: _mean(rows[name]) for name in SCALARS}
        left = _clock((self.config.end - frames) / rate) if rate else "?"
        text = (
            f"{_short(frames)} of {_short(self.config.end)} frames  {_short(rate * self.seeds)}/s  left {left}  "
            f"return {mean['return']:.2f}  loss {mean['loss']:.3g}  trace {mean['length']:.2f}  "
            f"cut {mean['cut']:.0%}  Σγᵗβ {mean['magnitude']:.2f}"
        )
        width = shutil.get_terminal_size().columns - 1  # a line that wraps cannot be written over
        sys.stderr.write(f"\r\033[K{text[:width]}" if self.terminal else text + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        """End the line, so that what follows stands on another one."""
        if self.terminal:
            sys.stderr.write("\n")


class TensorBoard:
    """Writes the scalars of every seed for TensorBoard. If they cannot be written, a line says so, and training goes on.

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
            print(f"no TensorBoard log any more: {error}; training goes on", file=sys.stderr)
            self.close()
            self.writers = {}

    def close(self) -> None:
        """Close the files: nothing more is written."""
        for writer in self.writers.values():
            writer.close()


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _short(number: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
