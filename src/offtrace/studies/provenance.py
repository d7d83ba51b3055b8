"""What computes the rows of a study, and where: versions, commit, modules, files, machine. Rows of other code are marked."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from importlib import metadata
from modulefinder import ModuleFinder
from pathlib import Path

import offtrace
from offtrace._shared.cores import cores
from offtrace.studies import environments
from offtrace.studies.fields import Table

HOME = Path(offtrace.__file__).parent
PACKAGES = ("numpy", "scipy", "numba", "polars")
OF_DEEP = ("numpy", "jax", "flax", "optax", "gymnax", "polars")


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
    """The hash of each file of the modules: of the whole package, or of what a file imports from its own folder."""
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
            return "the code that computed them was not recorded"
        before = {**kept.get("modules", {}), **kept.get("files", {})}
        now = {**self.modules, **self.files}
        changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
        if (kept.get("version"), kept.get("tree")) != (self.version, self.tree):
            changed.append(f"offtrace (then {kept.get('version')} {kept.get('commit')}".rstrip() + ")")
        return f"changed since: {', '.join(changed)}"


def code_of(modules: Iterable[str], files: Iterable[str], ask_git: bool = True) -> Code:
    """The code and the files of a study, as they lie on the disk now. Nothing is imported."""
    of_modules = {name: _hash(path) for module in modules for name, path in _sources(module)}
    of_files = {name: _hash(environments.file_named(name)) for name in files}
    return Code(offtrace.__version__, *(_repository() if ask_git else ("", "")), of_modules, of_files)


@cache
def sources_digest(modules: tuple[str, ...], files: tuple[str, ...]) -> str:
    """`Code.sources_digest` of a worker, which does not ask git."""
    return code_of(modules, files, ask_git=False).sources_digest


def versions(task: str) -> dict[str, str]:
    """Of the packages that the rows of a task depend on, as far as they are installed as such."""
    installed = {"offtrace": offtrace.__version__, "python": platform.python_version()}
    for name in OF_DEEP if task == "deep" else PACKAGES:
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
    """(name, path) of the files of a module: its whole package, or its file and what that imports from its own folder."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])  # of what has no dot: this imports nothing
    except (ImportError, ValueError):
        return
    if spec is not None and spec.submodule_search_locations:
        package = Path(next(iter(spec.submodule_search_locations))).resolve()
        home, files = package.parent, sorted(package.rglob("*.py"))
    elif spec is not None and spec.has_location and spec.origin:
        file = Path(spec.origin).resolve()
        home, files = file.parent, [file]
        if file.suffix == ".py" and home.name not in ("site-packages", "dist-packages"):
            finder = ModuleFinder([str(home)])  # it reads what files import, and runs nothing
            finder.import_hook(module)
            paths = (getattr(one, "__file__", None) for one in finder.modules.values())
            files = sorted(Path(path) for path in paths if path)
    else:
        return
    for file in files:
        yield file.relative_to(home).as_posix(), file
