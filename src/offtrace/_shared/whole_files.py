"""Files that are there whole, or not at all, and whose bytes are compared with a checksum before anything parses them.

A file may carry its checksum at its end (`written_whole(path, sealed=True)`, `opened_sealed`): other bytes may follow ZIP
files, and so .npz files.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MARK = b"\nofftrace sha256 "
"""Comes before the checksum at the end of a sealed file."""
SEAL = len(MARK) + 64
"""The length of both."""


class DamagedError(ValueError):
    """The bytes of a file are not those that were written."""


@contextlib.contextmanager
def written_whole(path: Path, *, sealed: bool = False) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` at the end of the block; if anything fails, `path` stays as it was.

    It is written beside `path`, in the same folder, and renamed once the disk has it. What a process leaves that was killed
    meanwhile is called `.NAME.PROCESS.tmp`; `sweep` removes it. With `sealed`, its checksum follows what was written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with written_whole(Path(folder) / "a.txt") as file:
    ...         _ = file.write(b"all of it")
    ...     [(each.name, each.read_text()) for each in Path(folder).iterdir()]
    [('a.txt', 'all of it')]
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("w+b") as file:
            yield file
            if sealed:
                file.seek(0)
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                file.seek(0, os.SEEK_END)
                file.write(MARK + digest.encode())
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


@contextlib.contextmanager
def opened_sealed(path: Path) -> Iterator[BinaryIO]:
    """A file that `written_whole(path, sealed=True)` wrote, to be read; raise DamagedError if its bytes are others.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.txt"
    ...     with written_whole(path, sealed=True) as file:
    ...         _ = file.write(b"all of it")
    ...     with opened_sealed(path) as file:
    ...         print(file.read(9))
    b'all of it'
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size - SEAL
        file.seek(max(size, 0))
        seal = file.read()
        if size < 0 or not seal.startswith(MARK):
            raise DamagedError(
                f"{path} does not end with its checksum: it is damaged, or of another version or program"
            )
        file.seek(0)
        digest, left = hashlib.sha256(), size
        while left and (piece := file.read(min(left, 1 << 20))):
            digest.update(piece)
            left -= len(piece)
        if MARK + digest.hexdigest().encode() != seal:
            raise DamagedError(f"{path} is damaged: its checksum does not fit")
        file.seek(0)
        yield file


def sweep(folder: Path, names: str = "*") -> None:
    """Remove what processes that no longer run have left in a folder of files whose names fit the pattern `names`."""
    for left in folder.glob(f".{names}.tmp"):
        process = re.fullmatch(r"\..+\.(\d+)\.tmp", left.name)
        if process and not _runs(int(process[1])):
            with contextlib.suppress(OSError):  # a folder that is read only keeps it
                left.unlink()


def _runs(process: int) -> bool:
    if os.name == "nt":  # there the call below would end it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is another user's
        return True
    return True


def why_not_written(error: OSError) -> str:
    """What kept a file from being written, in words.

    >>> why_not_written(OSError(errno.ENOSPC, "No space left on device"))
    'the disk is full'
    """
    words = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the quota is used up",
        errno.EROFS: "the disk is read only",
        errno.EACCES: "this user may not write there",
        errno.EFBIG: "files may not become so large",
    }
    return words.get(error.errno or 0, error.strerror or str(error))
