"""Real processes, really killed: nothing is lost, and nothing is counted twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import polars as pl
import pytest

from offtrace import mdps
from offtrace.studies import DeclarationError, Study, StudyError, register_environment
from offtrace.studies.local_processes import LocalPool
from offtrace.studies.plan import Plan
from studies.small import COMMAND, declared, equal, longer, start


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study.declared(longer(), out=tmp_path_factory.mktemp("unbroken")).run(progress=False)


def written(study: Study, folder: Path) -> Path:
    file = folder / "longer.toml"
    file.write_text(study.as_toml(), encoding="utf-8")
    return file


def parts(study: Study) -> list[Path]:
    return sorted((study.folder / "units").glob("part-*.parquet"))


def test_killed_ten_times_at_random_moments(unbroken: Study, tmp_path: Path) -> None:
    study, moments, begun = unbroken.at(tmp_path), random.Random(1), 0
    file = written(study, tmp_path)
    for i in range(10):
        before = len(parts(study))
        process = start(file, tmp_path, "--workers", "1")
        while i % 3 == 1 and len(parts(study)) == before and process.poll() is None:
            time.sleep(0.01)  # these are killed soon after a part was written, wherever that is; the others at any time
        time.sleep(moments.uniform(0.0, 0.5) if i % 3 == 1 else moments.uniform(0.2, 3.0))
        process.kill()
        process.communicate()
        status = study.status()
        begun += status.rows > 0 and not status.finished
    assert begun  # at least some kills came in the middle
    study.run(progress=False)
    assert study.status().finished
    assert equal(study.records(), unbroken.records())
    assert equal(study.curves(), unbroken.curves())
    units = pl.concat([pl.read_parquet(f) for f in parts(study)])
    assert units["unit"].n_unique() == units.height  # none was run twice and kept


def test_killed_workers_are_replaced(unbroken: Study, tmp_path: Path) -> None:
    study, killed = unbroken.at(tmp_path), []

    def kill() -> None:
        while len(killed) < 2:
            for file in parts(study):
                for worker in pl.read_parquet(file)["worker"].unique():
                    pid = int(worker.split(":")[1])
                    if pid not in killed and len(killed) < 2:
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)
            time.sleep(0.05)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    study.run(progress=False, workers=2)
    thread.join(600)
    assert len(killed) == 2
    assert equal(study.records(), unbroken.records())
    assert study.status().workers >= 3
    units = pl.concat([pl.read_parquet(f) for f in parts(study)])
    assert units["unit"].n_unique() == units.height


def test_ctrl_c_leaves_everything_resumable(unbroken: Study, tmp_path: Path) -> None:
    study = unbroken.at(tmp_path)
    process = start(written(study, tmp_path), tmp_path)
    while not parts(study) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "interrupted; the same command goes on from here" in said
    status = study.status()
    assert not status.finished
    assert status.rows > 0
    assert equal(study.run(progress=False).records(), unbroken.records())


def test_workers_end_with_the_coordinator(unbroken: Study, tmp_path: Path) -> None:
    study = unbroken.at(tmp_path)
    process = start(written(study, tmp_path), tmp_path)
    while not parts(study) and process.poll() is None:
        time.sleep(0.05)
    pids = [int(w.split(":")[1]) for f in parts(study) for w in pl.read_parquet(f)["worker"].unique()]
    process.kill()
    process.communicate()
    for _ in range(6_000):  # at once as a rule; a busy machine may take its time
        if not any(Path(f"/proc/{pid}").exists() and "worker" in _command(pid) for pid in pids):
            return
        time.sleep(0.1)
    raise AssertionError(f"workers {pids} live on")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_the_number_of_workers_does_not_matter(tmp_path: Path) -> None:
    one, three = (Study.declared(declared()).run(workers=n, out=tmp_path / str(n), progress=False) for n in (1, 3))
    assert equal(one.records(), three.records())
    assert equal(one.curves(), three.curves())


def test_from_a_script_without_a_main_guard(tmp_path: Path) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from studies.small import declared
from offtrace.studies import Study
print(Study.declared(declared()).run(out={str(tmp_path)!r}).records().height)
"""
    (tmp_path / "script.py").write_text(script)
    found = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "104"
    assert "32/32 units done" in found.stderr


