"""The records of a study: one SQLite file, with a row for each unit. What is committed is done.

    records.sqlite    about     the declaration as it was run, versions, machine; the code of each run that had another one
                      units     who ran a unit when, its score, and the checksum of its numbers
                      numbers   its rows and its curve, as arrays
    study.toml        the declaration, to read
    failed/….txt      units that were set aside, and how they failed
    damaged/…         files of records that were damaged, as they were

All contents carry a checksum, which is compared before anything parses them. There is one writer; readers may read meanwhile.
A unit may be there twice: what was written last counts. Where the file is damaged, the units that can be read are kept, and the
next run moves them into a new file, sets the damaged one aside and runs the others again.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np

from offtrace._shared.extras import from_extra
from offtrace._shared.folder_lock import LockedError, locked
from offtrace._shared.number_text import counted
from offtrace._shared.whole_files import why_not_written, written_whole
from offtrace.studies.fields import StudyError, Table, is_table
from offtrace.studies.plan import Failure, Outcome, Unit

if TYPE_CHECKING:
    import polars as pl

NAME = "records.sqlite"
TABLES = ("about", "units", "numbers")
CHECKSUM = 16
"""Bytes of a checksum."""
DTYPES = {"f": "<f8", "i": "<i8", "b": "|b1"}
"""How arrays are written, by their kind."""


class DamagedError(ValueError):
    """A content is not what was written."""


class Summary(NamedTuple):
    """What is known of a unit that is done, without its numbers."""

    id: str
    score: float
    rows: int
    seconds: float
    worker: str
    finished: str
    """When, in UTC, as ISO 8601 has it."""
    code: str
    """The digest of the code that ran it."""
    checksum: str
    """That of its numbers."""
    number: int = 0
    """That of its row."""


@dataclass
class Contents:
    """What a file of records holds."""

    about: Table = field(default_factory=dict[str, Any])
    """The study, and what was run first; empty where it cannot be read."""
    codes: dict[str, Table] = field(default_factory=dict[str, Table])
    """The code of all runs, by its digest."""
    done: dict[str, Summary] = field(default_factory=dict[str, Summary])
    """Each unit that is done, by its id."""
    problems: list[str] = field(default_factory=list[str])
    """What is damaged."""

    @property
    def scores(self) -> dict[str, float]:
        """The score of each unit that is done."""
        return {id: summary.score for id, summary in self.done.items()}


def seal(content: bytes) -> bytes:
    """A content, after its checksum."""
    return blake2b(content, digest_size=CHECKSUM).digest() + content


def unseal(sealed: object) -> bytes:
    """The content that was sealed; a DamagedError if it is another."""
    if not isinstance(sealed, bytes) or blake2b(sealed[CHECKSUM:], digest_size=CHECKSUM).digest() != sealed[:CHECKSUM]:
        raise DamagedError("its checksum does not fit")
    return sealed[CHECKSUM:]


def encode(outcome: Outcome) -> bytes:
    """The rows and the curve of a unit: names, kinds and lengths of the arrays as JSON, then their bytes."""
    head: list[tuple[str, str, str, int]] = []
    pieces: list[bytes] = []
    for kind, columns in (("rows", outcome.rows), ("curves", outcome.curve)):
        for name, column in columns.items():
            array = np.ascontiguousarray(column, dtype=DTYPES[np.asarray(column).dtype.kind])
            head.append((kind, name, array.dtype.kind, len(array)))
            pieces.append(array.tobytes())
    return b"\n".join([json.dumps(head).encode(), b"".join(pieces)])


def decode(content: bytes, wanted: str) -> dict[str, np.ndarray]:
    """The "rows" or the "curves" of a unit."""
    head, _, data = content.partition(b"\n")
    columns: dict[str, np.ndarray] = {}
    at = 0
    for kind, name, dtype, length in json.loads(head):
        column = np.frombuffer(data, DTYPES[dtype], length, at) if length else np.empty(0, DTYPES[dtype])
        at += column.nbytes
        if kind == wanted:
            columns[name] = column
    return columns


class Store:
    """The records of one study, in a folder."""

    def __init__(self, folder: Path, digest: str) -> None:
        self.folder, self.digest, self.path = folder, digest, folder / NAME
        self._writer: sqlite3.Connection | None = None

    @contextlib.contextmanager
    def writing(self, about: Table, toml: str, code: Table) -> Iterator[Contents]:
        """Make and lock the folder, repair damaged records, and record the current code; yields the contents.

        One coordinator at a time.
        """
        with contextlib.ExitStack() as held:
            with self._write_errors():
                self.folder.mkdir(parents=True, exist_ok=True)
                try:
                    held.enter_context(locked(self.folder))
                except LockedError as other:
                    who = "another process" if str(other) == "?" else f"process {other}"
                    raise StudyError(f"{who} is running this study in {self.folder}: wait for its end") from None
                contents = self.read(whole=True)
                if contents.about.get("digest", self.digest) != self.digest:
                    raise StudyError(f"{self.path} holds another study: give another --out")
                if contents.problems:
                    self._rebuild(contents)
                self._writer = held.enter_context(contextlib.closing(_created(self.path)))
                held.callback(self._leave_as_one_file)
                if not contents.about:
                    self._insert("about", {"digest": self.digest, "toml": toml, **about})
                if code["digest"] not in contents.codes:
                    self._insert("about", {"code": code})
                self._write_text("study.toml", str(contents.about.get("toml", toml)))
                for failed in (self.folder / "failed").glob("*.txt"):  # they are tried again
                    failed.unlink()
            yield contents

    def add(self, outcome: Outcome, worker: str, code: str, finished: datetime | None = None) -> None:
        """Commit a unit that is done."""
        assert self._writer is not None
        data, when = encode(outcome), (finished or datetime.now(UTC)).isoformat()
        about = outcome.score, len(outcome.rows["seed"]), outcome.seconds, worker, when, code, _checksum(data)
        with self._write_errors(), self._writer as writer:
            number = writer.execute("INSERT INTO numbers (content) VALUES (?)", (data,)).lastrowid
            sealed = seal(json.dumps([outcome.unit.id, *about]).encode())
            writer.execute("INSERT INTO units (number, content) VALUES (?, ?)", (number, sealed))

    def fail(self, failure: Failure) -> None:
        """Keep how a unit failed: in one line, and the traceback below it."""
        text = f"{failure.unit}: {failure.error}\n{failure.traceback}"
        with self._write_errors():
            (self.folder / "failed").mkdir(exist_ok=True)
            self._write_text(f"failed/{failure.unit.id}.txt", text)

    def failed(self) -> dict[str, str]:
        """How each unit failed that was set aside, in one line."""
        lines: dict[str, str] = {}
        for file in sorted((self.folder / "failed").glob("*.txt")):
            line = file.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
            lines[file.stem] = "".join(c if c.isprintable() else "�" for c in line)  # a terminal shows it
        return lines

    def read(self, whole: bool = False) -> Contents:
        """What is there. The numbers of the units are checked if it is to be the `whole`, else when they are read."""
        contents = Contents()
        if not self.path.exists():
            return contents
        try:
            with contextlib.closing(_opened(self.path)) as reader:
                if whole and (said := reader.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                    contents.problems.append(f"{NAME} is damaged: {said.splitlines()[-1]}")
                self._read_about(reader, contents)
                self._read_units(reader, contents)
                if whole:
                    good = {summary.id for summary, _ in self._numbers(reader, contents.done, contents.problems)}
                    contents.done = {id: summary for id, summary in contents.done.items() if id in good}
        except sqlite3.Error as error:
            if (self.folder / "study.toml").exists():  # it is written once there are tables
                contents.problems.append(f"{NAME} cannot be read: {error}; its units count as not done")
        return contents

    def about(self) -> Table:
        """What the file says of its study; empty where that cannot be read."""
        contents = Contents()
        with contextlib.suppress(sqlite3.Error, OSError), contextlib.closing(_opened(self.path)) as reader:
            self._read_about(reader, contents)
        return contents.about

    def _read_about(self, reader: sqlite3.Connection, contents: Contents) -> None:
        for _, content in _rows(reader, "about", contents.problems):
            try:
                said: object = json.loads(unseal(content))
            except ValueError as error:
                contents.problems.append(f"{NAME}: what it says of the study is damaged: {error}")
                continue
            if is_table(said) and is_table(said.get("code")):
                contents.codes[str(said["code"].get("digest"))] = dict(said["code"])
            elif is_table(said):
                contents.about = contents.about or dict(said)

    def _read_units(self, reader: sqlite3.Connection, contents: Contents) -> None:
        damaged = 0
        for number, content in _rows(reader, "units", contents.problems):
            try:
                summary = Summary._make([*json.loads(unseal(content).decode()), number])
                contents.done[summary.id] = summary
            except (ValueError, TypeError):
                damaged += 1
        if damaged:
            contents.problems.append(f"{NAME}: {counted(damaged, 'unit')} cannot be read and count as not done")

    def _numbers(
        self, reader: sqlite3.Connection, units: Mapping[str, Summary], problems: list[str]
    ) -> Iterator[tuple[Summary, bytes]]:
        """The numbers of these units, with their summaries; those that are damaged become a problem."""
        left = {summary.number: summary for summary in units.values()}
        for number, content in _rows(reader, "numbers", problems) if left else ():
            if number in left and isinstance(content, bytes) and _checksum(content) == left[number].checksum:
                yield left.pop(number), content
        if left:
            problems.append(
                f"{NAME}: the numbers of {counted(len(left), 'unit')} are damaged: the next run computes them again"
            )

    def columns(self, kind: str, units: Mapping[str, Summary], problems: list[str]) -> dict[str, dict[str, np.ndarray]]:
        """The arrays of "rows" or "curves" of these units; numbers that are damaged become a problem."""
        with contextlib.closing(_opened(self.path)) as reader:
            return {s.id: decode(content, kind) for s, content in self._numbers(reader, units, problems)}

    def _rebuild(self, contents: Contents) -> None:
        """Move what can be read into a new file, and set the damaged one aside."""
        new = self.path.with_name(f".{NAME}.new")
        new.unlink(missing_ok=True)
        wanted = {summary.number for summary in contents.done.values()}
        with contextlib.closing(_created(new)) as writer, writer:
            abouts = [contents.about] if contents.about else []
            for about in (*abouts, *({"code": code} for code in contents.codes.values())):
                writer.execute("INSERT INTO about (content) VALUES (?)", (seal(json.dumps(about).encode()),))
            with contextlib.suppress(sqlite3.Error), contextlib.closing(_opened(self.path)) as reader:
                for table in ("units", "numbers"):
                    kept = ((n, content) for n, content in _rows(reader, table, []) if n in wanted)
                    writer.executemany(f"INSERT INTO {table} (number, content) VALUES (?, ?)", kept)
        aside = self.folder / "damaged"
        aside.mkdir(exist_ok=True)
        place = next(path for i in range(1, 10**6) if not (path := aside / f"records-{i}.sqlite").exists())
        self.path.rename(place)
        for more in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(NAME + more).rename(place.with_name(place.name + more))
        new.rename(self.path)

    def _insert(self, table: str, content: Table) -> None:
        assert self._writer is not None
        with self._writer as writer:
            writer.execute(f"INSERT INTO {table} (content) VALUES (?)", (seal(json.dumps(content).encode()),))

    def _write_text(self, name: str, text: str) -> None:
        path, content = self.folder / name, text.encode(errors="replace")
        if not path.exists() or path.read_bytes() != content:
            with written_whole(path) as file:
                file.write(content)

    def _leave_as_one_file(self) -> None:
        """Remove SQLite's log, so that the file alone can be copied, and be read where nothing can be written."""
        assert self._writer is not None
        with contextlib.suppress(sqlite3.Error):  # somebody reads it
            self._writer.execute("PRAGMA journal_mode = DELETE")

    @contextlib.contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            why = why_not_written(error) if isinstance(error, OSError) else str(error)
            why = "the disk is full" if "disk is full" in why else why
            raise StudyError(
                f"cannot write to {self.folder}: {why}. What was written before stays; run the study again to continue"
            ) from error


