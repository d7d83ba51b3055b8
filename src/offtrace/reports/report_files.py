"""Files of reports: each is there whole or not at all, and an error names it."""

from __future__ import annotations

from pathlib import Path

from offtrace._shared.whole_files import why_not_written, written_whole


def put(content: bytes, path: Path) -> None:
    """Write a file, and the folder that it is in."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as file:
            file.write(content)
    except OSError as error:
        raise OSError(error.errno, why_not_written(error), str(path)) from error