def test_a_unit_that_fails_is_named_and_the_rest_is_kept(tmp_path: Path) -> None:
    study = Study.declared(declared())
    jobs = [Plan(study).job(unit) for unit in list(Plan(study).units.values())[:1]]
    pool = LocalPool(1)
    try:
        pool.submit(jobs[0].__class__(**{**jobs[0].__dict__, "task": "nonsense"}))
        with pytest.raises(
            StudyError, match=r"a unit failed: Retrace λ = 0.5 α = 0.1 on random-walk:states=5\n[\s\S]*KeyError"
        ):
            exhaust(pool)
    finally:
        pool.close()


def exhaust(pool: LocalPool) -> None:
    while True:
        pool.answered(1.0)


def test_a_trace_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halved_traces.py").write_text(
        '''
from dataclasses import dataclass
from typing import ClassVar
from offtrace import INFINITY, Trace, register

@register
@dataclass(frozen=True)
class Halved(Trace):
    """β_t = (λ/2)^t."""
    lam: float = 1.0
    title: ClassVar = "Halved"
    recursive_condition: ClassVar = False
    @staticmethod
    def factors(xp, pi, mu, rho, lam):
        return lam / 2, 1.0, INFINITY
'''
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = Study.declared(declared(modules=["halved_traces"], traces=["Halved"], lams=[1.0]), out=tmp_path)
    known = Study.declared(declared(traces=["Q(λ)"]), out=tmp_path)
    assert own.run(progress=False).records()["value"].equals(known.run(progress=False).records()["value"])


def test_an_environment_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_walks.py").write_text(
        """
from offtrace.mdps import random_walk
from offtrace.studies import register_environment

def walk(long: int, right: float = 1.0):
    return random_walk(long, right=right)

register_environment("own-walk", walk, right=1.0)
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = declared(modules=["own_walks"], environments=["own-walk:long=5"], traces=["Retrace"])
    own = Study.declared(given, out=tmp_path).run(progress=False).records()
    known = Study.declared(declared(environments=["random-walk:states=5"], traces=["Retrace"]), out=tmp_path)
    assert own["environment"].unique().to_list() == ["own-walk:long=5"]
    assert own["value"].equals(known.run(progress=False).records()["value"])
    with pytest.raises(DeclarationError, match=r"environments\[0\].*arguments long \(did you mean 'long'\?\)"):
        Study.declared(given | {"environments": ["own-walk:lang=5"]})


def test_names_of_environments_are_taken_once() -> None:
    with pytest.raises(ValueError, match="there is an environment named 'cliff' already"):
        register_environment("cliff", mdps.random_walk)
    with pytest.raises(ValueError, match="cannot be named 'own-v1'"):
        register_environment("own-v1", mdps.random_walk)


def test_commands(tmp_path: Path) -> None:
    file = written(Study.declared(declared(subsets={"tiny": {"lams": [0.1]}})), tmp_path)
    file.write_text(file.read_text() + "\n[subsets.tiny]\nlams = [0.1]\n")

    def offtrace(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, cwd=tmp_path)

    ran = offtrace("run", str(file), "--subset", "tiny", "--workers", "1")
    assert ran.returncode == 0
    assert ran.stdout.startswith("small-tiny: finished; units: tuning 24/24, test 8/8; 104 rows")
    assert "small-tiny: 32 units on 1 process" in ran.stderr
    assert "not begun; units: tuning 0/24" in offtrace("status", str(file)).stdout
    listed = offtrace("list").stdout
    assert "bifurcation" in listed
    assert "small-tiny: finished" in listed
    wrong = offtrace("run", "bifurcatoin")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("offtrace: study: got 'bifurcatoin'")
    assert "Traceback" not in wrong.stderr
