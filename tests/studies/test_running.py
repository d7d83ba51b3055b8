"""Real processes, really killed: nothing is lost, and nothing is counted twice."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import offtrace as ot
from offtrace import cli, mdps
from offtrace.studies import DeclarationError, Study, register_environment
from offtrace.studies.store import Store
from offtrace.traces.registry import unregister
from studies.forked import Forks, Started
from studies.small import declared, equal, half_way, units_in


@pytest.fixture(scope="session")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A path that is part of the declaration, and so the same for all."""
    return tmp_path_factory.mktemp("gate") / "open"


@pytest.fixture(scope="session")
def unbroken(gate: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study.declared(half_way(gate), out=tmp_path_factory.mktemp("unbroken")).run(workers=0, progress=False)


@pytest.fixture
def study(unbroken: Study, gate: Path, tmp_path: Path) -> Study:
    """The same elsewhere, not begun, with its declaration in a file and with the gate closed."""
    gate.unlink(missing_ok=True)
    (tmp_path / "study.toml").write_text(unbroken.as_toml(), encoding="utf-8")
    return unbroken.at(tmp_path)


def start(forks: Forks, study: Study, *options: str, **how: Any) -> Started:
    """`offtrace study run` in a process of its own."""
    return forks.start("study", "run", str(study.out / "study.toml"), "--out", str(study.out), "-q", *options, **how)


def half_done(forks: Forks, study: Study, *options: str) -> Started:
    """The same, once some of its units are written and the others wait."""
    process = start(forks, study, *options)
    while len(units_in(study)) < 4 and process.poll() is None:
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()
    return process


def workers(study: Study) -> list[int]:
    return [int(pid) for pid in {unit.worker.split(":")[1] for unit in units_in(study)}]


def as_unbroken(study: Study, unbroken: Study) -> bool:
    """Whether nothing is lost, and nothing is counted twice."""
    assert equal(study.records(), unbroken.records())
    assert equal(study.curves(), unbroken.curves())
    assert not study.status().problems
    written = [unit.id for unit in units_in(study)]
    return len(set(written)) == len(written)


def test_killed_before_every_commit(forks: Forks, tmp_path: Path) -> None:
    """One folder; each run is killed a commit later than the one before, until none is left."""
    whole = Study.declared(declared(traces=["Retrace"], environments=["random-walk:states=5"]))
    study = whole.run(workers=0, progress=False, out=tmp_path / "whole").at(tmp_path)
    (tmp_path / "study.toml").write_text(study.as_toml(), encoding="utf-8")
    begun, kills = [], 0
    while True:
        kills += 1
        process = start(forks, study, "--workers", "0", kill=min(kills, 2), at="commits", below=str(study.folder))
        process.communicate()
        if process.returncode != -signal.SIGKILL:
            break
        begun.append(len(units_in(study)))
        assert begun == sorted(begun)  # nothing that was committed is lost
    assert process.returncode == 0
    assert begun == [0, 1, 2, 3]  # of four units
    assert study.status().finished
    assert as_unbroken(study, whole.at(tmp_path / "whole"))


def test_workers_end_with_the_coordinator_and_another_goes_on(
    forks: Forks, study: Study, unbroken: Study, gate: Path
) -> None:
    process = half_done(forks, study, "--workers", "1")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    while any("worker" in _command(pid) for pid in workers(study)):
        time.sleep(0.02)
    gate.touch()
    study.run(workers=0, progress=False)
    assert as_unbroken(study, unbroken)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.whole
def test_killed_workers_are_replaced_and_their_number_does_not_matter(
    study: Study, unbroken: Study, gate: Path
) -> None:
    """Rows are those of one process, in which all units ran one after another."""
    killed = []

    def kill() -> None:
        while len(units_in(study)) < 4:
            time.sleep(0.02)
        for pid in workers(study):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        gate.touch()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    study.run(progress=False, workers=2)
    thread.join()
    assert killed
    assert study.status().workers > len(killed)
    assert as_unbroken(study, unbroken)


SIGNALS = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "interrupted by SIGTERM",
    signal.SIGHUP: "interrupted by SIGHUP",
}


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_leave_everything_resumable(
    forks: Forks, study: Study, unbroken: Study, number: signal.Signals
) -> None:
    process = half_done(forks, study, "--workers", "1")
    process.send_signal(number)
    said = process.communicate()
    assert process.returncode == 128 + number
    assert f"{SIGNALS[number]}; the same command continues from here" in said
    assert not study.status().finished
    study.run(workers=0, progress=False)
    assert as_unbroken(study, unbroken)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_signal_while_a_unit_is_written(
    study: Study, unbroken: Study, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes before or after the commit of the second unit: what is committed stays, and is not run again."""
    add, count = Store.add, itertools.count(1)

    def interrupted(store: Store, *given: Any) -> None:
        if when == "after" or next(count) == 1:
            add(store, *given)
            if when == "before" or next(count) == 1:
                return
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "add", interrupted)
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            study.run(workers=0, progress=False)
    assert len(units_in(study)) == {"before": 1, "after": 2}[when]
    study.run(workers=0, progress=False)
    assert as_unbroken(study, unbroken)


@pytest.mark.whole
def test_from_a_script_without_a_main_guard(tmp_path: Path) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from studies.small import declared
from offtrace.studies import Study
print(Study.declared(declared()).run(out={str(tmp_path)!r}, workers=1).records().height)
"""
    (tmp_path / "script.py").write_text(script)
    found = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "104"
    assert "32/32 units done" in found.stderr


HALVED = '''
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


def test_a_trace_and_an_mdp_of_ones_own_beside_the_declaration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a worker, too, which finds both."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "halved_traces.py").write_text(HALVED)
    mdps.random_walk(5).save(mine / "walk.npz")
    given = declared(modules=["halved_traces"], environments=["walk.npz"], traces=["Halved"], lams=[1.0])
    file = mine / "own.toml"
    file.write_text(tomli_w.dumps(given))
    try:
        own = Study.load(file, out=tmp_path)
        rows = own.run(workers=1, progress=False).records()
        assert own.environments[0].name.startswith("walk.npz:content=sha256-")
        assert Study.load(own.folder).records().equals(rows)

        mdps.random_walk(7).save(mine / "walk.npz")
        assert Study.load(file, out=tmp_path).folder != own.folder  # other numbers are another study
    finally:  # other tests take all rules that are listed
        unregister(type(ot.trace("Halved")))
    known = declared(environments=["random-walk:states=5"], traces=["Q(λ)"])
    assert rows["value"].equals(Study.declared(known, out=tmp_path).run(workers=0, progress=False).records()["value"])

    given = declared(environments=["walk.npz"], traces=["Retrace"])
    with pytest.raises(DeclarationError, match=r"holds another MDP \(sha256-.*\) than the study was declared with"):
        Study.declared(given | {"environments": [own.environments[0].name]})
    with pytest.raises(DeclarationError, match=r"no file maze\.npz, neither here nor beside.*mdp\.save\('maze\.npz'\)"):
        Study.declared(given | {"environments": ["maze.npz"]})
    with pytest.raises(DeclarationError, match="takes no arguments, got gamma"):
        Study.declared(given | {"environments": ["walk.npz:gamma=0.5"]})
    (mine / "other.npz").write_text("no arrays")
    with pytest.raises(DeclarationError, match=r"other\.npz is not a saved MDP: it is no \.npz file"):
        Study.declared(given | {"environments": ["other.npz"]})


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
    own = Study.declared(given, out=tmp_path).run(workers=0, progress=False).records()
    known = Study.declared(declared(environments=["random-walk:states=5"], traces=["Retrace"]), out=tmp_path)
    assert own["environment"].unique().to_list() == ["own-walk:long=5"]
    assert own["value"].equals(known.run(workers=0, progress=False).records()["value"])
    with pytest.raises(DeclarationError, match=r"environments\[0\].*arguments long \(did you mean 'long'\?\)"):
        Study.declared(given | {"environments": ["own-walk:lang=5"]})


def test_gymnasium_ids_that_a_module_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium")
    (tmp_path / "own_games.py").write_text(
        """
import gymnasium, numpy as np

class Walk(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Discrete(4), gymnasium.spaces.Discrete(2)
    def __init__(self, long=4):
        ends = lambda s: [(1.0, s, float(s == long), s in (0, long))]
        self.P = {s: {0: ends(max(s - 1, 0)), 1: ends(min(s + 1, long))} for s in range(long + 1)}
        self.initial_state_distrib = np.eye(long + 1)[long // 2]

for name in ("own/Walk-v0", "own/Walks"):
    gymnasium.register(name, Walk)
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = declared(
        modules=["own_games"], environments=["own/Walk-v0", "own/Walks:long=6,gamma=0.9"], traces=["Retrace"]
    )
    rows = Study.declared(given, out=tmp_path).run(workers=0, progress=False).records()
    assert rows["environment"].unique().sort().to_list() == ["own/Walk-v0", "own/Walks:long=6,gamma=0.9"]
    with pytest.raises(DeclarationError, match=r"environments\[0\].*a Gymnasium id such as"):
        Study.declared(given | {"environments": ["own/Walk"]})


def test_names_of_environments_are_taken_once() -> None:
    with pytest.raises(ValueError, match="there is an environment named 'cliff' already"):
        register_environment("cliff", mdps.random_walk)
    with pytest.raises(ValueError, match="cannot be named 'own-v1'"):
        register_environment("own-v1", mdps.random_walk)


def test_commands(
    forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.toml"
    file.write_text(Study.declared(declared()).as_toml() + "\n[subsets.tiny]\nlams = [0.1]\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["study", "run", str(file), "--subset", "tiny", "--workers", "0"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("small-tiny: finished; units: tuning 24/24, test 8/8; 104 rows")
    assert "small-tiny: 0/32 units done on this process" in err

    def study(*arguments: str) -> tuple[int | None, str]:
        return forks.run("study", *arguments, cwd=str(tmp_path))

    assert "not begun; units: tuning 0/24" in study("status", str(file))[1]
    listed = study("list")[1]
    assert "bifurcation" in listed
    assert "small-tiny: finished" in listed
    status, said = study("run", "bifurcatoin")
    assert status == 2
    assert said.startswith("offtrace: study: got 'bifurcatoin'")
    assert "Traceback" not in said
