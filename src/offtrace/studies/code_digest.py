"""The code that rows depend on. Its digest is part of a study's digest; its sources and its commit are kept with the records.

It is that of the study's `modules`, with what they import from beside them, and that of those parts of offtrace which compute the
rows of a task. Comments count: whether a change matters is not guessed.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import offtrace
from offtrace.studies.declaration_checks import Table

HOME = Path(offtrace.__file__).parent
COMMON = (
    "trajectory.py",
    "traces",
    "returns",
    "mdps",
    "studies/work.py",
    "studies/named_environments.py",
    "studies/declared_policies.py",
)
PARTS = {
    "control": ("learners",),
    "evaluation": ("learners",),
    "replay": ("learners",),
    "map": ("operators",),
    "deep": ("deep", "studies/deep_units.py", "studies/deep_agents.py"),
}
"""Of offtrace, beside COMMON, by task."""


@dataclass(frozen=True)
class Code:
    """What computes the rows of a study."""

    own: str
    """A digest of the parts of offtrace."""
    sources: dict[str, str]
    """The files of its modules, by their paths from where the module is found."""

    @property
    def digest(self) -> str:
        """One digest of all the code."""
        return _digest(json.dumps([self.own, self.sources], sort_keys=True))

    def about(self) -> Table:
        """What the records keep of it."""
        return {"digest": self.digest, "offtrace": self.own, **commit(), "sources": self.sources}

    def source(self) -> Table:
        """All that a run needs to be repeated: `about`, the version of offtrace, and in what its files differ from the commit."""
        return {**self.about(), "version": offtrace.__version__, **differs()}

    def differences(self, kept: Table) -> str:
        """In what it differs from what records have kept, in words."""
        if not kept:
            return "what made them was not kept"
        before = kept.get("sources", {})
        files = sorted(f for f in {*before, *self.sources} if before.get(f) != self.sources.get(f))
        made = f"offtrace (then at commit {kept['commit'][:12]})" if kept.get("commit") else "offtrace"
        return f"changed since: {', '.join([*files, *([made] if kept.get('offtrace') != self.own else [])])}"


def of(task: str, modules: Iterable[str]) -> Code:
    """The code of a task and of modules, as it lies on the disk now."""
    return Code(_own(task), {path: text for module in modules for path, text in _sources(module)})


def joined(declared: str, code: str) -> str:
    """The digest of a study, from those of its declaration and its code."""
    return _digest(f"{declared} {code}")


@cache
def commit() -> Table:
    """The commit of offtrace, and whether its files differ from it; nothing where it is not in a repository of git."""

    try:
        _git(
            "ls-files", "--error-unmatch", "__init__.py"
        )  # it may lie in the ignored environment of another repository
        return {"commit": _git("rev-parse", "HEAD"), "changed": bool(_git("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return {}


def differs() -> Table:
    """The difference of the files of offtrace from its commit, as `git diff` writes it, and the files that git does not know."""
    if not commit().get("changed"):
        return {}
    try:
        new = [
            f for f in _git("ls-files", "--others", "--exclude-standard", "--", ".").splitlines() if f.endswith(".py")
        ]
        return {"diff": _git("diff", "HEAD", "--", "."), "new files": {f: _text(HOME / f) for f in new}}
    except (OSError, subprocess.SubprocessError):
        return {}


def _git(*arguments: str) -> str:
    asked = ["git", "--no-optional-locks", "-C", str(HOME), *arguments]
    return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


@cache
def _own(task: str) -> str:
    files = [
        f
        for part in (*COMMON, *PARTS[task])
        for f in ([HOME / part] if part.endswith(".py") else (HOME / part).rglob("*.py"))
    ]
    each = {file.relative_to(HOME).as_posix(): _digest(_text(file)) for file in files}
    return _digest(json.dumps(each, sort_keys=True))


def _sources(module: str) -> Iterator[tuple[str, str]]:
    """(path, text) of a module, and of those that it imports from its own folder or package."""
    first = _file(module)
    if first is None:
        return
    package = "." in module or first.name == "__init__.py"
    top = _file(module.partition(".")[0]) or first
    home = top.parent.parent if package else top.parent
    inside = top.parent if package else home  # what counts as beside it
    alone = not package and home.name in ("site-packages", "dist-packages")
    waiting, seen = [(module, first)], {first}
    while waiting:
        name, file = waiting.pop()
        text = _text(file)
        yield file.relative_to(home).as_posix() if file.is_relative_to(home) else file.name, text
        for other in () if alone or file.suffix != ".py" else _imports(name, file, text):
            found = _file(other)
            if found is not None and found not in seen and found.is_relative_to(inside):
                seen.add(found)
                waiting.append((other, found))


def _imports(name: str, file: Path, text: str) -> Iterator[str]:
    """The names of what a file imports, anywhere in it; `from a import b` may mean the module a.b."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package or None)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _file(module: str) -> Path | None:
    """Where a module lies. `importlib.util.find_spec` would import the package that it is in: this imports nothing."""
    found, names = None, module.split(".")
    for i in range(len(names)):
        inside = found.submodule_search_locations if found else None
        if found and inside is None:
            return None
        try:
            asked = (finder.find_spec(".".join(names[: i + 1]), inside) for finder in sys.meta_path)
            found = next(filter(None, asked), None)
        except (ImportError, ValueError, AttributeError, KeyError):
            return None
        if found is None:
            return None
    return Path(found.origin).resolve() if found and found.has_location and found.origin else None


def _text(file: Path) -> str:
    """Return the text of a file; for a compiled module its digest stands in."""
    content = file.read_bytes()
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"sha256 {hashlib.sha256(content).hexdigest()}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
