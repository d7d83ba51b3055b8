"""Files that are there whole, or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` at the end of the block; if anything fails, `path` stays as it was.

    It is written beside `path`, in the same folder, and renamed once the disk has it. What a process leaves that was killed
    meanwhile is called `.NAME.PROCESS.tmp`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with written_whole(Path(folder) / "a.txt") as file:
    ...         _ = file.write(b"all of it")
    ...     [(each.name, each.read_text()) for each in Path(folder).iterdir()]
    [('a.txt', 'all of it')]
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:  # after Ctrl-C too
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
    with contextlib.suppress(
        OSError, AttributeError
    ):  # the name must be on the disk, too; not all systems open folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
