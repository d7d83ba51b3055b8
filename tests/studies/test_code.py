"""Rows know the code that made them: those of other code are marked, and run again if one says so."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import offtrace
from offtrace.studies import DeclarationError, Study, StudyError, provenance, tasks
from offtrace.studies.plan import Plan
from offtrace.studies.store import Store
from studies.forked import Forks
from studies.small import declared, equal, forget, units_in

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

    def values(self, out: Path, *options: str) -> list[float]:
        """In a process of its own, as a user's next command is."""
        (self.folder / "small.toml").write_text(self.study(out).as_toml())
        command = ["study", "run", "small.toml", "--out", str(out), "--workers", "0", "--quiet", *options]
        status, self.said = self.forks.run(*command, cwd=str(self.folder))
        assert status == 0, self.said
        return self.study(out).records()["value"].to_list()


@pytest.mark.parametrize("where", ["module", "beside"])
def test_rows_of_other_code_are_marked_and_run_again_if_one_says_so(
    forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    own, out = Own(forks, tmp_path, f"own_walk_{where}"), tmp_path / "out"
    monkeypatch.syspath_prepend(tmp_path)
    first, before = own.study(out), own.values(out)
    assert "other code" not in own.said
    own.write("SHARE", 0.25) if where == "beside" else own.write("SHARE * SHARE", 0.5)
    changed = own.study(out)
    assert changed.folder == first.folder
    assert changed.code.digest != first.code.digest
    changed_file = f"{own.module}.py" if where == "module" else f"{own.beside}.py"
    status = changed.status()
    assert status.finished
    assert status.code == f"changed since: {changed_file}"
    assert [str(unit) for unit in status.changed] == [str(unit) for unit in Plan(changed).units.values()][:3] + [
        str(unit) for unit in status.changed[3:]
    ]
    assert f"{len(units_in(changed))} units of other code (--rerun-changed runs them again)" in str(status)
    assert changed.facts()["code"]["words"] == f"changed since: {changed_file}"
    assert own.values(out) == before  # a finished study is not run again by itself, but says so
    assert f"other code has made 4 of the units in {first.folder}: changed since: {changed_file}" in own.said
    after = own.values(out, "--rerun-changed")
    assert after != before
    assert after == own.values(tmp_path / "fresh")
    assert not own.study(out).status().changed
    codes = Store(first.folder, first.digest).read().codes
    assert set(codes) == {first.code.digest, changed.code.digest}
    assert len({code["modules"][changed_file] for code in codes.values()}) == 2
    assert all(code["version"] == offtrace.__version__ for code in codes.values())


def test_what_other_code_has_begun_continues_only_if_one_says_so(tmp_path: Path) -> None:
    study = Study.declared(declared(), out=tmp_path).run(workers=0, progress=False)
    rows = study.records()
    forget(study, keep=4)
    other = replace(study, code=replace(study.code, version="0.0.1", tree="another"))
    assert other.folder == study.folder
    with pytest.raises(StudyError, match=r"other code has made 4 of the units .*--rerun-changed.*--other-code"):
        other.run(workers=0, progress=False)
    assert len(units_in(study)) == 4
    with pytest.warns(UserWarning, match="other code has made 4 of the units"):
        assert study_of_version(other).run(workers=0, progress=False, other_code=True).status().finished
    assert equal(study.records(), rows)
    with pytest.warns(UserWarning, match=r"other code has made 4 of the units .*changed since: offtrace \(then "):
        study_of_version(other).run(workers=0, progress=False)
    assert not study_of_version(other).run(workers=0, progress=False, rerun_changed=True).status().changed
    assert equal(study.records(), rows)


def study_of_version(study: Study) -> Study:
    """The study, whose units no worker refuses: only the folder of offtrace is another."""
    here = Study.declared(study.given, out=study.out)
    return replace(here, code=replace(here.code, tree="another"))


def test_declared_files_are_part_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data.csv"
    data.write_text("1,2")
    given = declared(files=["data.csv"], traces=["Retrace"], environments=["random-walk:states=5"])
    study = Study.declared(given, out=tmp_path / "out").run(workers=0, progress=False)
    assert study.digest != Study.declared(declared(traces=["Retrace"], environments=["random-walk:states=5"])).digest
    assert not study.status().code
    data.write_text("1,3")
    changed = Study.declared(given, out=tmp_path / "out")
    assert changed.status().code == "changed since: data.csv"
    assert Study.load(changed.folder).status().code == "changed since: data.csv"
    plan = Plan(study)
    with pytest.raises(RuntimeError, match="this worker has other code"):
        tasks.run(replace(plan.job(next(iter(plan.units.values()))), sources="0" * 64))
    data.unlink()
    with pytest.raises(DeclarationError, match=r"files\[0\]: got 'data.csv'; allowed: a file"):
        Study.declared(given)


def test_a_worker_with_other_code_refuses() -> None:
    plan = Plan(Study.declared(declared()))
    job = plan.job(next(plan.left()))
    assert tasks.run(job).unit == job.unit
    with pytest.raises(RuntimeError, match="this worker has other code"):
        tasks.run(replace(job, sources="0" * 64))


def test_the_commit_is_kept() -> None:
    code = provenance.code_of((), ())
    asked = subprocess.run(
        ["git", "-C", str(provenance.HOME), "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if asked.returncode == 0:
        assert code.commit == asked.stdout.strip()
        assert code.tree
    assert code.about()["modules"] == {}


def test_equal_rows_of_equal_code(tmp_path: Path) -> None:
    one, other = (
        Study.declared(declared(), out=tmp_path / name).run(workers=0, progress=False) for name in ("one", "other")
    )
    assert one.digest == other.digest
    assert equal(one.records(), other.records())
    assert not one.status().code
