"""A study in words: what a report says of it, and its summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offtrace.studies.fields import Table
from offtrace.studies.plan import Plan
from offtrace.studies.spec import HIGHER_IS_BETTER
from offtrace.studies.store import Store

if TYPE_CHECKING:
    from offtrace.studies.study import Study


def facts(study: Study) -> Table:
    """Return what a report says of the study in addition to its rows."""
    status, contents = study.status(), Store(study.folder, study.digest).read()
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
    found: set[int] = {place.protocol.every for place in study.environments} if study.task == "deep" else set()
    return found.pop() if len(found) == 1 else None


def summary(study: Study) -> list[tuple[str, str]]:
    """Return what the study is, as pairs (what, words)."""
    plan = Plan(study)
    lams = sorted({lam for t in study.traces for lam in t.lams if lam is not None})
    pairs = [
        ("task", f"{study.task}, by {study.metric}"),
        ("environments", ", ".join(place.name for place in study.environments)),
        ("traces", ", ".join(t.title + (f" {t.spelt}" if t.spelt else "") for t in study.traces)),
        ("λ", ", ".join(f"{lam:g}" for lam in lams)),
        ("α", ", ".join(f"{alpha:g}" for alpha in study.alphas)),
        ("ages", ", ".join(map(str, study.ages))),
        ("seeds", ", ".join(f"{p}: {s.first} to {s.stop - 1}" for p, s in study.seeds.items())),
        ("in all", f"{plan.total:,} units, {plan.runs:,} {'operators' if study.task == 'map' else 'learners'}"),
        ("subsets", ", ".join(study.given.get("subsets", {}))),
    ]
    return [(key, value) for key, value in pairs if value]
