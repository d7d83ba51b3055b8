"""A study: a declared value with a stable id. It can be run, anywhere and in any number of pieces, and its records be read."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offtrace._shared.cores import cores
from offtrace._shared.html_templates import rendered
from offtrace.studies import code_digest as code_of
from offtrace.studies import declaration, folders, study_file
from offtrace.studies.checks import DeclarationError, StudyError, Table, Toml
from offtrace.studies.declaration import Place, Seeds, TraceGrid
from offtrace.studies.environments import SAVED
from offtrace.studies.interruption import as_ctrl_c
from offtrace.studies.plan import Plan
from offtrace.studies.running import Pool
from offtrace.studies.status import Status, spelt_other
from offtrace.studies.task_protocols import HIGHER_IS_BETTER

if TYPE_CHECKING:
    import polars as pl

    from offtrace.studies.records import Finished, Folder, Found

OUT = Path("offtrace-studies")
"""Where records are kept, unless one says otherwise."""


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
    """ "control", "evaluation", "replay", "map", "deep" or "stale"."""
    metric: str
    environments: tuple[Place, ...]
    traces: tuple[TraceGrid, ...]
    alphas: tuple[float, ...]
    ages: tuple[int, ...]
    """The ages of the data: of the behaviour policy in updates ("replay"), or as many frames as the memory holds ("deep")."""
    seeds: dict[str, Seeds]
    """The seeds by phase: tuning and test, or map."""
    modules: tuple[str, ...] = ()
    """The modules that are imported first: they register traces and environments of one’s own."""
    subset: str | None = None
    given: Toml = field(default_factory=dict[str, object], repr=False, compare=False)
    """The declaration, with all its subsets."""
    out: Path = field(default=OUT, repr=False, compare=False)
    """The folder that holds the folders of studies."""
    code: code_of.Code = field(kw_only=True, repr=False, compare=False)
    """What computes the rows, as it was when the study was declared: the modules, and parts of offtrace."""
    checked: bool = field(default=True, kw_only=True, repr=False, compare=False)
    """Whether its names were looked up and its modules imported. Those of a folder are not, until it is run."""
    recorded: str | None = None
    """The digest of the records that are meant, if other code made them; None: those of the code of now."""

    @classmethod
    def load(
        cls,
        study: str | Path,
        subset: str | None = None,
        out: str | Path | None = None,
        *,
        trust: bool | Collection[str] = False,
    ) -> Study:
        """Load a shipped study by its name, the one in a TOML file, or the one whose records are in a folder.

        The `modules` of a TOML file, and files of MDPs, are looked for beside it, too. From a folder, which may be anybody's,
        nothing is imported: its records can be read. To run it, say `trust`, or name the modules that it may import.
        """
        if folders.is_one(Path(study)):
            found = folders.study_of(Path(study), trust)
            return found if subset is None and out is None else cls.declared(found.given, subset, out or found.out)
        given = declaration.read(study)
        beside = str(Path(study).resolve().parent)
        needs_files = given.get("modules") or SAVED in str(given.get("environments"))
        if needs_files and Path(study).is_file() and beside not in sys.path:
            sys.path.append(beside)  # workers get this path too
        return cls.declared(given, subset, out)

    @classmethod
    def declared(cls, given: Toml, subset: str | None = None, out: str | Path | None = None) -> Study:
        """Make a study from a dict of what the TOML file would say. All of its subsets are checked, too."""
        checked: dict[str | None, Any] = {None: declaration.check(declaration.with_subset(given, None))}
        for name in given.get("subsets", {}):
            try:
                checked[name] = declaration.check(declaration.with_subset(given, name))
            except DeclarationError as error:
                error.args = (f"with subsets.{name}: {error}",)
                raise
        declaration.with_subset(given, subset)  # an unknown one is an error
        fields = checked[subset]
        code = code_of.of(fields["task"], fields["modules"])
        return cls(**fields, subset=subset, given=given, out=Path(out or OUT), code=code)

    def as_recorded(self, digest: str, code: str = "") -> Study:
        """The same study with the records of this digest, which other code may have made; `code` is the digest of that code."""
        declared = declaration.digest(self.declaration)
        if digest == self.digest:
            return self
        if digest not in (declared, code_of.joined(declared, code)):
            raise StudyError(f"the records {digest[:12]} are of another study than {self.name} as it is declared")
        return replace(self, recorded=digest)

    def at(self, out: str | Path | None) -> Study:
        """Return the same study with its records in another place."""
        return self if out is None else replace(self, out=Path(out))

    def small(self, subset: str = "ci") -> Study:
        """Return the subset that takes seconds."""
        return Study.declared(self.given, subset, self.out)

    @property
    def declaration(self) -> Table:
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
        """The SHA-256 of everything that the rows depend on.

        Another declaration, or other code, has another digest, and another folder.
        """
        return self.recorded or code_of.joined(declaration.digest(self.declaration), self.code.digest)

    @property
    def folder(self) -> Path:
        """The folder that holds the records of the study."""
        return self.out / f"{self.name}-{self.digest[:12]}"

    def run(
        self,
        on: str = "local",
        *,
        workers: int | None = None,
        address: str | None = None,
        out: str | Path | None = None,
        progress: bool = True,
        other_code: bool = False,
        rerun_changed: bool = False,
        patience: float = 60.0,
    ) -> Study:
        """Run what has not been run yet: in local processes, or on="ray". Returns the study, whose records are in `out`.

        `workers` is the number of processes (of a new Ray cluster: its CPUs), by default one for each core; `address` is that of
        an existing Ray cluster. With `workers=0` the units are run one after another in this process, where a debugger sees
        them; a small study is done sooner so. Interrupted in any way, the next run goes on from there.

        Other code has another folder. To go on with a folder that other code has begun, load the folder and say `other_code`;
        with `rerun_changed`, the units that other code made are run again.

        A worker that gives no sign of life for `patience` seconds is replaced. A unit that ends its worker three times is set
        aside while the others go on, and is an error at the end. SIGTERM and SIGHUP end a study as Ctrl-C does: what has come
        in is written.
        """
        if on not in ("local", "ray"):
            raise DeclarationError("on", on, "'local' or 'ray'")
        least = 1 if on == "ray" else 0
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < least):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DeclarationError("workers", workers, f"an integer of at least {least}")
        if address is not None and on != "ray":
            raise DeclarationError("address", address, "an address only with on = 'ray'")
        if not patience > 0:
            raise DeclarationError("patience", patience, "seconds, above 0")
        self = self.at(out)
        if self.recorded and not (other_code or rerun_changed):
            raise StudyError(
                f"the rows in {self.folder} were made by other code than that of now: {self._differences()}. For rows of the "
                f"code of now run the declaration, {self.folder / 'study.toml'}, which gets a folder of its own; to go on with "
                "rows of both in one folder, say so: other_code=True, or --other-code; to run its units again there: "
                "rerun_changed=True, or --rerun-changed"
            )
        self._check_names()
        for other in self._others() if not self.folder.is_dir() else ():
            warnings.warn(spelt_other(other), stacklevel=2)
        with as_ctrl_c():
            return self._run(on, workers, address, progress, rerun_changed, patience)

    def _check_names(self) -> None:
        """Look up what the declaration of a folder names; but do not import modules that nobody but the folder has named."""
        if self.checked:
            return
        if self.modules:
            raise StudyError(
                f"{self.folder} names the modules {', '.join(self.modules)}, and to run it imports them, which executes their "
                "code. If you trust them, say so: --trust, or --module NAME for each; Study.load(folder, trust=True)"
            )
        Study.declared(self.given)

    def _differences(self, codes: Iterable[str] = ()) -> str:
        """In what the code of now differs from that of the records, or from the first of these codes that is another."""
        other = next((code for code in codes if code != self.code.digest), None)
        return self.code.differences(study_file.code_of(self.folder, other))

    def _others(self) -> list[Path]:
        """Folders beside this one, with records of the same declaration that other code made."""
        declared = declaration.digest(self.declaration)
        beside = [
            p.parent for p in sorted(self.out.glob(f"{self.name}-*/study.json")) if p.parent.name != self.folder.name
        ]
        return [
            p for p in beside if declared in ((about := study_file.about_of(p)).get("declared"), about.get("digest"))
        ]

    def _run(
        self, on: str, workers: int | None, address: str | None, progress: bool, rerun_changed: bool, patience: float
    ) -> Study:
        plan, folder = Plan(self), self._records()

        def look() -> Found:
            found = folder.look(plan.units)
            again = [unit for unit, code in found.codes.items() if rerun_changed and code != self.code.digest]
            plan.take({unit: score for unit, score in found.done.items() if unit not in again})
            return found

        if folder.path.is_dir() and not look().problems and plan.finished:
            return self  # also where nothing can be written
        with contextlib.ExitStack() as stack:
            stack.enter_context(folder.lock())
            pool = None
            if on == "local" and not plan.done:
                pool = stack.enter_context(
                    _pool(on, address, workers, plan, patience)
                )  # it starts while the rest is imported
            from offtrace.studies import progress_display, provenance, running

            versions = provenance.versions(self.task)
            about = self._about(versions, provenance.machine(), self.code.about())
            problems = folder.prepare(about, self.as_toml())
            found = look()
            folder.tidy(found)
            folder.keep_code({**self.code.source(), "versions": versions})
            for problem in (*problems, *(str(folder.path / problem) for problem in found.problems)):
                warnings.warn(f"not read: {problem}", stacklevel=4)
            if not plan.finished:
                pool = pool or stack.enter_context(_pool(on, address, workers, plan, patience))
                with progress_display.display(plan, str(pool), progress) as shown:
                    running.run(plan, folder, pool, shown, versions)
        return self

    def _about(self, versions: Mapping[str, str], machine: str, code: Toml) -> Table:
        declared = declaration.digest(self.declaration)
        about = {"declared": declared, "versions": dict(versions), "machine": machine, "study": self.declaration}
        return {**about, "code": dict(code)}

    def bring(self, finished: Sequence[Finished], versions: Mapping[str, str], machine: str, code: Toml) -> int:
        """Write outcomes that were computed where records cannot be written; how many of them are new.

        `code` is what `study.code.about()` was there; empty, if it was not kept.
        """
        plan, folder = Plan(self), self._records(code.get("digest", ""))
        unknown = [f.outcome.unit for f in finished if f.outcome.unit.id not in plan.units]
        if unknown:
            raise StudyError(
                f"{len(unknown)} of these units are of another study, such as {unknown[0]}: {self.name} has no such"
            )
        with folder.lock():
            folder.prepare(self._about(versions, machine, code), self.as_toml())
            found = folder.look(plan.units)
            folder.tidy(found)
            done = found.done
            new = [f for f in finished if f.outcome.unit.id not in done]
            if new:
                folder.write(new, dict(versions))
        return len(new)

    def records(self, out: str | Path | None = None) -> pl.DataFrame:
        """Return one row for each configuration and seed that has been run."""
        return self.at(out)._read("rows")

    def curves(self, out: str | Path | None = None) -> pl.DataFrame:
        """The mean over the seeds at fixed steps, with a 95% interval, for each configuration that has been run."""
        return self.at(out)._read("curves")

    def status(self, out: str | Path | None = None) -> Status:
        """Return what there is of the study: what has been run, and what its folder says."""
        from offtrace.studies.progress_display import Display

        self = self.at(out)
        plan, folder = Plan(self), self._records()
        found = folder.look(plan.units)
        plan.take(found.done)
        changed = [unit for unit, code in found.codes.items() if unit in plan.done and code != self.code.digest]
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
            problems=tuple(found.problems) + folders.problems(folder.path),
            best=tuple(f"{name}: {shown.spelt_best(name)}" for name in places),
            code=self._differences(found.codes.values()) if changed else "",
            changed=tuple(str(plan.units[unit]) for unit in sorted(changed, key=plan.order.__getitem__)),
            failed=tuple(found.failed.values()),
            others=tuple(self._others()) if not self.recorded else (),
        )

    def facts(self) -> Table:
        """Return what a report says of the study beside its rows."""
        status, about = self.status(), study_file.about_of(self.folder)
        units = sum(done for done, _ in status.done.values())
        return {
            "name": self.name,
            "question": self.question,
            "about": self.about,
            "task": self.task,
            "metric": self.metric,
            "better": "higher" if self.metric in HIGHER_IS_BETTER else "lower",
            "step": {"deep": "frame", "stale": "update"}.get(self.task, "step"),
            "frames per update": self._frames_per_update(),
            "finished": status.finished,
            "seconds": status.seconds,
            "machine": about.get("machine"),
            "versions": about.get("versions", {}),
            "counts": {"units": units, "rows": status.rows, "workers": status.workers},
            "problems": status.problems,
            "code": {"words": status.code, "commit": about.get("code", {}).get("commit")},
            "declaration": self.as_toml(),
        }

    def _frames_per_update(self) -> int | None:
        """Return the frames between two updates of deep agents; None if games differ, or if the task is another."""
        found: set[int] = {place.protocol.every for place in self.environments} if self.task == "deep" else set()
        return found.pop() if len(found) == 1 else None

    def _records(self, code: str | None = None) -> Folder:
        from offtrace.studies.records import Folder

        return Folder(self.folder, self.digest, self.code.digest if code is None else code)

    def _read(self, kind: str) -> pl.DataFrame:
        folder = self._records()
        if not folder.path.is_dir():
            others = "".join(f"; {spelt_other(other)}" for other in self._others())
            raise StudyError(f"there are no records of {self.name} in {folder.path}: run the study first{others}")
        plan = Plan(self)
        frame, found = folder.read(kind, plan.units)
        plan.take(found.done)
        for problem in found.problems:
            warnings.warn(f"not read: {folder.path / problem}", stacklevel=4)
        return frame if len(plan.done) == len(found.done) else frame.filter(frame["unit"].is_in(list(plan.done)))

    def as_toml(self) -> str:
        """Return the declaration as it is run, as TOML: `Study.load` of it is the same study."""
        try:
            import tomli_w
        except ImportError:
            raise ImportError("writing a study needs tomli-w: pip install 'offtrace[studies]'") from None
        return tomli_w.dumps(declaration.with_subset(self.given, self.subset))

    def summary(self) -> list[tuple[str, str]]:
        """Return what the study is, as pairs (what, words)."""
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
        return rendered("offtrace.studies", "study.html", study=self)


@contextlib.contextmanager
def _pool(
    on: str, address: str | None, workers: int | None, plan: Plan, patience: float
) -> Generator[Pool, None, None]:
    if on == "ray":
        from offtrace.studies.on_ray import RayPool

        pool: Pool = RayPool(address, workers)
    elif workers == 0:
        from offtrace.studies.this_process import ThisProcess

        pool = ThisProcess()
    else:
        from offtrace.studies.local_processes import AHEAD, LocalPool

        pool = LocalPool(
            min(workers or cores(), plan.total),
            ahead=1 if plan.study.task in ("deep", "stale") else AHEAD,
            patience=patience,
        )
    try:
        yield pool
    finally:
        pool.close()
