"""Tables as lazy frames of polars: Parquet, Arrow and CSV files, frames of polars and pandas, Arrow tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from offtrace._shared.extras import install
from offtrace.logs.reading import csv_files
from offtrace.logs.reading.columns import Columns
from offtrace.logs.reading.problems import LogsError

if TYPE_CHECKING:
    import polars as pl

SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".arrow": "ipc", ".ipc": "ipc", ".feather": "ipc", ".csv": "csv"}


def polars() -> ModuleType:
    """Polars, which is an extra."""
    try:
        import polars
    except ImportError:
        raise ImportError(f"logs in tables need polars: {install('logs')}", name="polars") from None
    return polars


def unreadable() -> tuple[type[BaseException], ...]:
    """What polars raises where it cannot read a source; it panics at some damaged files, which is no `Exception`."""
    return polars().exceptions.PolarsError, polars().exceptions.PanicException


@dataclass(frozen=True)
class Table:
    """A source of rows."""

    frame: pl.LazyFrame
    name: str
    files: tuple[Path, ...] = ()

    @cached_property
    def _rows(self) -> list[int]:
        """The number of rows of each file."""
        return [scan((file,)).select(polars().len()).collect().item() for file in self.files]

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
        found = [p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and (p.is_file() or _leads_nowhere(p))]
        if not found:
            raise FileNotFoundError(f"{source} is a folder without tables: none of {', '.join(SUFFIXES)} is in it")
    elif path.exists() or path.is_symlink():
        found = [path]
    else:
        found = list(fixed.glob(str(path.relative_to(fixed))))
    for file in found:
        if _leads_nowhere(file):
            raise FileNotFoundError(
                f"{file} is a link to {file.readlink()}, which is not there: mend the link, or remove it"
            )
    return tuple(sorted(found))


def _leads_nowhere(file: Path) -> bool:
    return file.is_symlink() and not file.exists()


def from_files(files: tuple[Path, ...], source: str, columns: Columns) -> Table:
    """Files of one kind."""
    kinds = sorted({SUFFIXES.get(file.suffix.lower(), file.name) for file in files})
    if len(kinds) > 1 or kinds[0] not in SUFFIXES.values():
        raise ValueError(
            f"{source}: files must be of one kind, ending in {', '.join(SUFFIXES)}; got {', '.join(kinds)}"
        )
    if kinds == ["csv"]:
        csv_files.check_heads(files, {column for _, column in columns.used()})
        explain_columns(files)
    elif empty := [file for file in files if not file.stat().st_size]:
        raise LogsError(f"{empty[0]} is empty")
    return Table(scan(files, columns), source, files)


def explain_columns(files: tuple[Path, ...]) -> None:
    """Raise an error that names the first file whose columns are not those of the first file, if there is one."""
    pl = polars()

    def columns(file: Path) -> dict[str, str]:
        of_csv = SUFFIXES[file.suffix.lower()] == "csv"  # where types depend on the rows that are looked at
        scanned = pl.scan_csv(file, glob=False, infer_schema=False) if of_csv else scan((file,))
        return {name: str(kind) for name, kind in scanned.collect_schema().items()}

    if len(files) < 2:
        return
    first, *others = files
    wanted = columns(first)
    for file in others:
        found = columns(file)
        lacks = ", ".join(repr(name) for name in wanted if name not in found)
        more = ", ".join(repr(name) for name in found if name not in wanted)
        kinds = [
            f"{name!r} is {found[name]}, not {kind}" for name, kind in wanted.items() if found.get(name, kind) != kind
        ]
        words = [*([f"lacks {lacks}"] if lacks else []), *([f"also has {more}"] if more else []), *kinds]
        if words:
            raise LogsError(
                f"{file.name} has other columns than {first.name}: it {' and '.join(words)}. All files of a log must have the "
                "same columns"
            )
        if list(found) != list(wanted):
            raise LogsError(
                f"{file.name} has the same columns, but in another order than {first.name}: {', '.join(found)}, not "
                f"{', '.join(wanted)}. Write it in the same order"
            )


def counted_rows(table: Table) -> int:
    """How many rows there are. Check that there are some, and that no row of a CSV file is longer than its header.

    Polars tells of a long row only where all columns are read.
    """
    pl = polars()
    of_csv = bool(table.files) and SUFFIXES[table.files[0].suffix.lower()] == "csv"
    try:
        rows = table.frame.select(pl.len(), *([pl.all().null_count()] if of_csv else [])).collect()["len"].item()
    except pl.exceptions.ComputeError:
        if of_csv:
            csv_files.explain_long_row(table.files)
        raise
    if not rows:
        raise LogsError(f"{table.name} has no rows")
    return rows


def scan(files: tuple[Path, ...], columns: Columns | None = None) -> pl.LazyFrame:
    """Files of one kind as one lazy frame."""
    pl = polars()
    kind = SUFFIXES[files[0].suffix.lower()]
    paths = list(files)
    if kind == "parquet":
        return pl.scan_parquet(paths, glob=False)
    if kind == "ipc":
        return pl.scan_ipc(paths, glob=False)
    numbers: dict[str, object] = {}
    if columns is not None:  # the first rows need not show that a column holds fractions
        there = pl.scan_csv(paths, glob=False, infer_schema=False).collect_schema()
        several = tuple(c for c in (columns.state, columns.next_state) if isinstance(c, tuple))
        real = {columns.reward, columns.behaviour, *(name for each in several for name in each)}
        numbers = {name: pl.Float64 for name in real if name in there}
    return pl.scan_csv(paths, glob=False, schema_overrides=numbers, infer_schema_length=10_000)


def from_frame(source: Any, columns: Columns) -> Table | None:
    """A frame of polars or pandas, or an Arrow table; None if it is none of them."""
    kind = type(source).__module__.partition(".")[0]
    called = f"{kind} {type(source).__name__}"
    if kind not in ("polars", "pandas", "pyarrow"):
        return None
    pl = polars()
    if isinstance(source, pl.LazyFrame):
        return Table(source, called)
    if isinstance(source, pl.DataFrame):
        return Table(source.lazy(), called)
    if kind == "pandas" and hasattr(source, "columns"):
        used = {column for _, column in columns.used()}
        # only what is used is converted, if all is there
        part = source[[c for c in source.columns if c in used]] if used <= set(source.columns) else source
        return Table(pl.from_pandas(part).lazy(), called)
    if kind == "pyarrow" and hasattr(source, "column_names"):
        return Table(pl.from_arrow(source).lazy(), called)  # pyright: ignore[reportAttributeAccessIssue]
    return None
