"""Rows belong to the code that made them: after a change nothing is finished, and what there was can still be read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import offtrace
from offtrace.studies import Study, StudyError, code_digest, declaration, work
from offtrace.studies.plan import Plan
from studies.forked import Forks
from studies.small import declared, equal

WALKS = """
from offtrace.mdps import random_walk
from offtrace.studies import register_environment
from {beside} import SHARE

def {name}(states: int):
    return random_walk(states, right={right})

register_environment("{name}", {name})
"""


class Own:
    """A module of one's own in a folder, with one beside it."""

    def __init__(self, forks: Forks, folder: Path, name: str) -> None:
        self.forks, self.folder, self.module, self.beside = forks, folder, name, f"{name}_beside"
        self.write("SHARE", 0.5)

    def write(self, right: str, share: float) -> None:
        text = WALKS.format(name=self.module, beside=self.beside, right=right)
        (self.folder / f"{self.module}.py").write_text(text)
        (self.folder / f"{self.beside}.py").write_text(f"SHARE = {share}\n")

    def study(self, out: Path) -> Study:
        given = declared(modules=[self.module], traces=["Retrace"], environments=[f"{self.module}:states=5"])
        return Study.declared(given, out=out)

    def values(self, out: Path) -> list[float]:
        """In a process of its own, as a user's next command is."""
        (self.folder / "small.toml").write_text(self.study(out).as_toml())
        command = ["study", "run", "small.toml", "--out", str(out), "--workers", "0", "--quiet"]
        status, self.said = self.forks.run(*command, cwd=str(self.folder))
        assert status == 0, self.said
        return self.study(out).records()["value"].to_list()


def done_in(study: Study) -> set[str]:
    return set(study.records()["unit"])


def again_in(study: Study) -> Path:
    """A copy of the folder, to be run again."""
    return study.out.parent / "again" / study.folder.name


