"""A study: a declared value with a stable id. It can be run, anywhere and in any number of pieces, and its records be read."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from offtrace._shared.extras import install
from offtrace._shared.html_templates import rendered
from offtrace.studies import code_digest as code_of
from offtrace.studies import declaration, folders, study_records, study_run, study_words
from offtrace.studies.declaration import Seeds
from offtrace.studies.declaration_checks import DeclarationError, StudyError, Table, Toml
from offtrace.studies.declared_places import Place
from offtrace.studies.declared_traces import TraceGrid
from offtrace.studies.interruption import as_ctrl_c
from offtrace.studies.named_environments import SAVED
from offtrace.studies.status import Status, spelt_other

if TYPE_CHECKING:
    import polars as pl

    from offtrace.studies.records import Finished

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

        The `modules` of a TOML file, and files of MDPs, are looked for beside it, too. From a folder of records, which may be
        anybody's, nothing is imported, not by its study.toml either: its records can be read. To run it, say `trust`, or name
        the modules that it may import.
        """
        if folders.is_one(Path(study)):
            found = folders.study_of(Path(study), trust)
            if out is not None:
                found = replace(found, out=Path(out), recorded=None)
            return found if subset is None else found.small(subset)
        given = declaration.read(study)
        if folders.holds_records(Path(study).parent) and not folders.is_trusted(given, trust):
            folders.require_trust(Path(study).parent, given)
        beside = str(Path(study).resolve().parent)
        needs_files = given.get("modules") or SAVED in str(given.get("environments"))
        if needs_files and Path(study).is_file() and beside not in sys.path:
            sys.path.append(beside)  # workers get this path too
        return cls.declared(given, subset, out)

    @classmethod
    def declared(cls, given: Toml, subset: str | None = None, out: str | Path | None = None) -> Study:
        """Make a study from a dict of what the TOML file would say. All of its subsets are checked, too."""
        checked: dict[str | None, Table] = {None: declaration.check(declaration.with_subset(given, None))}
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
        self._require_trust()
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

        A worker that gives no sign of life for `patience` seconds is replaced. A unit that raises or ends its worker three times
        is set aside while the others go on, and is an error at the end; in this process it is tried once. SIGTERM and SIGHUP end
        a study as Ctrl-C does: what has come in is written.
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
                f"the rows in {self.folder} were made by other code than that of now: {study_records.differences(self)}. For "
                f"rows of the code of now run the declaration, {self.folder / 'study.toml'}, which gets a folder of its own; "
                "to go on with rows of both in one folder, say so: other_code=True, or --other-code; to run its units again "
                "there: rerun_changed=True, or --rerun-changed"
            )
        if not self.checked:
            self._require_trust()
            Study.declared(self.given)  # looks up every name
        for other in study_records.others(self) if not self.folder.is_dir() else ():
            warnings.warn(spelt_other(other), stacklevel=2)
        with as_ctrl_c():
            return study_run.run(self, on, workers, address, progress, rerun_changed, patience)

    def _require_trust(self) -> None:
        """Refuse to look up a declaration that names modules, if nobody but its folder has named them."""
        if not self.checked:
            folders.require_trust(self.folder, self.given, self.declaration)

    def bring(self, finished: Sequence[Finished], versions: Mapping[str, str], machine: str, code: Toml) -> int:
        """Write outcomes that were computed where records cannot be written; how many of them are new.

        `code` is what `study.code.about()` was there; empty, if it was not kept.
        """
        return study_records.bring(self, finished, versions, machine, code)

    def records(self, out: str | Path | None = None) -> pl.DataFrame:
        """Return one row for each configuration and seed that has been run."""
        return study_records.read(self.at(out), "rows")

    def curves(self, out: str | Path | None = None) -> pl.DataFrame:
        """The mean over the seeds at fixed steps, with a 95% interval, for each configuration that has been run."""
        return study_records.read(self.at(out), "curves")

    def status(self, out: str | Path | None = None) -> Status:
        """Return what there is of the study: what has been run, and what its folder says."""
        return study_records.status(self.at(out))

    def facts(self) -> Table:
        """Return what a report says of the study beside its rows."""
        return study_words.facts(self)

    def as_toml(self) -> str:
        """Return the declaration as it is run, as TOML: `Study.load` of it is the same study."""
        try:
            import tomli_w
        except ImportError:
            raise ImportError(f"writing a study needs tomli-w: {install('studies')}") from None
        return tomli_w.dumps(declaration.with_subset(self.given, self.subset))

    def summary(self) -> list[tuple[str, str]]:
        """Return what the study is, as pairs (what, words)."""
        return study_words.summary(self)

    def __str__(self) -> str:
        lines = [f"{self.name} ({self.digest[:12]})", f"  {self.question}"]
        return "\n".join([*lines, *(f"  {key:<13} {value}" for key, value in self.summary())])

    def _repr_html_(self) -> str:
        return rendered("offtrace.studies", "study.html", study=self)
