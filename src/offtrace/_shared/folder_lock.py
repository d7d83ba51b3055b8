"""A lock on a folder: one process at a time writes there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


class LockedError(Exception):
    """Another process has the lock."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, the file `lock` in it; raise LockedError, with the number of the process, if another holds it.

    The system lets go of the lock when the process ends, however it ends. Where there are no such locks (Windows, some network
    drives) nothing is locked.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise LockedError(file.read().strip() or "?") from None
        except OSError:
            pass  # a file system without locks
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
