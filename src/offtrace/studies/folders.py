"""A study from the folder of its records. It may be anybody's: nothing that it names is imported, unless one trusts it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from offtrace._shared.type_guards import is_list
from offtrace._shared.whole_files import DamagedError
from offtrace.studies import code_digest, declaration, part_files, recorded_declaration, study_file
from offtrace.studies.declaration_checks import DeclarationError, StudyError, Table, Toml, is_table

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
    if is_trusted(given, trust):
        return Study.declared(given, None, out)
    try:
        fields = recorded_declaration.restored(about.get("study"))
    except DeclarationError as error:
        try:
            require_trust(folder, given)
        except StudyError as refused:
            raise StudyError(
                f"{folder / study_file.NAME} cannot be read ({error}), and study.toml: {refused}"
            ) from error
        return Study.declared(given, None, out)
    code = code_digest.of(fields["task"], fields["modules"])
    return Study(**fields, given=given, out=out, code=code, checked=False)


def holds_records(folder: Path) -> bool:
    """Whether records were written into a folder, so that it may have come from anybody."""
    return (folder / study_file.NAME).exists() or (folder / "rows").is_dir()


def is_trusted(declared: Toml, trust: bool | Collection[str]) -> bool:
    """Whether one trusts all modules that a declaration names."""
    return trust if isinstance(trust, bool) else bool(trust) and set(modules_named(declared)) <= set(trust)


def require_trust(folder: Path, *declared: Toml) -> None:
    """Refuse to look up what a folder declares if that would import a module: the one gate before `Study.declared`."""
    if named := sorted({module for each in declared for module in modules_named(each)}):
        raise StudyError(
            f"{folder} names the modules {', '.join(named)}, and to run it imports them, which executes their "
            "code. If you trust them, say so: --trust, or --module NAME for each; Study.load(folder, trust=True)"
        )


def modules_named(declared: Toml) -> list[str]:
    """Return the modules that a declaration and its subsets name. Nothing is looked up.

    `modules` lists them; elsewhere they stand before a colon: in a trace, and in an id of Gymnasium. The arguments of an
    environment, which stand after one, are no module.

    >>> modules_named({"modules": ["a"], "traces": ["b:Capped"], "environments": [{"name": "gym/c:Maze-v0"}, "garnet:seed=1"]})
    ['a', 'b', 'c']
    """
    modules = declared.get("modules")
    found = [str(module) for module in modules] if is_list(modules) else []
    for entry in _entries(declared, "traces"):
        name = str(entry.get("name", entry.get("title"))) if is_table(entry) else str(entry)
        found += [name.rpartition(":")[0]] if ":" in name else []
    for entry in _entries(declared, "environments"):
        named = {k: v for k, v in entry.items() if k != "protocol"} if is_table(entry) else entry
        for text in map(str.strip, _texts(named)):
            if text.startswith("gym/") or not re.fullmatch(r"[^:]*(:[^:]*=[^:]*)?", text):
                found += [text.removeprefix("gym/").rpartition(":")[0]] if ":" in text else []
    subsets = declared.get("subsets")
    for subset in subsets.values() if is_table(subsets) else ():
        found += modules_named(subset) if is_table(subset) else []
    return list(dict.fromkeys(found))


def _entries(declared: Toml, key: str) -> list[object]:
    entries = declared.get(key)
    return list(entries) if is_list(entries) else []


def _texts(given: object) -> Iterator[str]:
    if isinstance(given, str):
        yield given
    for inner in given.values() if is_table(given) else given if is_list(given) else ():
        yield from _texts(inner)


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
