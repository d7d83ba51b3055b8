"""What computes the rows of a study, and where: versions, commit, modules, files, machine. Rows of other code are marked."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path

import offtrace
from offtrace._shared.cores import cores
from offtrace.studies import environments
from offtrace.studies.fields import Table

HOME = Path(offtrace.__file__).parent
PACKAGES = {"deep": ("numpy", "jax", "flax", "optax", "gymnax", "polars")}
LEARNING = ("numpy", "scipy", "numba", "polars")


@dataclass(frozen=True)
class Code:
    """What rows depend on in addition to the declaration: offtrace, the modules of the study, and its files.

    Comments count: whether a change matters is not guessed.
    """

    version: str
    """That of offtrace."""
    commit: str
    """`git describe --dirty` of offtrace; empty where it lies in no repository of git."""
    tree: str
    """The id that git gives to the folder of offtrace in that commit, and the hash of its difference from it."""
    modules: Mapping[str, str]
    """The hash of each file of the modules, and of what they import from their own folder or package."""
    files: Mapping[str, str]
    """The hash of each file that the study declares; "missing" where it is not there."""

    @cached_property
    def digest(self) -> str:
        """One hash of it all."""
        return _digest(json.dumps([self.sources_digest, self.tree]))

    @cached_property
    def sources_digest(self) -> str:
        """The hash of what a worker must have: the version of offtrace, the modules and the files."""
        return _digest(json.dumps([self.version, dict(self.modules), dict(self.files)], sort_keys=True))

    def about(self) -> Table:
        """What the records keep of it."""
        return {"digest": self.digest, **asdict(self)}

    def differences(self, kept: Table) -> str:
        """In what it differs from code that records have kept, in words."""
        if "version" not in kept:
            return "what made them was not kept"
        before = {**kept.get("modules", {}), **kept.get("files", {})}
        now = {**self.modules, **self.files}
        changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
        if (kept.get("version"), kept.get("tree")) != (self.version, self.tree):
            changed.append(f"offtrace (then {kept.get('version')} {kept.get('commit')}".rstrip() + ")")
        return f"changed since: {', '.join(changed)}"


def code_of(modules: Iterable[str], files: Iterable[str]) -> Code:
    """The code and the files of a study, as they lie on the disk now. Nothing is imported."""
    of_modules = {name: _hash(path) for module in modules for name, path in _sources(module)}
    of_files = {name: _hash(environments.file_named(name)) for name in files}
    return Code(offtrace.__version__, *_repository(), of_modules, of_files)


@cache
def sources_digest(modules: tuple[str, ...], files: tuple[str, ...]) -> str:
    """`Code.sources_digest` of a worker, which does not ask git."""
    of_modules = {name: _hash(path) for module in modules for name, path in _sources(module)}
    of_files = {name: _hash(environments.file_named(name)) for name in files}
    return Code(offtrace.__version__, "", "", of_modules, of_files).sources_digest


def versions(task: str) -> dict[str, str]:
    """Of the packages that the rows of a task depend on, as far as they are installed as such."""
    installed = {"offtrace": offtrace.__version__, "python": platform.python_version()}
    for name in PACKAGES.get(task, LEARNING):
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def machine() -> str:
    """System, processor and cores, and its GPUs."""
    n = cores()
    said = [f"{platform.system()} {platform.machine()}", f"{n} core{'s' if n > 1 else ''}"]
    try:
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        said += subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.split("\n")
    except (OSError, subprocess.SubprocessError):
        pass  # there is none
    return ", ".join(filter(None, map(str.strip, said)))


@cache
def _repository() -> tuple[str, str]:
    """`git describe --dirty` of offtrace, and what tells its files; empty where it is in no repository of git."""
    try:
        _git("ls-files", "--error-unmatch", "__init__.py")  # it may lie in the ignored environment of another one
        commit, tree = _git("describe", "--always", "--dirty", "--abbrev=12"), _git("rev-parse", "HEAD:./")
        difference = _git("diff", "HEAD", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return "", ""
    return commit, f"{tree}+{_digest(difference)}" if difference else tree


def _git(*arguments: str) -> str:
    asked = ["git", "--no-optional-locks", "-C", str(HOME), *arguments]
    return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _hash(file: Path | None) -> str:
    if file is None:
        return "missing"
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _sources(module: str) -> Iterator[tuple[str, Path]]:
    """(name, path) of the file of a module, and of those that it imports from its own folder or package."""
    first = _file(module)
    if first is None:
        return
    package = "." in module or first.name == "__init__.py"
    top = _file(module.partition(".")[0]) or first
    home = top.parent.parent if package else top.parent
    inside = top.parent if package else home  # where what it imports counts
    alone = not package and home.name in ("site-packages", "dist-packages")
    waiting, seen = [(module, first)], {first}
    while waiting:
        name, file = waiting.pop()
        yield file.relative_to(home).as_posix() if file.is_relative_to(home) else file.name, file
        for other in () if alone or file.suffix != ".py" else _imports(name, file):
            path = _file(other)
            if path is not None and path not in seen and path.is_relative_to(inside):
                seen.add(path)
                waiting.append((other, path))


def _imports(name: str, file: Path) -> Iterator[str]:
    """The names of what a file imports, anywhere in it; `from a import b` may mean the module a.b."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package or None)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _file(module: str) -> Path | None:
    """Where a module lies. `importlib.util.find_spec` would import the package that it is in: this imports nothing."""
    spec, names = None, module.split(".")
    for i in range(len(names)):
        inside = spec.submodule_search_locations if spec else None
        if spec and inside is None:
            return None
        try:
            asked = (finder.find_spec(".".join(names[: i + 1]), inside) for finder in sys.meta_path)
            spec = next(filter(None, asked), None)
        except (ImportError, ValueError, AttributeError, KeyError):
            return None
        if spec is None:
            return None
    return Path(spec.origin).resolve() if spec and spec.has_location and spec.origin else None
