"""A study in words: what it is, how far it has come, and whether its rows are of the current code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from offtrace._shared import notebook
from offtrace.studies.fields import Table
from offtrace.studies.plan import Plan
from offtrace.studies.spec import HIGHER_IS_BETTER
from offtrace.studies.store import Contents, Store

if TYPE_CHECKING:
    from offtrace.studies.study import Study

SHOWN = 3
"""Units of other code that are named."""
ENDS = 6
"""So many values of a long grid are named at each end."""


@dataclass(frozen=True)
class Status:
    """How far a study has come: units done, rows, problems."""

    name: str
    folder: Path
    done: dict[str, tuple[int, int]]
    """Units done and in all, by phase."""
    rows: int
    seconds: float
    """The seconds that all workers together have worked."""
    workers: int
    versions: tuple[str, ...]
    """The versions of offtrace under which it was run."""
    problems: tuple[str, ...]
    """What is damaged."""
    code: str = ""
    """What differs, in words, if some rows were computed by other code than the current one."""
    changed: tuple[str, ...] = ()
    """The units of other code, in words."""
    failed: tuple[str, ...] = ()
    """The units that were set aside because they raised or ended their workers, and how."""

    @property
    def finished(self) -> bool:
        """Whether nothing is left to run."""
        return all(done == total for done, total in self.done.values())

    def _repr_html_(self) -> str:
        return notebook.words(str(self))

    def __str__(self) -> str:
        phases = ", ".join(f"{phase} {done}/{total}" for phase, (done, total) in self.done.items())
        state = "finished" if self.finished else "begun" if self.rows else "not begun"
        lines = [
            f"{self.name}: {state}; units: {phases}; {self.rows:,} rows; {self.seconds:,.0f} s of work",
            f"  in {self.folder}",
        ]
        if len(self.versions) > 1:
            lines.append(f"  run under several versions of offtrace: {', '.join(self.versions)}")
        if self.code:
            lines.append(f"  its rows were computed by other code than the current one: {self.code}")
            some = ", ".join(self.changed[:SHOWN]) + (", …" if len(self.changed) > SHOWN else "")
            lines.append(f"  {len(self.changed)} units of other code (--rerun-changed runs them again): {some}")
        lines += [f"  set aside: {line}" for line in self.failed]
        return "\n".join([*lines, *(f"  damaged: {problem}" for problem in self.problems)])


def status_of(study: Study, contents: Contents | None = None) -> Status:
    """Return how far a study has come."""
    plan, store = Plan(study), Store(study.folder, study.digest)
    contents = contents or store.read()
    plan.take(contents.scores)
    done = [contents.done[id] for id in plan.done]
    changed = [summary for summary in done if summary.code != study.code.digest]
    versions = {str(contents.codes.get(summary.code, {}).get("version", "?")) for summary in done}
    return Status(
        name=study.name,
        folder=study.folder,
        done=plan.sizes(),
        rows=sum(summary.rows for summary in done),
        seconds=sum(summary.seconds for summary in done),
        workers=len({summary.worker for summary in done}),
        versions=tuple(sorted(versions)),
        problems=tuple(contents.problems),
        code=study.code.differences(contents.codes.get(changed[0].code, {})) if changed else "",
        changed=tuple(str(plan.units[summary.id]) for summary in changed),
        failed=tuple(words for id, words in store.failed().items() if id not in plan.done),
    )


def facts(study: Study) -> Table:
    """Return what a report says of the study in addition to its rows."""
    contents = Store(study.folder, study.digest).read()
    status = status_of(study, contents)
    commits = [code.get("commit") for code in contents.codes.values()]
    units = sum(done for done, _ in status.done.values())
    return {
        "name": study.name,
        "question": study.question,
        "about": study.about,
        "task": study.task,
        "metric": study.metric,
        "better": "higher" if study.metric in HIGHER_IS_BETTER else "lower",
        "step": "frame" if study.task == "deep" else "step",
        "frames per update": _frames_per_update(study),
        "finished": status.finished,
        "seconds": status.seconds,
        "machine": contents.about.get("machine"),
        "versions": contents.about.get("versions", {}),
        "counts": {"units": units, "rows": status.rows, "workers": status.workers},
        "problems": status.problems,
        "failed": status.failed,
        "code": {"words": status.code, "commit": commits[0] if commits else None},
        "declaration": study.as_toml(),
    }


def _frames_per_update(study: Study) -> int | None:
    """Return the frames between two updates of deep agents; None if games differ, or if the task is another."""
    intervals: set[int] = {place.protocol.every for place in study.environments} if study.task == "deep" else set()
    return intervals.pop() if len(intervals) == 1 else None


def _shortened(values: Iterable[object]) -> str:
    """All values; of many the first and last ones, and how many there are."""
    texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    if len(texts) <= 2 * ENDS:
        return ", ".join(texts)
    return ", ".join([*texts[:ENDS], "…", *texts[-ENDS:]]) + f" ({len(texts)} in all)"


def summary(study: Study) -> list[tuple[str, str]]:
    """Return what the study is, as pairs (what, words)."""
    plan = Plan(study)
    lams = sorted({lam for t in study.traces for lam in t.lams if lam is not None})
    pairs = [
        ("task", f"{study.task}, by {study.metric}"),
        ("environments", _shortened(place.name for place in study.environments)),
        ("traces", _shortened(t.title + (f" {t.spelt}" if t.spelt else "") for t in study.traces)),
        ("λ", _shortened(lams)),
        ("α", _shortened(study.alphas)),
        ("ages", _shortened(study.ages)),
        ("seeds", ", ".join(f"{p}: {s.first} to {s.stop - 1}" for p, s in study.seeds.items())),
        ("in all", f"{plan.total:,} units, {plan.runs:,} {'operators' if study.task == 'map' else 'learners'}"),
        ("subsets", ", ".join(study.given.get("subsets", {}))),
    ]
    return [(key, value) for key, value in pairs if value]
