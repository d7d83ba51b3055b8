"""The files of a part: their names carry a checksum, which is compared with their bytes before anything parses them.

`rows/part-000001-0123456789abcdef.parquet` has the number of the part, and the beginning of the SHA-256 of this file. Parts of
before have no checksum in their names; the one of `units` was in the file itself, so that it had to be parsed first.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from offtrace._shared.extras import install
from offtrace._shared.whole_files import checksum

if TYPE_CHECKING:
    import polars as pl

SCHEMA = "1"
"""Of the files. A reader that does not know it does not read them."""
NAME = re.compile(r"part-(\d{6,})(?:-([0-9a-f]{16}))?\.parquet")


class NotReadError(Exception):
    """Why a file is not read. What is damaged is set aside by the next run; what is foreign stays."""

    def __init__(self, why: str, *, damaged: bool = False) -> None:
        super().__init__(why)
        self.damaged = damaged


def polars() -> ModuleType:
    """Polars, which is an extra."""
    try:
        import polars
    except ImportError:
        raise ImportError(f"records of studies need polars: {install('studies')}") from None
    return polars


def name(number: int, content: bytes) -> str:
    """The name of a file of the part of this number."""
    return f"part-{number:06d}-{checksum(content)[:16]}.parquet"


def number(path: Path) -> int | None:
    """The number of the part that a file belongs to; None if it is no file of a part."""
    found = NAME.fullmatch(path.name)
    return int(found[1]) if found else None


def content(path: Path) -> bytes:
    """The bytes of a file; they are those that were written, if its name has a checksum."""
    try:
        found = path.read_bytes()
    except OSError as error:
        raise NotReadError(f"it cannot be read ({error.strerror})", damaged=True) from error
    named = NAME.fullmatch(path.name)
    if named and named[2] and named[2] != checksum(found)[:16]:
        raise NotReadError("damaged: its bytes are not those that were written", damaged=True)
    return found


def head(path: Path, raw: bytes | None = None) -> dict[str, str]:
    """What a file says of itself."""
    pl = polars()
    try:
        return pl.read_parquet_metadata(io.BytesIO(content(path) if raw is None else raw))
    except (NotReadError, ImportError):
        raise
    except (Exception, pl.exceptions.PanicException) as error:  # a part of before may hold anything
        raise NotReadError(f"torn, or no Parquet file ({_first_line(error)})", damaged=True) from error


def parsed(path: Path, kind: str, study: str) -> tuple[pl.DataFrame, dict[str, str]]:
    """The table of a file, and its head; it must be of this kind and belong to the study of this digest."""
    pl, raw = polars(), content(path)
    said = head(path, raw)
    if "offtrace.schema" not in said:
        raise NotReadError("foreign: offtrace did not write it")
    if said["offtrace.schema"] != SCHEMA:
        raise NotReadError(f"its schema is {said['offtrace.schema']}, and this version of offtrace reads {SCHEMA}")
    if said.get("offtrace.study") != study:
        raise NotReadError(f"foreign: it belongs to the study {said.get('offtrace.study', '?')[:12]}")
    written = said.get("offtrace.part", "")
    if said.get("offtrace.kind") != kind or number(Path(written)) != number(path):
        raise NotReadError(f"misplaced: it was written as {said.get('offtrace.kind')}/{written}")
    try:
        frame = pl.read_parquet(io.BytesIO(raw))
    except (Exception, pl.exceptions.PanicException) as error:
        raise NotReadError(f"torn ({_first_line(error)})", damaged=True) from error
    if said.get("offtrace.units") not in (None, checksum(frame.write_csv().encode())):  # as parts of before have it
        raise NotReadError("torn or changed: its checksum does not fit", damaged=True)
    return frame, said


def partner(path: Path, kind: str, head: dict[str, str]) -> Path:
    """The file of another kind that belongs to a file of `units`."""
    found = NAME.fullmatch(path.name)
    assert found is not None
    known = head.get(f"offtrace.{kind}", "")
    same = f"part-{found[1]}-{known[:16]}.parquet" if found[2] else path.name
    return path.parent.parent / kind / same


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