def _checksum(content: bytes) -> str:
    return blake2b(content, digest_size=CHECKSUM).hexdigest()


def _created(path: Path) -> sqlite3.Connection:
    """A connection that writes, and the tables."""
    writer = sqlite3.connect(path, timeout=10.0)
    try:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA synchronous = NORMAL")
        writer.execute("BEGIN")  # the file has all tables, or none
        for table in TABLES:
            writer.execute(f"CREATE TABLE IF NOT EXISTS {table} (number INTEGER PRIMARY KEY, content BLOB NOT NULL)")
        writer.commit()
    except BaseException:
        writer.close()
        raise
    return writer


def _opened(path: Path) -> sqlite3.Connection:
    """A connection that reads. The file may be anybody's: it must have our tables, and runs nothing."""
    url = f"file:{quote(str(path.absolute()))}?mode=ro"
    try:
        return _with_tables(sqlite3.connect(url, uri=True, timeout=10.0))
    except sqlite3.OperationalError:  # it may lie where nothing can be written, not even what SQLite needs to read it
        if path.with_name(NAME + "-wal").exists():
            raise
        return _with_tables(sqlite3.connect(url + "&immutable=1", uri=True))


def _with_tables(reader: sqlite3.Connection) -> sqlite3.Connection:
    try:
        reader.execute("PRAGMA trusted_schema = OFF")
        tables = dict(reader.execute("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"))
        if missing := [name for name in TABLES if tables.get(name) != "table"]:
            raise sqlite3.DatabaseError(f"it has no table {missing[0]}")
    except BaseException:
        reader.close()
        raise
    return reader


