"""Records: a folder to which parts are added and in which nothing is ever rewritten.

    study.json  study.toml                      the declaration as it was run, the versions, and the code that ran it
    rows/part-000001-….parquet                  one row for each configuration and seed
    curves/part-000001-….parquet                the mean over the seeds at fixed steps; of deep agents each seed by itself
    units/part-000001-….parquet                 which units the two hold, and how they were run
    code/….json                                 the code of each run that had other code than those before
    failed/….txt                                units that have ended their workers, and how
    set-aside/…                                 what was damaged

A part is written as three files, each whole or not at all, `units` last: it holds the checksums of the other two, and each has
its own in its name. A unit is done when all three are there and agree; where a unit is in several parts, the last one counts.
What is damaged or foreign is reported and not read. The next run sets aside what is damaged, and removes what an interrupted
write has left.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from offtrace._shared.folder_lock import LockedError, locked
from offtrace._shared.whole_files import DamagedError, checksum, why_not_written, write_checked, written_whole
from offtrace.studies import part_files, study_file
from offtrace.studies.declaration_checks import StudyError, Table
from offtrace.studies.part_files import SCHEMA, NotReadError, polars
from offtrace.studies.plan import Failure, Outcome, Unit

if TYPE_CHECKING:
    import polars as pl

KINDS = ("rows", "curves", "units")
ASIDE = "set-aside"


def schema(kind: str) -> dict[str, pl.DataType | type[pl.DataType]]:
    """The columns of a kind of file."""
    pl = polars()
    S, F, N = pl.String, pl.Float64, pl.Int64
    unit = {"unit": S, "phase": S, "environment": S, "trace": S, "lam": F, "parameters": S, "alpha": F}
    operator = {"contraction_lower": F, "contraction_upper": F, "variance": F, "bias": F}
    end = {"age": F, "diverged": pl.Boolean}
    return {
        "rows": {**unit, "seed": N, "value": F, "episodes": N, **operator, **end},
        "curves": {**unit, "step": N, "mean": F, "low": F, "high": F, "n": N, "age": F, "seed": N},
        "units": {"unit": S, "score": F, "rows": N, "seconds": F, "worker": S, "finished": pl.Datetime("us", "UTC")},
    }[kind]


@dataclass(frozen=True)
class Finished:
    """An outcome, and who brought it when."""

    outcome: Outcome
    worker: str
    finished: datetime
    """When it was finished, in UTC."""


@dataclass
class Found:
    """What a folder holds."""

    done: dict[str, float] = field(default_factory=dict)
    """The score of each unit that is done."""
    parts: list[Path] = field(default_factory=list)
    """The `units` files that can be trusted."""
    damaged: list[Path] = field(default_factory=list)
    """Files to be set aside."""
    problems: list[str] = field(default_factory=list)
    """Files that are not read, and why; what an interrupted write has left is none."""
    seconds: float = 0.0
    """The seconds that all workers together took."""
    rows: int = 0
    versions: set[str] = field(default_factory=set)
    """Of offtrace, under which it was run."""
    codes: dict[str, str] = field(default_factory=dict)
    """The digest of the code that ran each unit; "" where that was not kept."""
    failed: dict[str, str] = field(default_factory=dict)
    """How each unit failed that was set aside and is not done, in one line."""
    workers: set[str] = field(default_factory=set)


class Folder:
    """The records of one study."""

    def __init__(self, path: Path, digest: str, code: str = "") -> None:
        self.path, self.digest, self.code = path, digest, code

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Make the folder, and hold its lock: one coordinator at a time, from before it looks what is there."""
        with contextlib.ExitStack() as held:
            with self._writing():
                self.path.mkdir(parents=True, exist_ok=True)
                try:
                    held.enter_context(locked(self.path))
                except LockedError as other:
                    who = "another process" if str(other) == "?" else f"process {other}"
                    raise StudyError(f"{who} is running this study in {self.path}: wait for its end") from None
            yield

    def prepare(self, about_it: Table, source: str) -> list[str]:
        """Say what the folder is for; what was damaged there. The caller holds the lock."""
        damaged: list[str] = []
        with self._writing():
            for kind in KINDS:
                (self.path / kind).mkdir(parents=True, exist_ok=True)
            known = None
            try:
                known = study_file.read(self.path)
            except FileNotFoundError:
                pass
            except DamagedError as error:
                self._set_aside(self.path / study_file.NAME)
                damaged.append(str(error))
            if known is not None and known.get("digest") != self.digest:
                raise StudyError(f"{self.path} holds another study (digest {known.get('digest')}): give another --out")
            toml, wanted = self.path / "study.toml", known.get("toml") if known else source
            if not toml.exists() or wanted not in (None, toml.read_bytes().decode(errors="replace")):
                self._write(toml, str(wanted or source).encode())
            if known is None:
                study_file.write(self.path, {"schema": SCHEMA, "digest": self.digest, "toml": source, **about_it})
        return damaged

    def keep_code(self, about: Table) -> None:
        """Keep the code that is about to run, if no run before had the same."""
        path = study_file.code_file(self.path, self.code)
        if self.code and not path.exists():
            with self._writing():
                path.parent.mkdir(exist_ok=True)
                write_checked(path, json.dumps(about, indent=2, ensure_ascii=False).encode())

    def tidy(self, found: Found) -> None:
        """Set aside what is damaged, and remove what an interrupted write has left: readers of `rows/*.parquet` see neither."""
        with self._writing():
            for left in (*self.path.glob(".*.tmp"), *self.path.glob("*/.*.tmp")):
                left.unlink()
            for path in found.damaged:
                self._set_aside(path)
            parts = {part_files.number(path) for path in self._files("units")}
            for path in (*self._files("rows"), *self._files("curves")):
                if part_files.number(path) not in parts and self._why_alone(path, path.parent.name) is None:
                    path.unlink()
            for path in (self.path / "failed").glob("*.txt"):  # they are tried again
                path.unlink()

    def _set_aside(self, path: Path) -> None:
        target = self.path / ASIDE / path.relative_to(self.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        while target.exists():  # an earlier one of the same name
            target = target.with_name(target.name + "~")
        with contextlib.suppress(FileNotFoundError):
            path.rename(target)

    def fail(self, failure: Failure) -> None:
        """Keep how a unit failed, while others go on: in one line, and the traceback below it."""
        text = f"{failure.unit}: {failure.error}\n{failure.traceback}"
        with self._writing():
            (self.path / "failed").mkdir(exist_ok=True)
            self._write(self.path / "failed" / f"{failure.unit.id}.txt", text.encode(errors="replace"))

    def write(self, batch: Sequence[Finished], versions: dict[str, str]) -> None:
        """Write finished units as one more part."""
        pl = polars()
        number = 1 + max((part_files.number(f) or 0 for kind in KINDS for f in self._files(kind)), default=0)
        head = {"offtrace.schema": SCHEMA, "offtrace.study": self.digest, "offtrace.part": f"part-{number:06d}.parquet"}
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
                made = io.BytesIO()
                frames[kind].write_parquet(made, metadata=head | {"offtrace.kind": kind})
                self._write(self.path / kind / part_files.name(number, made.getvalue()), made.getvalue())
                head[f"offtrace.{kind}"] = checksum(made.getvalue())

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StudyError(
                f"cannot write to {self.path}: {why_not_written(error)}. What was written before stays; run the study again to "
                "go on from there"
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

    def _look(self, units: dict[str, Unit], wanted: tuple[str, list[object]] | None) -> Found:
        pl, found = polars(), Found()
        claimed: set[Path] = set()
        for path in reversed(self._files("units")):  # what was run last counts
            try:
                frame, head = part_files.parsed(path, "units", self.digest)
                others = {kind: part_files.partner(path, kind, head) for kind in ("rows", "curves")}
                contents = {kind: self._content(kind, other, head) for kind, other in others.items()}
            except NotReadError as problem:
                found.problems.append(f"{self._spelt(path)}: {problem}; its units count as not done")
                if problem.damaged:
                    found.damaged.append(path)
                continue
            claimed |= {path, *others.values()}
            fresh = [row for row in frame.rows(named=True) if row["unit"] in units and row["unit"] not in found.done]
            found.parts.append(path)
            found.done |= {row["unit"]: row["score"] for row in fresh}
            found.workers |= {row["worker"] for row in fresh}
            found.seconds += sum(row["seconds"] for row in fresh)
            found.rows += sum(row["rows"] for row in fresh)
            found.versions.add(head.get("offtrace.version.offtrace", "?"))
            found.codes |= dict.fromkeys((row["unit"] for row in fresh), head.get("offtrace.code", ""))
            if wanted:
                kind, frames = wanted
                read = pl.read_parquet(io.BytesIO(contents[kind]))
                own = [row["unit"] for row in fresh]
                frames.append(read if len(own) == len(frame) else read.filter(pl.col("unit").is_in(own)))
        found.problems.reverse()
        self._look_at_others(found, claimed)
        for file in sorted((self.path / "failed").glob("*.txt")):
            if file.stem in units and file.stem not in found.done:
                line = file.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
                found.failed[file.stem] = "".join(c if c.isprintable() else "�" for c in line)  # a terminal shows it
        return found

    def _look_at_others(self, found: Found, claimed: set[Path]) -> None:
        """Files that belong to no part which can be trusted."""
        damaged = {part_files.number(path) for path in found.damaged}
        known = damaged | {part_files.number(path) for path in self._files("units")}
        for kind in KINDS:
            for path in sorted((self.path / kind).glob("*")) if (self.path / kind).is_dir() else ():
                if path.name.startswith(".") or path in claimed or path in found.damaged:
                    continue
                number = part_files.number(path)
                if number is None:
                    found.problems.append(f"{self._spelt(path)}: foreign: no part of a study has such a name")
                elif number in damaged and kind != "units":
                    found.damaged.append(path)
                elif number not in known and (why := self._why_alone(path, kind)):
                    found.problems.append(f"{self._spelt(path)}: {why}")
                    found.damaged += [path] if why.damaged else []

    def _files(self, kind: str) -> list[Path]:
        folder = self.path / kind
        return sorted(f for f in folder.iterdir() if part_files.number(f)) if folder.is_dir() else []

    def _content(self, kind: str, path: Path, head: dict[str, str]) -> bytes:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise NotReadError(
                f"its {kind} are missing ({error.strerror}: {self._spelt(path)})", damaged=True
            ) from error
        if checksum(content) != head.get(f"offtrace.{kind}"):
            raise NotReadError(
                f"{self._spelt(path)} is torn, changed or foreign: its checksum does not fit", damaged=True
            )
        return content

    def _why_alone(self, path: Path, kind: str) -> NotReadError | None:
        """What is wrong with a file that has no partner in `units`; None if only the write was interrupted."""
        try:
            part_files.parsed(path, kind, self.digest)
        except NotReadError as problem:
            return problem
        return None

    def _spelt(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()


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
