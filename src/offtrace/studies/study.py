"""A study: a declared value with a stable id. It can be run, anywhere and in any number of pieces, and its records be read."""

from __future__ import annotations

import contextlib
import math
import sys
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from offtrace._shared import notebook
from offtrace._shared.cores import cores
from offtrace._shared.extras import from_extra
from offtrace.studies import environments, scheduler, spec, status
from offtrace.studies.executor import Executor, InProcess, Processes
from offtrace.studies.fields import DeclarationError, StudyError, Table, Toml
from offtrace.studies.plan import Plan
from offtrace.studies.provenance import Code, code_of, machine, versions
from offtrace.studies.ray_executor import RayCluster
from offtrace.studies.spec import Place, Seeds
from offtrace.studies.status import Status
from offtrace.studies.store import NAME, Contents, Store, frame
from offtrace.studies.traces import TraceGrid

if TYPE_CHECKING:
    import polars as pl

OUT = Path("offtrace-studies")
"""The default folder of records."""
PATIENCE = 3600.0
"""The default limit on the seconds of a unit. Units of deep agents have none."""


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
    """The ages of the data: of the behaviour policy in updates ("replay"), or as many frames as the memory holds ("deep")."""
    seeds: dict[str, Seeds]
    """The seeds by phase: tuning and test, or map."""
    modules: tuple[str, ...] = ()
    """The modules that are imported first: they register traces and environments of one’s own."""
    files: tuple[str, ...] = ()
    """The files that rows depend on, as data that a module reads."""
    subset: str | None = None
    given: Toml = field(default_factory=dict[str, object], repr=False, compare=False)
    """The declaration, with all its subsets."""
    out: Path = field(default=OUT, repr=False, compare=False)
    """The folder that holds the folders of studies."""
    code: Code = field(kw_only=True, repr=False, compare=False)
    """What computes the rows, as it was when the study was declared: offtrace, the modules and the files."""
    checked: bool = field(default=True, kw_only=True, repr=False, compare=False)
    """Whether its names were looked up and its modules imported. Those of a folder are not, until it is run."""

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

        The `modules` of a TOML file, and files of MDPs, may lie in its folder, too. From a folder of records, which may be
        anybody's, nothing is imported, not by its study.toml either: its records can be read. To run it, say `trust`, or name
        the modules that it may import.
        """
        path = Path(study)
        if any(spec.is_file(path / name) for name in (NAME, "study.toml")):
            recorded = cls._of_folder(path, trust).at(out)
            return recorded if subset is None else recorded.small(subset)
        given = spec.read(study)
        if any(spec.is_file(path.parent / name) for name in (NAME, "lock")) and not spec.is_trusted(given, trust):
            spec.require_trust(path.parent, given)
        folder = str(path.resolve().parent)
        needs_files = given.get("modules") or given.get("files") or environments.SAVED in str(given.get("environments"))
        if needs_files and spec.is_file(path) and folder not in sys.path:
            sys.path.append(folder)  # workers get this path too
        try:
            return cls.declared(given, subset, out)
        except DeclarationError as error:
            error.args = (f"{study}: {error}",)
            raise

    @classmethod
    def _of_folder(cls, folder: Path, trust: bool | Collection[str]) -> Study:
        """Load the study of a folder of records. Unless the folder is trusted, no name is looked up."""
        about, out = Store(folder, "").about(), folder.resolve().parent
        toml = about.get("toml")
        given = spec.parsed(folder / "study.toml", toml if isinstance(toml, str) else None)
        if "study" in about and not spec.is_trusted(given, trust):
            fields = spec.recorded(about["study"])
            study = cls(**dict(fields), given=given, out=out, code=code_of(fields.modules, fields.files), checked=False)
        else:
            if not spec.is_trusted(given, trust):
                spec.require_trust(folder, given)
            study = cls.declared(given, None, out)
        if study.folder.name != folder.resolve().name:
            raise StudyError(f"{folder} is not the folder of the study in it, which would be {study.folder.name}")
        return study

    @classmethod
    def declared(cls, given: Toml, subset: str | None = None, out: str | Path | None = None) -> Study:
        """Make a study from a dict of what the TOML file would say. All of its subsets are checked, too."""
        checked: dict[str | None, spec.Fields] = {None: spec.check(spec.with_subset(given, None))}
        for name in given.get("subsets", {}):
            try:
                checked[name] = spec.check(spec.with_subset(given, name))
            except DeclarationError as error:
                error.args = (f"with subsets.{name}: {error}",)
                raise
        spec.with_subset(given, subset)  # an unknown one is an error
        fields = checked[subset]
        code = code_of(fields.modules, fields.files)
        return cls(**dict(fields), subset=subset, given=given, out=Path(out or OUT), code=code)

    def at(self, out: str | Path | None) -> Study:
        """Return the same study with its records in another place."""
        return self if out is None else replace(self, out=Path(out))

    def small(self, subset: str = "ci") -> Study:
        """Return the subset that takes seconds."""
        self._require_trust()
        return Study.declared(self.given, subset, self.out)

    @property
    def declaration(self) -> Table:
        """What is run, all defaults filled in, as JSON has it."""
        given = {name: getattr(self, name) for name in spec.Fields.model_fields}
        return spec.Fields.model_construct(**given).model_dump(mode="json", exclude=None if self.files else {"files"})

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of everything declared that the rows depend on. Another declaration has another one, and another folder."""
        return spec.digest(self.declaration)

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
        patience: float | None = None,
    ) -> Study:
        """Run what has not been run yet: in local processes, or on="ray". Returns the study, whose records are in `out`.

        `workers` is the number of processes (of a new Ray cluster: its CPUs), by default one for each core; `address` is that of
        an existing Ray cluster. With `workers=0` the units run one after another in this process, where a debugger sees
        them; a small study is done sooner so. Interrupted in any way, the next run continues.

        If some units were computed by other code, it is an error to run the others: say `other_code` to keep both in one folder,
        or `rerun_changed` to run the units of other code again.

        A unit that takes longer than `patience` seconds is ended with its worker: by default an hour, and any time for deep
        agents. A unit that raises, or ends its worker, or takes too long is tried three times; then it is set aside while the
        others continue, and is an error at the end. In this process it is tried once, and may take any time. SIGTERM and SIGHUP
        end a study as Ctrl-C does: what has come in is written.
        """
        if on not in ("local", "ray"):
            raise DeclarationError("on", on, "'local' or 'ray'")
        least = 1 if on == "ray" else 0
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < least):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DeclarationError("workers", workers, f"an integer of at least {least}")
        if address is not None and on != "ray":
            raise DeclarationError("address", address, "an address only with on = 'ray'")
        if patience is not None and not patience > 0:
            raise DeclarationError("patience", patience, "seconds, above 0")
        self = self.at(out)
        if not self.checked:
            self._require_trust()
            if Study.declared(self.given).digest != self.digest:
                raise StudyError(
                    f"the records in {self.folder} are of another study than the declaration that they hold"
                )
        plan, store = Plan(self), Store(self.folder, self.digest)
        contents = store.read(whole=True)
        self._take(plan, contents, other_code, rerun_changed)
        if plan.finished and not contents.problems:
            return self  # needs no folder that can be written
        with scheduler.as_ctrl_c(), store.writing(self._about(), self.as_toml(), self.code.about()) as contents:
            for problem in contents.problems:
                warnings.warn(f"damaged: {self.folder / problem}", stacklevel=2)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they were raised above
                self._take(plan, contents, other_code, rerun_changed)
            if not plan.finished:
                longest = patience or (math.inf if self.task == "deep" else PATIENCE)
                left = plan.total - len(plan.done)
                with contextlib.closing(_executor(on, workers, address, left, longest)) as executor:
                    scheduler.run(plan, store, executor, progress)
        return self

    def _take(self, plan: Plan, contents: Contents, other_code: bool, rerun_changed: bool) -> None:
        """Mark what is there as done. Units of other code are an error, unless the caller says what to do with them."""
        changed = {id for id, summary in contents.done.items() if summary.code != self.code.digest}
        plan.take({id: score for id, score in contents.scores.items() if not (rerun_changed and id in changed)})
        if changed := changed & plan.done.keys():
            code = contents.codes.get(contents.done[min(changed)].code, {})
            what = (
                f"other code has made {len(changed)} of the units in {self.folder}: {self.code.differences(code)}. To run them "
                "again: --rerun-changed, rerun_changed=True"
            )
            if not plan.finished and not other_code:
                raise StudyError(f"{what}; to keep them and run the others: --other-code, other_code=True")
            warnings.warn(what, stacklevel=3)

    def _about(self) -> Table:
        """What the records keep of the study, the installed versions and the machine."""
        return {"study": self.declaration, "versions": versions(self.task), "machine": machine()}

    def _require_trust(self) -> None:
        """Refuse to look up a declaration that names modules, if nobody but its folder has named them."""
        if not self.checked:
            spec.require_trust(self.folder, self.given)

    def records(self) -> pl.DataFrame:
        """Return one row for each configuration and seed that has been run."""
        return self._frame("rows")

    def curves(self) -> pl.DataFrame:
        """The mean over the seeds at fixed steps, with a 95% interval, for each configuration that has been run."""
        return self._frame("curves")

    def _frame(self, kind: str) -> pl.DataFrame:
        plan, store = Plan(self), Store(self.folder, self.digest)
        if not store.path.exists():
            raise StudyError(f"there are no records of {self.name} in {self.folder}: run the study first")
        contents = store.read()
        plan.take(contents.scores)
        wanted = {id: unit for id, unit in plan.units.items() if id in plan.done}
        done = {id: contents.done[id] for id in wanted}
        columns = store.columns(kind, done, contents.problems) if done else {}
        for problem in contents.problems:
            warnings.warn(f"damaged: {self.folder / problem}", stacklevel=3)
        return frame(kind, wanted, columns)

    def export(self, folder: str | Path | None = None) -> list[Path]:
        """Write rows and curves as Parquet and CSV into a folder, by default that of the study; the files."""
        into = Path(folder or self.folder)
        into.mkdir(parents=True, exist_ok=True)
        files: list[Path] = []
        for kind, table in (("rows", self.records()), ("curves", self.curves())):
            table.write_parquet(into / f"{kind}.parquet")
            table.write_csv(into / f"{kind}.csv")
            files += [into / f"{kind}.parquet", into / f"{kind}.csv"]
        return files

    def status(self) -> Status:
        """Return how far the study has come, and what is damaged or set aside."""
        return status.status_of(self)

    def facts(self) -> Table:
        """Return what a report says of the study in addition to its rows."""
        return status.facts(self)

    def as_toml(self) -> str:
        """Return the declaration as it is run, as TOML: `Study.load` of it is the same study."""
        with from_extra("studies", "writing a study needs"):
            import tomli_w
        return tomli_w.dumps(spec.with_subset(self.given, self.subset))

    def summary(self) -> list[tuple[str, str]]:
        """Return what the study is, as pairs (what, words)."""
        return status.summary(self)

    def __str__(self) -> str:
        lines = [f"{self.name} ({self.digest[:12]})", f"  {self.question}"]
        return "\n".join([*lines, *(f"  {key:<13} {value}" for key, value in self.summary())])

    def _repr_html_(self) -> str:
        table = notebook.table(self.name, [("question", self.question), *self.summary()])
        return table + (notebook.words(str(self.status())) if self.folder.is_dir() else "")


def _executor(on: str, workers: int | None, address: str | None, left: int, patience: float) -> Executor:
    """Choose where the remaining units run."""
    if on == "ray":
        return RayCluster(address, workers, patience)
    return InProcess() if workers == 0 else Processes(min(workers or cores(), left), patience)
