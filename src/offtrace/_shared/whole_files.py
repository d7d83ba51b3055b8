"""Files that are written whole or not at all, and .npz files whose checksums are compared before anything parses them."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` at the end of the block; if anything fails, `path` stays as it was.

    It is written under another name in the same folder, and renamed once the disk has it. A process that is killed meanwhile
    leaves a file `.NAME.PROCESS.tmp`; `sweep` removes it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with written_whole(Path(folder) / "a.txt") as file:
    ...         _ = file.write(b"all of it")
    ...     [(each.name, each.read_text()) for each in Path(folder).iterdir()]
    [('a.txt', 'all of it')]
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:  # after Ctrl-C too
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    with contextlib.suppress(
        OSError, AttributeError
    ):  # the name must be on the disk, too; not all systems open folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_npz(path: Path, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Arrays of an .npz file, by default all. Nothing in it is run; a file that is damaged raises an error of whatever kind.

    ZIP files hold a checksum of each array. It is compared before NumPy parses the bytes: a damaged header could ask for more
    memory than there is.
    """
    with zipfile.ZipFile(path) as file:
        members = file.namelist() if names is None else [f"{name}.npy" for name in names]
        return {
            name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(file.read(name)), allow_pickle=False)
            for name in members
        }


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
