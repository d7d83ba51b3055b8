"""Sums over files that survive SIGKILL: what is finished lies in a folder, and the same call goes on from there.

sweep-0003.npz       the sums of a sweep that is finished
now.npz              the sums over the first files of the one that is not, and how many these are
"""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from offtrace._shared.whole_files import DamagedError, opened_sealed, sweep, written_whole

EVERY = 10.0
"""Seconds between two checkpoints within a sweep."""

Sums = dict[str, np.ndarray]
"""What was found, by name. Arrays [files] whose names begin with "each" are strung together, others added up."""


class KeptSums:
    """The sums of one sweep after the other, in a folder, or nowhere."""

    def __init__(self, folder: Path | None, question: str) -> None:
        self.folder, self.question, self.sweeps = folder, question, 0
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            sweep(folder)

    def begun(self, asked: str) -> tuple[int, Sums]:
        """How many files are already in the sums of this sweep, and the sums. `asked` says which sweep it is, by its Q."""
        for name in (self._name(), "now.npz"):
            held = self._read(name)
            if held is not None and str(held.pop("digest")) == self._digest(asked):
                return int(held.pop("files")), held
        return 0, {}

    def keeping(
        self, asked: str, files: int, begun: int, sums: Sums, found: Iterable[Sums]
    ) -> Iterator[tuple[int, Sums]]:
        """Add what is found in the files that are left, and keep it from time to time and at the end."""
        looked = time.monotonic()
        for done, more in enumerate(found, begun + 1):
            sums = {name: _joined(name, sums[name], more[name]) if name in sums else more[name] for name in more}
            if done == files or time.monotonic() - looked > EVERY:
                self._write(self._name() if done == files else "now.npz", {**sums, "files": done}, asked)
                looked = time.monotonic()
            yield done, sums
        self.sweeps += 1

    def _name(self) -> str:
        return f"sweep-{self.sweeps:04}.npz"

    def _digest(self, asked: str) -> str:
        return hashlib.sha256(f"{self.question}\n{asked}".encode()).hexdigest()

    def _read(self, name: str) -> dict[str, np.ndarray] | None:
        if self.folder is None or not (self.folder / name).exists():
            return None
        try:
            with opened_sealed(self.folder / name) as file, np.load(io.BytesIO(file.read())) as held:
                return dict(held)
        except DamagedError:
            return None  # it is summed again

    def _write(self, name: str, sums: Mapping[str, object], asked: str) -> None:
        if self.folder is None:
            return
        content = io.BytesIO()
        np.savez(content, **{**sums, "digest": self._digest(asked)})  # pyright: ignore[reportArgumentType]
        with written_whole(self.folder / name, sealed=True) as file:
            file.write(content.getvalue())


def _joined(name: str, before: np.ndarray, more: np.ndarray) -> np.ndarray:
    return np.concatenate([before, more]) if name.startswith("each") else before + more
