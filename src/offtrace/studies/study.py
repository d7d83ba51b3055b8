"""A study: a declared value with a stable id. It can be run, anywhere and in any number of pieces, and its records be read."""

from __future__ import annotations

import contextlib
import html
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offtrace.studies import declaration
from offtrace.studies.checks import DeclarationError, StudyError
from offtrace.studies.declaration import Place, Seeds, TraceGrid
from offtrace.studies.local import cores
from offtrace.studies.plan import Plan
from offtrace.studies.protocols import HIGHER_IS_BETTER

if TYPE_CHECKING:
    import polars as pl

    from offtrace.studies.records import Finished, Folder

OUT = Path("offtrace-studies")
"""Where records are kept, unless one says otherwise."""


@dataclass(frozen=True)
class Status:
    """What there is of a study."""

    name: str
    folder: Path
    done: dict[str, tuple[int, int]]
    """Units done and in all, by phase."""
    rows: int
    seconds: float
    """Of all workers together."""
    workers: int
    versions: tuple[str, ...]
    """Of offtrace, under which it was run."""
    problems: tuple[str, ...]
    """Files that are not read, and why."""
    best: tuple[str, ...]
    """The best on each environment, in words."""

    @property
    def finished(self) -> bool:
        """Whether nothing is left to run."""
        return all(done == total for done, total in self.done.values())

    def __str__(self) -> str:
        phases = ", ".join(f"{phase} {done}/{total}" for phase, (done, total) in self.done.items())
        state = "finished" if self.finished else "begun" if self.rows else "not begun"
        lines = [
            f"{self.name}: {state}; units: {phases}; {self.rows:,} rows; {self.seconds:,.0f} s of work",
            f"  in {self.folder}",
        ]
        if len(self.versions) > 1:
            lines.append(f"  run under several versions of offtrace: {', '.join(self.versions)}")
        lines += [f"  best on {line}" for line in self.best]
        return "\n".join([*lines, *(f"  not read: {problem}" for problem in self.problems)])


