"""The records of a study: where they are, what there is of them, and what is written beside them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from offtrace.studies import declaration, folders, study_file
from offtrace.studies.declaration_checks import StudyError, Table, Toml
from offtrace.studies.plan import Plan
from offtrace.studies.status import Status, spelt_other

if TYPE_CHECKING:
    import polars as pl

    from offtrace.studies.records import Finished, Folder
    from offtrace.studies.study import Study


def folder_of(study: Study, code: str | None = None) -> Folder:
    """The folder of its records; `code` is the digest of what makes them, if that is not the code of now."""
    from offtrace.studies.records import Folder

    return Folder(study.folder, study.digest, study.code.digest if code is None else code)


def others(study: Study) -> list[Path]:
    """Folders beside this one, with records of the same declaration that other code made."""
    declared = declaration.digest(study.declaration)
    beside = [
        p.parent for p in sorted(study.out.glob(f"{study.name}-*/study.json")) if p.parent.name != study.folder.name
    ]
    return [p for p in beside if declared in ((said := study_file.about_of(p)).get("declared"), said.get("digest"))]


def differences(study: Study, codes: Iterable[str] = ()) -> str:
    """In what the code of now differs from that of the records, or from the first of these codes that is another."""
    other = next((code for code in codes if code != study.code.digest), None)
    return study.code.differences(study_file.code_of(study.folder, other))


def about(study: Study, versions: Mapping[str, str], machine: str, code: Toml) -> Table:
    """What `study.json` says of a study, and of what makes its records."""
    declared = declaration.digest(study.declaration)
    said = {"declared": declared, "versions": dict(versions), "machine": machine, "study": study.declaration}
    return {**said, "code": dict(code)}


def bring(study: Study, finished: Sequence[Finished], versions: Mapping[str, str], machine: str, code: Toml) -> int:
    """Write outcomes that were computed where records cannot be written; how many of them are new.

    `code` is what `study.code.about()` was there; empty, if it was not kept.
    """
    plan, folder = Plan(study), folder_of(study, code.get("digest", ""))
    unknown = [f.outcome.unit for f in finished if f.outcome.unit.id not in plan.units]
    if unknown:
        raise StudyError(
            f"{len(unknown)} of these units are of another study, such as {unknown[0]}: {study.name} has no such"
        )
    with folder.lock():
        folder.prepare(about(study, versions, machine, code), study.as_toml())
        found = folder.look(plan.units)
        folder.tidy(found)
        done = found.done
        new = [f for f in finished if f.outcome.unit.id not in done]
        if new:
            folder.write(new, dict(versions))
    return len(new)


def read(study: Study, kind: str) -> pl.DataFrame:
    """The "rows" or the "curves" of a study, as far as it has been run."""
    folder = folder_of(study)
    if not folder.path.is_dir():
        beside = "".join(f"; {spelt_other(other)}" for other in others(study))
        raise StudyError(f"there are no records of {study.name} in {folder.path}: run the study first{beside}")
    plan = Plan(study)
    frame, found = folder.read(kind, plan.units)
    plan.take(found.done)
    for problem in found.problems:
        warnings.warn(f"not read: {folder.path / problem}", stacklevel=4)
    return frame if len(plan.done) == len(found.done) else frame.filter(frame["unit"].is_in(list(plan.done)))


def status(study: Study) -> Status:
    """Return what there is of the study: what has been run, and what its folder says."""
    from offtrace.studies.progress_display import spelt_best

    plan, folder = Plan(study), folder_of(study)
    found = folder.look(plan.units)
    plan.take(found.done)
    changed = [unit for unit, code in found.codes.items() if unit in plan.done and code != study.code.digest]
    return Status(
        name=study.name,
        folder=folder.path,
        done=plan.sizes(),
        rows=found.rows,
        seconds=found.seconds,
        workers=len(found.workers),
        versions=tuple(sorted(found.versions)),
        problems=tuple(found.problems) + folders.problems(folder.path),
        best=tuple(f"{name}: {words}" for name, words in spelt_best(plan).items()),
        code=differences(study, found.codes.values()) if changed else "",
        changed=tuple(str(plan.units[unit]) for unit in sorted(changed, key=plan.order.__getitem__)),
        failed=tuple(found.failed.values()),
        others=tuple(others(study)) if not study.recorded else (),
    )