@pytest.mark.parametrize("where", ["module", "beside"])
def test_changed_code_is_run_anew(forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    own, out = Own(forks, tmp_path, f"own_walk_{where}"), tmp_path / "out"
    monkeypatch.syspath_prepend(tmp_path)
    first, before = own.study(out), own.values(out)
    assert "other code" not in own.said
    own.write("SHARE", 0.25) if where == "beside" else own.write("SHARE * SHARE", 0.5)
    changed = own.study(out)
    assert changed.digest != first.digest
    assert not changed.status().finished
    assert changed.status().others == (first.folder,)
    with pytest.raises(StudyError, match=rf"run the study first; rows of this declaration .* in {first.folder}"):
        changed.records()
    after = own.values(out)
    assert f"rows of this declaration that other code made are in {first.folder}, and not used" in own.said
    assert after != before
    assert after == own.values(tmp_path / "fresh")
    old = Study.load(first.folder)  # what there was can still be read, and says what it is
    assert old.records()["value"].to_list() == before
    changed_file = f"{own.module}.py" if where == "module" else f"{own.beside}.py"
    assert old.status().code == f"changed since: {changed_file}"
    assert f"its rows were made by other code than that of now: changed since: {changed_file}" in str(old.status())
    with pytest.raises(
        StudyError, match=rf"made by other code than that of now: changed since: {changed_file}.*--other-code"
    ):
        old.run(workers=0, progress=False)
    about = json.loads((first.folder / "study.json").read_text())
    assert about["code"]["sources"].keys() == {f"{own.module}.py", f"{own.beside}.py"}
    assert "right=SHARE)" in about["code"]["sources"][f"{own.module}.py"]
    assert [str(unit) for unit in old.status().changed] == [
        str(unit) for unit in Plan(old).units.values() if unit.id in done_in(old)
    ]
    assert f"{len(done_in(old))} units of other code (--rerun-changed runs them again)" in str(old.status())
    refused = forks.run("study", "run", str(first.folder), "--workers", "0", "--rerun-changed", cwd=str(tmp_path))
    assert (refused[0], "say so: --trust, or --module NAME" in refused[1]) == (2, True)
    again = ["--rerun-changed", "--module", own.module, "--workers", "0"]
    status, said = forks.run(
        "study", "run", str(shutil.copytree(first.folder, again_in(first))), *again, cwd=str(tmp_path)
    )
    assert status == 0, said
    redone = Study.load(again_in(first))
    assert redone.records()["value"].to_list() == after
    assert not redone.status().changed
    kept = [json.loads(file.read_text()) for file in redone.folder.glob("code/*.json")]
    assert len(kept) == 2  # the code of both runs, with the text of its modules
    assert len({code["sources"][changed_file] for code in kept}) == 2
    assert all(code["version"] == offtrace.__version__ for code in kept)
    own.write("SHARE", 0.5)  # and back: the first rows are those of the code of now
    assert own.study(out).status().finished
    assert own.values(out) == before


def test_what_other_code_has_begun_goes_on_only_if_one_says_so(tmp_path: Path) -> None:
    study = Study.declared(declared(), out=tmp_path / "now").run(workers=0, progress=False)
    before = records_of_before(study, tmp_path)
    for kind in ("rows", "curves", "units"):
        sorted((before / kind).iterdir())[-1].unlink()
    old = Study.load(before)
    assert old.status().code == "what made them was not kept"
    assert old.records().height == 3 * 3  # units × seeds
    with pytest.raises(StudyError, match="what made them was not kept"):
        old.run(workers=0, progress=False)
    assert old.run(workers=0, progress=False, other_code=True).status().finished
    assert old.records().drop("unit").equals(study.records().drop("unit"))
    assert old.facts()["code"]["words"] == "what made them was not kept"


def records_of_before(study: Study, folder: Path) -> Path:
    """The folder as it was when the code was no part of the digest: written with the names of then."""
    from offtrace.studies.records import Finished, Folder

    digest = declaration.digest(study.declaration)
    old = replace(study, recorded=digest, out=folder / "before")
    held = Folder(old.folder, digest)
    held.prepare({"versions": {"offtrace": "0"}, "machine": "then", "study": study.declaration}, study.as_toml())
    plan = Plan(old)
    for unit in list(plan.left())[:4]:
        outcome = work.run(replace(plan.job(unit), code=""))
        held.write([Finished(outcome, "local:1", datetime.now(UTC))], {"offtrace": "0"})
    return old.folder


def test_a_worker_with_other_code_refuses() -> None:
    plan = Plan(Study.declared(declared()))
    job = plan.job(next(plan.left()))
    assert work.run(job).unit == job.unit
    with pytest.raises(RuntimeError, match="this worker has other code"):
        work.run(replace(job, code="0" * 64))


CHANGES: dict[str, set[str]] = {
    "traces/new.py": set(code_digest.PARTS),
    "learners/loop.py": {"control", "evaluation", "replay"},
    "cli/study.py": set(),
}
"""Files, and the tasks whose rows depend on them."""
CHANGE = """
import json, sys
from pathlib import Path
from offtrace.studies import code_digest
def digests():
    code_digest._own.cache_clear()
    return {task: code_digest.of(task, ()).digest for task in code_digest.PARTS}
found = [digests()]
for file in sys.argv[1:]:
    with (code_digest.HOME / file).open("a") as opened:
        opened.write("# changed")
    found.append(digests())
print(json.dumps([str(code_digest.HOME), found]))
"""


def test_a_copy_of_the_package_has_the_same_digest_until_a_file_changes(tmp_path: Path) -> None:
    shutil.copytree(code_digest.HOME, tmp_path / "offtrace", ignore=shutil.ignore_patterns("__pycache__"))
    asked = [sys.executable, "-c", CHANGE, *CHANGES]
    said = subprocess.run(asked, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(tmp_path)})
    home, found = json.loads(said.stdout)
    assert home == str(tmp_path / "offtrace")
    assert found[0] == {task: code_digest.of(task, ()).digest for task in code_digest.PARTS}
    for before, now, concerned in zip(found, found[1:], CHANGES.values(), strict=False):
        assert {task for task in now if now[task] != before[task]} == concerned


def test_the_commit_is_kept() -> None:
    kept: dict[str, Any] = code_digest.of("map", ()).about()
    asked = subprocess.run(
        ["git", "-C", str(code_digest.HOME), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    if asked.returncode == 0:
        assert kept["commit"] == asked.stdout.strip()
    assert kept["sources"] == {}


def test_equal_rows_of_equal_code(tmp_path: Path) -> None:
    one, other = (
        Study.declared(declared(), out=tmp_path / name).run(workers=0, progress=False) for name in ("one", "other")
    )
    assert one.digest == other.digest
    assert equal(one.records(), other.records())
    assert not one.status().code
    assert not one.status().others
