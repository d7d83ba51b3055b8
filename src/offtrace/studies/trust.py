"""A folder of records may be anybody's: nothing that it names is imported, unless one trusts it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from offtrace._shared.type_guards import is_list
from offtrace.studies.fields import StudyError, Toml, is_table


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
    named = [str(module) for module in modules] if is_list(modules) else []
    for entry in _entries(declared, "traces"):
        name = str(entry.get("name", entry.get("title"))) if is_table(entry) else str(entry)
        named += [name.rpartition(":")[0]] if ":" in name else []
    for entry in _entries(declared, "environments"):
        texts = {k: v for k, v in entry.items() if k != "protocol"} if is_table(entry) else entry
        for text in map(str.strip, _texts(texts)):
            if text.startswith("gym/") or not re.fullmatch(r"[^:]*(:[^:]*=[^:]*)?", text):
                named += [text.removeprefix("gym/").rpartition(":")[0]] if ":" in text else []
    subsets = declared.get("subsets")
    for subset in subsets.values() if is_table(subsets) else ():
        named += modules_named(subset) if is_table(subset) else []
    return list(dict.fromkeys(named))


def _entries(declared: Toml, key: str) -> list[object]:
    entries = declared.get(key)
    return list(entries) if is_list(entries) else []


def _texts(given: object) -> Iterator[str]:
    if isinstance(given, str):
        yield given
    for inner in given.values() if is_table(given) else given if is_list(given) else ():
        yield from _texts(inner)
