"""study.json: what a folder of records says of itself. Its checksum lies beside it; a folder of before has none."""

from __future__ import annotations

import json
from pathlib import Path

from offtrace._shared.whole_files import BESIDE, DamagedError, read_checked, write_checked
from offtrace.studies.declaration_checks import Table, is_table

NAME = "study.json"


def read(folder: Path) -> Table:
    """Return what it says; raise DamagedError if its bytes are not those that were written, FileNotFoundError without it."""
    path = folder / NAME
    content = read_checked(path) if path.with_name(NAME + BESIDE).exists() else path.read_bytes()
    try:
        found: object = json.loads(content)
    except ValueError as error:
        raise DamagedError(f"{path} is damaged: {error}") from error
    if not is_table(found):
        raise DamagedError(f"{path} is damaged: it holds no table")
    return dict(found)


def write(folder: Path, about: Table) -> None:
    """Write it whole, with its checksum."""
    write_checked(folder / NAME, (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode())


def about_of(folder: Path) -> Table:
    """Return what it says; an empty table where it is missing or damaged."""
    try:
        return read(folder)
    except (OSError, DamagedError):
        return {}


def code_file(folder: Path, digest: str) -> Path:
    """Where a folder keeps the code of this digest."""
    return folder / "code" / f"{digest[:16]}.json"


def code_of(folder: Path, digest: str | None = None) -> Table:
    """Return what a folder has kept of the code of this digest, or of its first run; an empty table where it has kept nothing."""
    try:
        kept: object = json.loads(read_checked(code_file(folder, digest or "")))
    except (OSError, ValueError):
        kept = about_of(folder).get("code")
    if not is_table(kept) or (digest is not None and kept.get("digest", "") != digest):
        return {}
    return dict(kept)