@dataclass(frozen=True)
class Study:
    """What to run: traces with their parameters × λ × step sizes × environments × seeds.

    >>> study = Study.load("bifurcation")
    >>> study.task, study.metric, len(study.environments), len(study.traces)
    ('control', 'auc', 4, 8)
    >>> study.small().seeds["test"]
    Seeds(first=1000, count=20)
    """

    name: str
    question: str
    """What the study asks."""
    about: str
    """What is run to answer it, in words."""
    task: str
    """ "control", "evaluation", "replay", "map" or "deep"."""
    metric: str
    environments: tuple[Place, ...]
    traces: tuple[TraceGrid, ...]
    alphas: tuple[float, ...]
    ages: tuple[int, ...]
    """Of the data: of the behaviour policy in updates ("replay"), or as many frames as the memory holds ("deep")."""
    seeds: dict[str, Seeds]
    """By phase: tuning and test, or map."""
    modules: tuple[str, ...] = ()
    """Imported first: they register traces of one's own."""
    subset: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The declaration, with all its subsets."""
    out: Path = field(default=OUT, repr=False, compare=False)
    """The folder that holds the folders of studies."""

    @classmethod
    def load(cls, study: str | Path, subset: str | None = None, out: str | Path | None = None) -> Study:
        """A shipped study by its name, the one in a TOML file, or the one whose records are in a folder."""
        found = cls.declared(declaration.read(study), subset, out)
        if Path(study).is_dir() and out is None and subset is None:
            found = found.at(Path(study).resolve().parent)
            if found.folder.name != Path(study).resolve().name:
                raise StudyError(f"{study} is not the folder of the study in it, which would be {found.folder.name}")
        return found

    @classmethod
    def declared(cls, given: Mapping[str, Any], subset: str | None = None, out: str | Path | None = None) -> Study:
        """From a dict of what the TOML file would say. All of its subsets are checked, too."""
        checked: dict[str | None, Any] = {None: declaration.check(declaration.with_subset(given, None))}
        for name in given.get("subsets", {}):
            try:
                checked[name] = declaration.check(declaration.with_subset(given, name))
            except DeclarationError as error:
                error.args = (f"with subsets.{name}: {error}",)
                raise
        declaration.with_subset(given, subset)  # an unknown one is an error
        return cls(**checked[subset], subset=subset, given=given, out=Path(out or OUT))

    def at(self, out: str | Path | None) -> Study:
        """The same study, its records in another place."""
        return self if out is None else replace(self, out=Path(out))

    def small(self, subset: str = "ci") -> Study:
        """The subset that takes seconds."""
        return Study.declared(self.given, subset, self.out)

    @property
    def declaration(self) -> dict[str, Any]:
        """What is run, all defaults filled in, as JSON has it."""
        names = (
            "name",
            "question",
            "about",
            "task",
            "metric",
            "environments",
            "traces",
            "alphas",
            "ages",
            "seeds",
            "modules",
        )
        return declaration.plain({name: getattr(self, name) for name in names})

    @cached_property
    def digest(self) -> str:
        """Of everything that the rows depend on. Another declaration has another one, and another folder."""
        return declaration.digest(self.declaration)

    @property
    def folder(self) -> Path:
        """Where its records are."""
        return self.out / f"{self.name}-{self.digest[:12]}"

    def run(
        self,
        on: str = "local",
        *,
        workers: int | None = None,
        address: str | None = None,
        out: str | Path | None = None,
        progress: bool = True,
    ) -> Study:
        """Run what has not been run yet: in local processes, or on="ray". Returns the study, whose records are in `out`.

        `workers` is the number of processes (of a new Ray cluster: its CPUs), by default one for each core; `address` is that of
        an existing Ray cluster. Interrupted in any way, the next run goes on from there.
        """
        if on not in ("local", "ray"):
            raise DeclarationError("on", on, "'local' or 'ray'")
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
            raise DeclarationError("workers", workers, "an integer of at least 1")
        if address is not None and on != "ray":
            raise DeclarationError("address", address, "an address only with on = 'ray'")
        return self.at(out)._run(on, workers, address, progress)

    def _run(self, on: str, workers: int | None, address: str | None, progress: bool) -> Study:
        plan, parts = Plan(self), self.folder / "units"
        with contextlib.ExitStack() as stack:
            pool = None
            if on == "local" and not (parts.is_dir() and any(parts.iterdir())):
                pool = stack.enter_context(_pool(on, address, workers, plan))  # it starts while the rest is imported
            from offtrace.studies import display, provenance, running

            folder, versions = self._records(), provenance.versions(self.task)
            about = {"versions": versions, "machine": provenance.machine(), "study": self.declaration}
            folder.prepare(about, self.as_toml())
            stack.enter_context(folder.lock())
            folder.tidy()
            found = folder.look(plan.units)
            plan.done = dict(found.done)
            for problem in found.problems:
                warnings.warn(f"not read: {folder.path / problem}", stacklevel=3)
            if not plan.finished:
                pool = pool or stack.enter_context(_pool(on, address, workers, plan))
                with display.display(plan, str(pool), progress) as shown:
                    running.run(plan, folder, pool, shown, versions)
        return self

    def bring(self, finished: Sequence[Finished], versions: Mapping[str, str], machine: str) -> int:
        """Write outcomes that were computed where records cannot be written; how many of them are new."""
        plan, folder = Plan(self), self._records()
        unknown = [f.outcome.unit for f in finished if f.outcome.unit.id not in plan.units]
        if unknown:
            raise StudyError(
                f"{len(unknown)} of these units are of another study, such as {unknown[0]}: {self.name} has no such"
            )
        folder.prepare({"versions": dict(versions), "machine": machine, "study": self.declaration}, self.as_toml())
        with folder.lock():
            folder.tidy()
            done = folder.look(plan.units).done
            new = [f for f in finished if f.outcome.unit.id not in done]
            if new:
                folder.write(new, dict(versions))
        return len(new)

    def records(self, out: str | Path | None = None) -> pl.DataFrame:
        """One row for each configuration and seed that has been run."""
        return self.at(out)._read("rows")

    def curves(self, out: str | Path | None = None) -> pl.DataFrame:
        """The mean over the seeds at fixed steps, with a 95% interval, for each configuration that has been run."""
        return self.at(out)._read("curves")

    def status(self, out: str | Path | None = None) -> Status:
        """What there is."""
        from offtrace.studies.display import Display

        self = self.at(out)
        plan, folder = Plan(self), self._records()
        found = folder.look(plan.units)
        plan.done = dict(found.done)
        shown = Display(plan, "")
        places = [place.name for place in self.environments if place.name in shown.best]
        return Status(
            name=self.name,
            folder=folder.path,
            done=plan.sizes(),
            rows=found.rows,
            seconds=found.seconds,
            workers=len(found.workers),
            versions=tuple(sorted(found.versions)),
            problems=tuple(found.problems),
            best=tuple(f"{name}: {shown.spelt_best(name)}" for name in places),
        )

    def facts(self) -> dict[str, Any]:
        """What a report says of the study beside its rows."""
        status, about = self.status(), self._records().about()
        units = sum(done for done, _ in status.done.values())
        return {
            "name": self.name,
            "question": self.question,
            "about": self.about,
            "task": self.task,
            "metric": self.metric,
            "better": "higher" if self.metric in HIGHER_IS_BETTER else "lower",
            "step": "frame" if self.task == "deep" else "step",
            "frames per update": self._frames_per_update(),
            "finished": status.finished,
            "seconds": status.seconds,
            "machine": about.get("machine"),
            "versions": about.get("versions", {}),
            "counts": {"units": units, "rows": status.rows, "workers": status.workers},
            "problems": status.problems,
            "declaration": self.as_toml(),
        }

    def _frames_per_update(self) -> int | None:
        """Of deep agents, if it is the same in all games."""
        found = {place.protocol.every for place in self.environments} if self.task == "deep" else set()
        return found.pop() if len(found) == 1 else None

    def _records(self) -> Folder:
        from offtrace.studies.records import Folder

        return Folder(self.folder, self.digest)

    def _read(self, kind: str) -> pl.DataFrame:
        folder = self._records()
        if not folder.path.is_dir():
            raise StudyError(f"there are no records of {self.name} in {folder.path}: run the study first")
        frame, found = folder.read(kind, Plan(self).units)
        for problem in found.problems:
            warnings.warn(f"not read: {folder.path / problem}", stacklevel=4)
        return frame

    def as_toml(self) -> str:
        """The declaration as it is run, so that `Study.load` of it is the same study."""
        return _toml(declaration.with_subset(self.given, self.subset))

    def summary(self) -> list[tuple[str, str]]:
        """What it is, as pairs of words."""
        plan = Plan(self)
        lams = sorted({lam for t in self.traces for lam in t.lams if lam is not None})
        pairs = [
            ("task", f"{self.task}, by {self.metric}"),
            ("environments", ", ".join(place.name for place in self.environments)),
            ("traces", ", ".join(t.title + (f" {t.spelt}" if t.spelt else "") for t in self.traces)),
            ("λ", ", ".join(f"{lam:g}" for lam in lams)),
            ("α", ", ".join(f"{alpha:g}" for alpha in self.alphas)),
            ("ages", ", ".join(map(str, self.ages))),
            ("seeds", ", ".join(f"{p}: {s.first} to {s.stop - 1}" for p, s in self.seeds.items())),
            ("in all", f"{plan.total:,} units, {plan.runs:,} {'operators' if self.task == 'map' else 'learners'}"),
            ("subsets", ", ".join(self.given.get("subsets", {}))),
        ]
        return [(key, value) for key, value in pairs if value]

    def __str__(self) -> str:
        lines = [f"{self.name} ({self.digest[:12]})", f"  {self.question}"]
        return "\n".join([*lines, *(f"  {key:<13} {value}" for key, value in self.summary())])

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in self.summary())
        head = f"<b>{html.escape(self.name)}</b> <code>{self.digest[:12]}</code><p>{html.escape(self.question)}</p>"
        state = f"<pre>{html.escape(str(self.status()))}</pre>" if self.folder.is_dir() else ""
        return f"{head}<table>{rows}</table>{state}"


@contextlib.contextmanager
def _pool(on: str, address: str | None, workers: int | None, plan: Plan) -> Any:
    if on == "ray":
        from offtrace.studies.on_ray import RayPool

        pool: Any = RayPool(address, workers)
    else:
        from offtrace.studies.local import AHEAD, LocalPool

        pool = LocalPool(min(workers or cores(), plan.total), ahead=1 if plan.study.task == "deep" else AHEAD)
    try:
        yield pool
    finally:
        pool.close()


def _toml(given: Mapping[str, Any]) -> str:
    """A declaration as TOML: plain values, then tables."""
    tables = [k for k, v in given.items() if isinstance(v, Mapping)]
    lines = [f"{k} = {_spelt(v)}" for k, v in given.items() if k not in tables]
    for k in tables:
        lines += ["", f"[{k}]", *(f"{_spelt_key(name)} = {_spelt(v)}" for name, v in given[k].items())]
    return "\n".join(lines) + "\n"


def _spelt_key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _spelt(name)


def _spelt(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
        return '"' + "".join(escapes.get(c, c) for c in value) + '"'
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_spelt_key(k)} = {_spelt(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_spelt, value)) + "]"
    return repr(value)
