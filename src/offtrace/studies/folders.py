"""A study from the folder of its records. It may be anybody's: nothing that it names is imported, unless one trusts it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from offtrace._shared.whole_files import DamagedError
from offtrace.studies import code_digest, declaration, part_files, recorded_declaration, study_file
from offtrace.studies.declaration_checks import DeclarationError, StudyError, Table

if TYPE_CHECKING:
    from offtrace.studies.study import Study


def is_one(path: Path) -> bool:
    """Whether a path is the folder of a study."""
    return any((path / name).is_file() for name in (study_file.NAME, "study.toml"))


def problems(folder: Path) -> tuple[str, ...]:
    """What is wrong with the file that says what the folder is."""
    try:
        study_file.read(folder)
    except DamagedError as error:
        return (f"{study_file.NAME}: {error}",)
    except OSError:
        pass
    return ()


def study_of(folder: Path, trust: bool | Collection[str]) -> Study:
    """The study of a folder, with its records there, whichever code made them."""
    about, out = study_file.about_of(folder), folder.resolve().parent
    found = _declared(folder, about, out, trust)
    if not about:
        about = _by_parts(folder)
    if digest := about.get("digest"):
        code = about.get("code")
        found = found.as_recorded(str(digest), str(code.get("digest", "")) if isinstance(code, dict) else "")
    if found.folder.name != folder.resolve().name:
        raise StudyError(f"{folder} is not the folder of the study in it, which would be {found.folder.name}")
    return found


def _declared(folder: Path, about: Table, out: Path, trust: bool | Collection[str]) -> Study:
    from offtrace.studies.study import Study

    toml = about.get("toml")
    given = declaration.parsed(folder / "study.toml", toml if isinstance(toml, str) else None)
    modules = [str(module) for module in given.get("modules") or []]
    if trust is True or (modules and not isinstance(trust, bool) and set(modules) <= set(trust)):
        return Study.declared(given, None, out)
    try:
        fields = recorded_declaration.restored(about.get("study"))
    except DeclarationError as error:
        if modules:
            raise StudyError(
                f"{folder / study_file.NAME} cannot be read ({error}). To read study.toml instead imports the modules {modules}, "
                "which executes their code. If you trust them, say so: --trust"
            ) from error
        return Study.declared(given, None, out)
    code = code_digest.of(fields["task"], fields["modules"])
    return Study(**fields, given=given, out=out, code=code, checked=False)


def _by_parts(folder: Path) -> Table:
    """What the parts say of their study, where study.json is lost; an empty table where there are none."""
    for path in sorted((folder / "units").glob("part-*.parquet")):
        try:
            head = part_files.head(path)
        except part_files.NotReadError:
            continue
        if "offtrace.study" in head:
            return {"digest": head["offtrace.study"], "code": {"digest": head.get("offtrace.code", "")}}
    return {}