def _rows(reader: sqlite3.Connection, table: str, problems: list[str]) -> Iterator[tuple[int, object]]:
    """All rows of a table that can be read: (number, content). Where a page is damaged, the others are still read."""
    last = 0
    try:
        for row in reader.execute(f"SELECT number, content FROM {table} ORDER BY number"):
            last = row[0]
            yield row
        return
    except sqlite3.Error as error:
        problems.append(f"{NAME} is damaged: {error}")
    pages = reader.execute("PRAGMA page_count").fetchone()[0]
    most = 64 * pages + 64  # of rows: none is shorter than 64 bytes, and a page has 4096
    for number in range(last + 1, last + most):
        with contextlib.suppress(sqlite3.Error):
            row = reader.execute(f"SELECT number, content FROM {table} WHERE number = ?", (number,)).fetchone()
            if row:
                yield row


def schema(kind: str) -> dict[str, Any]:
    """The columns of the frame of "rows" or "curves"."""
    with from_extra("studies", "records of studies need"):
        import polars as pl
    S, F, N = pl.String, pl.Float64, pl.Int64
    unit = {"unit": S, "phase": S, "environment": S, "trace": S, "lam": F, "parameters": S, "alpha": F}
    operator = {"contraction_lower": F, "contraction_upper": F, "variance": F, "bias": F}
    if kind == "rows":
        return {**unit, "seed": N, "value": F, "episodes": N, **operator, "age": F, "diverged": pl.Boolean}
    return {**unit, "step": N, "mean": F, "low": F, "high": F, "n": N, "age": F, "seed": N}


