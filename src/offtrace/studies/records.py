"""Records: a folder to which parts are added and in which nothing is ever rewritten.

    study.json  study.toml                      the declaration as it was run, the versions, and the code that ran it
    rows/part-000001.parquet                    one row for each configuration and seed
    curves/part-000001.parquet                  the mean over the seeds at fixed steps; of deep agents each seed by itself
    units/part-000001.parquet                   which units the two hold, and how they were run

A part is written as three files, each whole or not at all, `units` last: it holds the checksums of the other two. A unit is done
when all three are there and agree. What is torn or foreign is reported and not read; what an interrupted write has left is
removed by the next run.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offtrace._shared.whole_files import written_whole
from offtrace.studies.checks import StudyError, Table
from offtrace.studies.plan import Outcome, Unit

if TYPE_CHECKING:
    import polars as pl

SCHEMA = "1"
"""Of the files. A reader that does not know it does not read them."""
KINDS = ("rows", "curves", "units")
NAME = re.compile(r"part-(\d{6,})\.parquet")


def polars() -> Any:
    """Polars, which is an extra."""
    try:
        import polars
    except ImportError:
        raise ImportError("records of studies need polars: pip install 'offtrace[studies]'") from None
    return polars


def schema(kind: str) -> dict[str, pl.DataType | type[pl.DataType]]:
    """The columns of a kind of file."""
    pl = polars()
    S, F, N = pl.String, pl.Float64, pl.Int64
    unit = {"unit": S, "phase": S, "environment": S, "trace": S, "lam": F, "parameters": S, "alpha": F}
    operator = {"contraction_lower": F, "contraction_upper": F, "variance": F, "bias": F}
    return {
        "rows": {**unit, "seed": N, "value": F, "episodes": N, **operator, "age": F, "diverged": pl.Boolean},
        "curves": {**unit, "step": N, "mean": F, "low": F, "high": F, "n": N, "age": F, "seed": N},
        "units": {"unit": S, "score": F, "rows": N, "seconds": F, "worker": S, "finished": pl.Datetime("us", "UTC")},
    }[kind]


@dataclass(frozen=True)
class Finished:
    """An outcome, and who brought it when."""

    outcome: Outcome
    worker: str
    finished: datetime
    """UTC."""


@dataclass
class Found:
    """What a folder holds."""

    done: dict[str, float] = field(default_factory=dict)
    """The score of each unit that is done."""
    parts: list[Path] = field(default_factory=list)
    """The `units` files that can be trusted."""
    problems: list[str] = field(default_factory=list)
    """Files that are not read, and why; what an interrupted write has left is none."""
    seconds: float = 0.0
    """Of all workers together."""
    rows: int = 0
    versions: set[str] = field(default_factory=set)
    """Of offtrace, under which it was run."""
    codes: set[str] = field(default_factory=set)
    """Digests of the code that ran it; "" where that was not kept."""
    workers: set[str] = field(default_factory=set)


class Folder:
    """The records of one study."""

    def __init__(self, path: Path, digest: str, code: str = "") -> None:
        self.path, self.digest, self.code = path, digest, code
        self._next = 0

    def prepare(self, about_it: Table, source: str) -> None:
        """Make the folder and say what it is for."""
        with self._writing():
            for kind in KINDS:
                (self.path / kind).mkdir(parents=True, exist_ok=True)
            about = self.path / "study.json"
            if about.exists():
                try:
                    known = json.loads(about.read_text(encoding="utf-8")).get("digest")
                except (ValueError, OSError, AttributeError) as error:
                    raise StudyError(
                        f"{about} cannot be read ({error}): move the folder away, or give another --out"
                    ) from error
                if known != self.digest:
                    raise StudyError(f"{self.path} holds another study (digest {known}): give another --out")
            else:
                head = {"schema": SCHEMA, "digest": self.digest, **about_it}
                self._write(self.path / "study.toml", source.encode())
                self._write(about, (json.dumps(head, indent=2, ensure_ascii=False) + "\n").encode())

    def tidy(self) -> None:
        """Remove what an interrupted write has left: no unit counts by it, and who reads `rows/*.parquet` should not see it."""
        for left in self.path.glob("*/.part-*.tmp"):
            left.unlink(missing_ok=True)
        for kind in ("rows", "curves"):
            for path in self._files(kind):
                if not (self.path / "units" / path.name).exists() and self._why_alone(path, kind) is None:
                    path.unlink()
        numbers = [int(m[1]) for kind in KINDS for f in (self.path / kind).iterdir() if (m := NAME.fullmatch(f.name))]
        self._next = max(numbers, default=0) + 1

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """One coordinator at a time. The system lets go of the lock when the process ends, however it ends."""
        try:
            import fcntl
        except ImportError:  # Windows: readers still count no unit twice
            yield
            return
        with (self.path / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise StudyError(f"process {file.read().strip() or '?'} is running this study in {self.path}") from None
            except OSError:
                pass  # a file system without locks
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def write(self, batch: Sequence[Finished], versions: dict[str, str]) -> None:
        """One more part."""
        pl = polars()
        name = f"part-{self._next:06d}.parquet"
        head = {"offtrace.schema": SCHEMA, "offtrace.study": self.digest, "offtrace.part": name}
        head |= {f"offtrace.version.{k}": v for k, v in versions.items()} | {"offtrace.code": self.code}
        frames = {
            "rows": pl.concat([_frame("rows", f.outcome.unit, f.outcome.rows) for f in batch]),
            "curves": pl.concat([_frame("curves", f.outcome.unit, f.outcome.curve) for f in batch]),
            "units": pl.DataFrame(
                [
                    (o.unit.id, o.score, len(o.rows["seed"]), o.seconds, f.worker, f.finished)
                    for f in batch
                    for o in [f.outcome]
                ],
                schema=schema("units"),
                orient="row",
            ),
        }
        with self._writing():
            for kind in KINDS:
                if kind == "units":
                    head["offtrace.units"] = _sum(frames["units"].write_csv().encode())
                made = io.BytesIO()
                frames[kind].write_parquet(made, metadata=head | {"offtrace.kind": kind})
                self._write(self.path / kind / name, made.getvalue())
                head[f"offtrace.{kind}"] = _sum(made.getvalue())
        self._next += 1

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up"}.get(
                error.errno or 0, str(error)
            )
            raise StudyError(
                f"cannot write to {self.path}: {what}. What was written before stays; run the study again to go on from there"
            ) from error

    def _write(self, path: Path, content: bytes) -> None:
        with written_whole(path) as file:
            file.write(content)

    def look(self, units: dict[str, Unit]) -> Found:
        """What is done, and what cannot be read."""
        return self._look(units, None)

    def read(self, kind: str, units: dict[str, Unit]) -> tuple[pl.DataFrame, Found]:
        """All rows or curves of the units that are done, in the order of `units`; and what was found."""
        pl, frames = polars(), []
        found = self._look(units, (kind, frames))
        if not frames:
            return pl.DataFrame(schema=schema(kind)), found
        order = pl.DataFrame({"unit": list(units), "#": range(len(units))}, schema={"unit": pl.String, "#": pl.Int32})
        frames.insert(0, pl.DataFrame(schema=schema(kind)))  # columns that older parts lack are empty
        joined = pl.concat(frames, how="diagonal").join(order, on="unit", how="left")
        return joined.sort("#", "lam", "seed", *(["step"] if kind == "curves" else [])).drop("#"), found

    def _look(self, units: dict[str, Unit], wanted: tuple[str, list[Any]] | None) -> Found:
        pl, found, spoken_for = polars(), Found(), set()
        for path in self._files("units"):
            name = path.name
            try:
                frame, head = self._read(path, "units")
                if head.get("offtrace.units") != _sum(frame.write_csv().encode()):
                    raise _NotReadable("torn or changed: its checksum does not fit")
                contents = {kind: self._content(kind, name, head) for kind in ("rows", "curves")}
            except _NotReadable as problem:
                found.problems.append(f"{self._spelt(path)}: {problem}; its units count as not done")
                spoken_for.add(name)
                continue
            spoken_for.add(name)
            fresh = [row for row in frame.rows(named=True) if row["unit"] in units and row["unit"] not in found.done]
            found.parts.append(path)
            found.done |= {row["unit"]: row["score"] for row in fresh}
            found.workers |= {row["worker"] for row in fresh}
            found.seconds += sum(row["seconds"] for row in fresh)
            found.rows += sum(row["rows"] for row in fresh)
            found.versions.add(head.get("offtrace.version.offtrace", "?"))
            found.codes.add(head.get("offtrace.code", ""))
            if wanted:
                kind, frames = wanted
                read = pl.read_parquet(io.BytesIO(contents[kind]))
                own = [row["unit"] for row in fresh]
                frames.append(read if len(own) == len(frame) else read.filter(pl.col("unit").is_in(own)))
        for kind in KINDS:
            for path in sorted((self.path / kind).glob("*")) if (self.path / kind).is_dir() else ():
                if path.name.startswith("."):
                    continue
                if not NAME.fullmatch(path.name):
                    found.problems.append(f"{self._spelt(path)}: foreign: no part of a study has such a name")
                elif path.name not in spoken_for and (why := self._why_alone(path, kind)):
                    found.problems.append(f"{self._spelt(path)}: {why}")
        return found

    def _files(self, kind: str) -> list[Path]:
        folder = self.path / kind
        return sorted(f for f in folder.iterdir() if NAME.fullmatch(f.name)) if folder.is_dir() else []

    def _read(self, path: Path, kind: str) -> tuple[pl.DataFrame, dict[str, str]]:
        pl = polars()
        try:
            content = path.read_bytes()
            head = pl.read_parquet_metadata(io.BytesIO(content))
        except (OSError, pl.exceptions.PolarsError) as error:
            raise _NotReadable(f"torn, or no Parquet file ({_first_line(error)})") from error
        if "offtrace.schema" not in head:
            raise _NotReadable("foreign: offtrace did not write it")
        if head["offtrace.schema"] != SCHEMA:
            raise _NotReadable(f"its schema is {head['offtrace.schema']}, and this version of offtrace reads {SCHEMA}")
        if head.get("offtrace.study") != self.digest:
            raise _NotReadable(f"foreign: it belongs to the study {head.get('offtrace.study', '?')[:12]}")
        if head.get("offtrace.kind") != kind or head.get("offtrace.part") != path.name:
            raise _NotReadable(f"misplaced: it was written as {head.get('offtrace.kind')}/{head.get('offtrace.part')}")
        try:
            return pl.read_parquet(io.BytesIO(content)), head
        except pl.exceptions.PolarsError as error:
            raise _NotReadable(f"torn ({_first_line(error)})") from error

    def _content(self, kind: str, name: str, head: dict[str, str]) -> bytes:
        path = self.path / kind / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise _NotReadable(f"its {kind} are missing ({error.strerror}: {self._spelt(path)})") from error
        if _sum(content) != head.get(f"offtrace.{kind}"):
            raise _NotReadable(f"{self._spelt(path)} is torn, changed or foreign: its checksum does not fit")
        return content

    def _why_alone(self, path: Path, kind: str) -> str | None:
        """What is wrong with a file that has no partner in `units`; None if only the write was interrupted."""
        try:
            self._read(path, kind)
        except _NotReadable as problem:
            return str(problem)
        return None

    def _spelt(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()


class _NotReadable(Exception):
    """Why a file is not read."""


def _frame(kind: str, unit: Unit, columns: Mapping[str, object]) -> pl.DataFrame:
    pl, wanted = polars(), schema(kind)
    if not columns:
        return pl.DataFrame(schema=wanted)
    constant = {k: getattr(unit, "id" if k == "unit" else k, None) for k in wanted if k not in columns}
    frame = pl.DataFrame({k: v for k, v in columns.items() if k in wanted})
    filled = frame.with_columns(pl.lit(v, dtype=wanted[k]).alias(k) for k, v in constant.items())
    return filled.select(pl.col(k).cast(dtype) for k, dtype in wanted.items()).with_columns(
        pl.col(k).fill_nan(None) for k in wanted if wanted[k] == pl.Float64 and k not in ("value", "mean")
    )


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
