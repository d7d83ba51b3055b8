"""The checkpoint of a run: a digest of everything that its result depends on, and snapshots of all blocks.

It is replaced as a whole, every minute and when the run is interrupted; the same call goes on from it.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import FunctionType
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from offtrace._shared.whole_files import opened_sealed, sweep, why_not_written, written_whole
from offtrace.learners.core.compiling import source_digest
from offtrace.learners.environments import Environment
from offtrace.learners.methods.base import Method
from offtrace.traces import Trace

EVERY = 60.0
"""Seconds between two checkpoints."""

Array = NDArray[np.generic]


class Saved(Protocol):
    """What can be cut anywhere, and gone on with."""

    def snapshot(self) -> dict[str, Array]:
        """Everything that changes, copied."""
        ...

    def restore(self, saved: Mapping[str, Array]) -> None:
        """Go on from a snapshot."""
        ...


def digest_of(*parts: object) -> str:
    """What a run is: a digest of everything that its result depends on, the code of learners and of the trace included."""
    digest = hashlib.sha256(source_digest().encode())

    def feed(part: object) -> None:
        if isinstance(part, Environment):
            feed((part.world if part.mdp is not None else repr(part.gym), part.features, repr(part.coder), part.gamma))
        elif isinstance(part, tuple):
            digest.update(b"(")
            for piece in cast("tuple[object, ...]", part):
                feed(piece)
            digest.update(b")")
        elif isinstance(part, Trace | Method):
            rule = type(part).factors if isinstance(part, Trace) else type(part).step
            feed((type(part).__qualname__, rule, *(getattr(part, f.name) for f in fields(part))))
        elif isinstance(part, FunctionType):  # its repr would be another one in another process
            code = part.__code__
            feed((part.__qualname__, code.co_code.hex(), code.co_names, *(c for c in code.co_consts if _plain(c))))
            feed(tuple(c.cell_contents for c in part.__closure__ or () if _plain(c.cell_contents)))
        elif isinstance(part, np.ndarray):
            array = cast("Array", part)
            digest.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        else:
            digest.update(repr(part).encode())

    feed(parts)
    return digest.hexdigest()


def _plain(x: object) -> bool:
    """Whether its repr says what it is."""
    return isinstance(x, int | float | str | tuple | np.ndarray | FunctionType | None)


class Checkpoint:
    """The file. `run` is all that the result depends on; a file that another run has written is refused."""

    def __init__(self, path: Path, run: tuple[object, ...], each: int) -> None:
        self.path, self.key, self.wall, self.last = path, digest_of(*run), 0.0, time.monotonic()
        self.each = each
        """Seeds in a block: as many as when the file was first written, whatever the number of threads is now."""
        self.saved: dict[str, Array] = {}
        self.snapshots: list[dict[str, Array]] = []
        if not path.parent.is_dir():
            raise FileNotFoundError(f"{path} cannot be a checkpoint: there is no folder {path.parent}")
        if not os.access(path.parent, os.W_OK):  # better now than when hours have gone into it
            raise PermissionError(f"{path} cannot be a checkpoint: nothing can be written to {path.parent}")
        if not path.exists():
            return
        sweep(path.parent, f"{glob.escape(path.name)}.*")
        path.with_name(f"{path.name}.new").unlink(missing_ok=True)  # so older versions called what they had left
        try:
            with opened_sealed(path) as opened, np.load(opened, allow_pickle=False) as file:
                self.saved = {name: file[name] for name in file.files}
            head = json.loads(str(self.saved.pop("head")))
            written, self.wall, self.each = head["key"], float(head["wall"]), int(head["each"])
        except Exception as error:  # whatever a file that anybody may have written leads to
            raise ValueError(f"{path} is not a checkpoint of a learner, or it is damaged: {error}") from error
        if self.each < 1:
            raise ValueError(f"{path} is not a checkpoint of a learner: it has {self.each} seeds in a block")
        if written != self.key:
            raise ValueError(
                f"{path} is the checkpoint of another run: its arguments differ, or the code of the trace or of offtrace has "
                "changed since. Give another path, or remove it"
            )

    def restore(self, units: Sequence[Saved]) -> None:
        """Take all blocks to where they were."""
        try:
            self._restore(units)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ValueError(f"{self.path} cannot be gone on from: {error}. Remove it, or give another path") from error

    def _restore(self, units: Sequence[Saved]) -> None:
        for i, block in enumerate(units):
            own = {name.split("/", 1)[1]: a for name, a in self.saved.items() if name.startswith(f"{i}/")}
            self.snapshots.append(own)
            if own:
                block.restore({name: a.copy() for name, a in own.items()})
        self.saved = {}

    def keep(self, i: int, block: Saved, started: float) -> None:
        """A snapshot of block i; the file is written if it is time."""
        if time.monotonic() - self.last > EVERY / 2:
            self.snapshots[i] = block.snapshot()
        if time.monotonic() - self.last > EVERY:
            self._replace(started)

    def write(self, units: Sequence[Saved], started: float) -> None:
        """Write the file with a snapshot of all blocks, when no thread works on them any more."""
        self.snapshots = [block.snapshot() for block in units]
        self._replace(started)

    def _replace(self, started: float) -> None:
        head = json.dumps({"key": self.key, "each": self.each, "wall": time.perf_counter() - started})
        arrays = {f"{i}/{name}": a for i, of in enumerate(self.snapshots) for name, a in of.items()}
        try:
            with written_whole(self.path, sealed=True) as file:
                np.savez(file, head=np.array(head), **arrays)  # pyright: ignore[reportArgumentType]
        except OSError as error:
            why = f"the checkpoint {self.path} cannot be written: {why_not_written(error)}"
            raise OSError(error.errno, f"{why}; what was written before is whole") from error
        self.last = time.monotonic()