def frame(kind: str, units: Mapping[str, Unit], columns: Mapping[str, Mapping[str, np.ndarray]]) -> pl.DataFrame:
    """One frame of the arrays of all units, in the order of `units`; what a unit does not have is null."""
    wanted = schema(kind)
    import polars as pl

    present = [(unit, columns[id]) for id, unit in units.items() if columns.get(id)]
    lengths = np.array([len(arrays["seed" if kind == "rows" else "step"]) for _, arrays in present], dtype=np.int64)
    place = np.repeat(np.arange(len(present)), lengths)
    series: dict[str, Any] = {"#": place}
    for name, dtype in wanted.items():
        if any(name in own for _, own in present):
            pieces = [own.get(name, np.full(n, np.nan)) for (_, own), n in zip(present, lengths, strict=True)]
            column = pl.Series(name, np.concatenate(pieces))
        else:
            of_unit = [getattr(unit, "id" if name == "unit" else name, None) for unit, _ in present]
            column = pl.Series(name, of_unit, dtype=dtype).gather(place)
        missing = column.dtype == pl.Float64 and name not in ("value", "mean")  # a value may be NaN
        series[name] = (column.fill_nan(None) if missing else column).cast(dtype)
    order = ["#", "lam", "seed", *(["step"] if kind == "curves" else [])]
    return pl.DataFrame(series, schema={"#": pl.Int64, **wanted}).sort(order).drop("#")
