"""Tables as lazy frames of polars: of files, of frames of polars and pandas, of Arrow tables, and of lists of rows."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from offtrace._shared.extras import install
from offtrace.logs.reading.columns import Columns
from offtrace.logs.reading.problems import LogsError

try:
    import polars as pl
except ImportError:
    raise ImportError(f"logs need polars: {install('logs')}", name="polars") from None

UNREADABLE = pl.exceptions.PolarsError, pl.exceptions.PanicException
"""What polars raises where it cannot read a source; it panics at some damaged files, which is no `Exception`."""
SUFFIXES = {
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "ipc", ".ipc": "ipc", ".feather": "ipc", ".csv": "csv",
    ".csv.gz": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl",
}  # fmt: skip


def kind_of(file: Path) -> str | None:
    """parquet, ipc, csv or jsonl, by the name; None for other files."""
    return next((kind for suffix, kind in SUFFIXES.items() if file.name.lower().endswith(suffix)), None)


@dataclass(frozen=True)
class Table:
    """A source of rows."""

    frame: pl.LazyFrame
    name: str
    files: tuple[Path, ...] = ()
    in_words: Callable[[int], str] | None = None
    """A row as the user finds it; None: by its number, its file and its episode."""

    @cached_property
    def _rows(self) -> list[int]:
        """The number of rows of each file."""
        return [scan((file,)).select(pl.len()).collect().item() for file in self.files]

    def words(self, row: int) -> str:
        """A row as the user finds it: its number, and in which of several files."""
        if len(self.files) > 1:
            for file, rows in zip(self.files, self._rows, strict=True):
                if row < rows:
                    return f"{row:,} of {file.name}"
                row -= rows
        return f"{row:,}"


def files_of(source: str | Path) -> tuple[Path, ...]:
    """A file, the tables below a folder, or what a pattern matches; sorted by name. Links to folders are not followed."""
    path, fixed = Path(source), Path(Path(source).anchor)
    if path.is_dir():
        files = [p for p in path.rglob("*") if kind_of(p) and (p.is_file() or _leads_nowhere(p))]
        if not files:
            raise FileNotFoundError(f"{source} is a folder without tables: none of {', '.join(SUFFIXES)} is in it")
    elif path.exists() or path.is_symlink():
        files = [path]
    else:
        files = list(fixed.glob(str(path.relative_to(fixed))))
    for file in files:
        if _leads_nowhere(file):
            raise FileNotFoundError(
                f"{file} is a link to {file.readlink()}, which is not there: mend the link, or remove it"
            )
    return tuple(sorted(files))


def _leads_nowhere(file: Path) -> bool:
    return file.is_symlink() and not file.exists()


def from_files(files: tuple[Path, ...], source: str, columns: Columns) -> Table:
    """Files of one kind."""
    kinds = Counter(kind_of(file) or file.name for file in files)
    most = kinds.most_common(1)[0][0]
    if len(kinds) > 1 or most not in SUFFIXES.values():
        odd = [file.name for file in files if kind_of(file) != most] or [file.name for file in files]
        raise ValueError(
            f"{source}: files must be of one kind, ending in {', '.join(SUFFIXES)}; got {', '.join(sorted(kinds))}. The odd "
            f"{'one is' if len(odd) == 1 else 'ones are'} {', '.join(odd[:3])}{' …' * (len(odd) > 3)}"
        )
    if most == "csv":
        _check_heads(files, {column for _, column in columns.used()})
        explain_files(files)
    elif empty := [file for file in files if not file.stat().st_size]:
        raise LogsError(f"{empty[0]} is empty")
    return Table(scan(files, columns), source, files)


def explain_files(files: tuple[Path, ...]) -> None:
    """Raise an error that names the first file that cannot be read, or has other columns than the first, if there is one."""

    def columns(file: Path) -> dict[str, str]:
        of_csv = kind_of(file) == "csv"  # where types depend on the rows that are looked at
        scanned = pl.scan_csv(file, glob=False, infer_schema=False) if of_csv else scan((file,))
        try:
            return {name: str(kind) for name, kind in scanned.collect_schema().items()}
        except UNREADABLE as error:
            raise LogsError(f"{file} cannot be read: {error}") from error

    if len(files) < 2:
        return
    first, *others = files
    wanted = columns(first)
    for file in others:
        there = columns(file)
        lacks = ", ".join(repr(name) for name in wanted if name not in there)
        more = ", ".join(repr(name) for name in there if name not in wanted)
        kinds = [
            f"{name!r} is {there[name]}, not {kind}" for name, kind in wanted.items() if there.get(name, kind) != kind
        ]
        words = [*([f"lacks {lacks}"] if lacks else []), *([f"also has {more}"] if more else []), *kinds]
        if words:
            raise LogsError(
                f"{file.name} has other columns than {first.name}: it {' and '.join(words)}. All files of a log must have the "
                "same columns"
            )
        if list(there) != list(wanted):
            raise LogsError(
                f"{file.name} has the same columns, but in another order than {first.name}: {', '.join(there)}, not "
                f"{', '.join(wanted)}. Write it in the same order"
            )


def scan(files: tuple[Path, ...], columns: Columns | None = None) -> pl.LazyFrame:
    """Files of one kind as one lazy frame."""
    kind, paths = kind_of(files[0]), list(files)
    if kind == "parquet":
        return pl.scan_parquet(paths, glob=False)
    if kind == "ipc":
        return pl.scan_ipc(paths, glob=False)
    if kind == "jsonl":
        return pl.scan_ndjson(paths, infer_schema_length=10_000)
    numbers: dict[str, type[pl.DataType]] = {}
    if columns is not None:  # the first rows need not show that a column holds fractions
        there = pl.scan_csv(paths, glob=False, infer_schema=False).collect_schema()
        several = tuple(c for c in (columns.state, columns.next_state) if isinstance(c, tuple))
        real = {columns.reward, columns.behaviour, *(name for each in several for name in each)}
        text = pl.scan_csv(paths, glob=False, infer_schema_length=10_000).collect_schema()
        numbers = {name: pl.Float64 for name in real if name in there and text[name] != pl.String}
    return pl.scan_csv(paths, glob=False, schema_overrides=numbers, infer_schema_length=10_000)


def from_frame(source: Any, columns: Columns) -> Table | None:
    """A frame of polars or pandas, an Arrow table, or a list of rows; None if it is none of them."""
    kind = type(source).__module__.partition(".")[0]
    called = f"{kind} {type(source).__name__}"
    used = {column for _, column in columns.used()}
    if _holds_rows(source):
        rows = [
            {name: value for name, value in row.items() if name in used} if used <= set(row) else row for row in source
        ]
        return Table(pl.from_dicts(rows, infer_schema_length=None, strict=False).lazy(), "the list of rows")
    if kind not in ("polars", "pandas", "pyarrow"):
        return None
    if isinstance(source, pl.LazyFrame):
        return Table(source, called)
    if isinstance(source, pl.DataFrame):
        return Table(source.lazy(), called)
    if kind == "pandas" and hasattr(source, "columns"):
        # only what is used is converted, if all is there
        part = source[[c for c in source.columns if c in used]] if used <= set(source.columns) else source
        mixed = [c for c in part.columns if part[c].dtype == object and part[c].dropna().map(type).nunique() > 1]
        part = part.assign(**{c: part[c].map(str, na_action="ignore") for c in mixed})  # ids of text and numbers
        return Table(pl.from_pandas(part).lazy(), called)
    if kind == "pyarrow" and hasattr(source, "column_names"):
        return Table(pl.from_arrow(source).lazy(), called)  # pyright: ignore[reportAttributeAccessIssue]
    return None


def _holds_rows(source: Any) -> bool:
    """Whether it is a list of mappings, each of one step; episodes of Gymnasium have `observations`."""
    if not isinstance(source, Sequence) or isinstance(source, str | bytes) or not source:
        return False
    return all(isinstance(each, Mapping) and "observations" not in each and "rewards" not in each for each in source)


# --- what may be wrong with a CSV file as such -----------------------------------------------------------------------
# Polars renames the second of two columns with one name, and leaves out fields that no column names.


def check_rows(table: Table) -> None:
    """Check that there are rows, and that none of a CSV file is longer than its header.

    Polars tells of a long row only where all columns are read.
    """
    of_csv = bool(table.files) and kind_of(table.files[0]) == "csv"
    try:
        rows = table.frame.select(pl.len(), *([pl.all().null_count()] if of_csv else [])).collect()["len"].item()
    except pl.exceptions.ComputeError as error:
        if of_csv:
            _explain_long_row(table.files)
            _explain_encoding(table.files, error)
        raise
    if not rows:
        raise LogsError(f"{table.name} has no rows")


def _check_heads(files: Collection[Path], used: Collection[str]) -> None:
    """Check that each file has a header, in commas, and that it names no used column twice."""
    for file in files:
        with _rows(file) as rows:
            head = next(rows, [])
        if not head:
            raise LogsError(f"{file} is empty: a CSV file begins with the names of its columns")
        for separator, called in ((";", "semicolons"), ("\t", "tabs")):
            if len(head) == 1 and head[0].count(separator) > 1:
                raise LogsError(
                    f"{file.name}: its columns are separated by {called}, not by commas. Read it with polars, and give the "
                    f"frame: read(pl.read_csv({file.name!r}, separator={separator!r}), …), with decimal_comma=True where "
                    "numbers are written as 0,5"
                )
        for name, times in Counter(head).items():
            if times > 1 and name in used:
                raise LogsError(
                    f"{file} has {times} columns that are called {name!r}: rename all but the one that is meant"
                )


def _explain_long_row(files: Collection[Path]) -> None:
    """Raise an error that names the first row with more fields than its file has columns, if there is one."""
    for file in files:
        with _rows(file) as rows:
            width = len(next(rows, []))
            for number, row in enumerate(rows):
                if len(row) > width:
                    raise LogsError(
                        f"row {number:,} of {file} has {len(row)} fields, but the header names {width} columns; is a comma in a "
                        f"text not quoted? The row begins with {','.join(islice(row, 4))!r}"
                    )


def _explain_encoding(files: Collection[Path], error: Exception) -> None:
    """Raise an error that names the first file that is not UTF-8, if there is one."""
    for file in files:
        with _open(file) as binary:
            for number, line in enumerate(binary, 1):
                try:
                    line.decode()
                except UnicodeDecodeError:
                    raise LogsError(
                        f"{file} is not written in UTF-8: see line {number:,}, {line.strip()[:60].decode('latin-1')!r}. It may "
                        f'be Latin-1: read(pl.read_csv({file.name!r}, encoding="latin1"), …), or save it as UTF-8'
                    ) from error


def _open(file: Path) -> Any:
    return gzip.open(file) if file.name.lower().endswith(".gz") else file.open("rb")


@contextmanager
def _rows(file: Path) -> Iterator[Iterator[list[str]]]:
    """The rows of a file, blank lines left out."""
    opened = gzip.open if file.name.lower().endswith(".gz") else open
    with opened(file, "rt", newline="", encoding="utf-8", errors="replace") as text:
        yield (row for row in csv.reader(text) if row)
