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

from offtrace.studies import Study, StudyError, code_digest, declaration, work
from offtrace.studies.plan import Plan
from studies.small import COMMAND, declared, equal

TRACE = """
from dataclasses import dataclass
from typing import ClassVar
from offtrace import INFINITY, Trace, register
from {beside} import SHARE

@register
@dataclass(frozen=True)
class {name}(Trace):
    \"\"\"β_t = (share λ)^t.\"\"\"
    lam: float = 1.0
    title: ClassVar = "{name}"
    recursive_condition: ClassVar = False
    @staticmethod
    def factors(xp, pi, mu, rho, lam):
        return lam * {factor}, 1.0, INFINITY
"""


class Own:
    """A module of one's own in a folder, with one beside it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.module, self.beside, self.title = folder, name.lower(), f"{name.lower()}_beside", name
        self.write("SHARE", 0.5)

    def write(self, factor: str, share: float) -> None:
        text = TRACE.format(name=self.title, beside=self.beside, factor=factor)
        (self.folder / f"{self.module}.py").write_text(text)
        (self.folder / f"{self.beside}.py").write_text(f"SHARE = {share}\n")

    def study(self, out: Path) -> Study:
        given = declared(modules=[self.module], traces=[self.title], lams=[1.0], environments=["random-walk:states=5"])
        return Study.declared(given, out=out)

    def values(self, out: Path) -> list[float]:
        """In a process of its own, as a user's next command is."""
        (self.folder / "small.toml").write_text(self.study(out).as_toml())
        command = [*COMMAND, "run", "small.toml", "--out", str(out), "--workers", "1", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        self.said = done.stdout + done.stderr
        return self.study(out).records()["value"].to_list()


@pytest.mark.parametrize("where", ["module", "beside"])
def test_changed_code_is_run_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    own, out = Own(tmp_path, f"Own{where.capitalize()}"), tmp_path / "out"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path) + ":" + str(Path(code_digest.HOME).parent))
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
        old.run(progress=False)
    about = json.loads((first.folder / "study.json").read_text())
    assert about["code"]["sources"].keys() == {f"{own.module}.py", f"{own.beside}.py"}
    assert "lam * SHARE, 1.0" in about["code"]["sources"][f"{own.module}.py"]
    own.write("SHARE", 0.5)  # and back: the first rows are those of the code of now
    assert own.study(out).status().finished
    assert own.values(out) == before


def test_what_other_code_has_begun_goes_on_only_if_one_says_so(tmp_path: Path) -> None:
    study = Study.declared(declared(), out=tmp_path / "now").run(progress=False)
    before = records_of_before(study, tmp_path)
    for kind in ("rows", "curves", "units"):
        sorted((before / kind).iterdir())[-1].unlink()
    old = Study.load(before)
    assert old.status().code == "what made them was not kept"
    assert old.records().height == 3 * 3  # units × seeds
    with pytest.raises(StudyError, match="what made them was not kept"):
        old.run(progress=False)
    assert old.run(progress=False, other_code=True).status().finished
    assert old.records().drop("unit").equals(study.records().drop("unit"))
    assert old.facts()["code"]["words"] == "what made them was not kept"


def records_of_before(study: Study, folder: Path) -> Path:
    """The folder as it was when the code was no part of the digest: written with the names of then."""
    from offtrace.studies.records import Finished, Folder

    digest = declaration.digest(study.declaration)
    old = replace(study, recorded=digest, out=folder / "before")
    held = Folder(old.folder, digest)
    held.prepare({"versions": {"offtrace": "0"}, "machine": "then", "study": study.declaration}, study.as_toml())
    held.tidy()
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


def test_a_copy_of_the_package_has_the_same_digest_until_a_file_changes(tmp_path: Path) -> None:
    shutil.copytree(code_digest.HOME, tmp_path / "offtrace", ignore=shutil.ignore_patterns("__pycache__"))

    def digests() -> dict[str, str]:
        script = "import json; from offtrace.studies.code_digest import PARTS, of; "
        script += "print(json.dumps({task: of(task, ()).digest for task in PARTS}))"
        asked = [sys.executable, "-c", script]
        said = subprocess.run(
            asked, capture_output=True, text=True, check=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}
        )
        return json.loads(said.stdout)

    here = {task: code_digest.of(task, ()).digest for task in code_digest.PARTS}
    assert digests() == here
    for file, concerned in (
        ("traces/aware.py", set(here)),
        ("learners/loop.py", {"control", "evaluation", "replay"}),
        ("cli.py", set()),
    ):
        with (tmp_path / "offtrace" / file).open("a") as opened:
            opened.write("# changed\n")
        now = digests()
        assert {task for task in here if now[task] != here[task]} == concerned
        here = now


def test_the_commit_is_kept() -> None:
    kept: dict[str, Any] = code_digest.of("map", ()).about()
    asked = subprocess.run(
        ["git", "-C", str(code_digest.HOME), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    if asked.returncode == 0:
        assert kept["commit"] == asked.stdout.strip()
    assert kept["sources"] == {}


def test_equal_rows_of_equal_code(tmp_path: Path) -> None:
    one, other = (Study.declared(declared(), out=tmp_path / name).run(progress=False) for name in ("one", "other"))
    assert one.digest == other.digest
    assert equal(one.records(), other.records())
    assert not one.status().code
    assert not one.status().others
