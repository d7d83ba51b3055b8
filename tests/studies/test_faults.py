"""Faults: workers that hang or die, disks that take nothing, folders of others, starts at the same time."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from offtrace.studies import DeclarationError, Study, StudyError
from offtrace.studies.local_processes import LocalPool
from offtrace.studies.plan import Plan
from studies.forked import Forks
from studies.small import declared, equal, exhaust, half_way

ONE = {"traces": ["Retrace"], "environments": ["random-walk:states=5"]}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study.declared(declared(**ONE), out=tmp_path_factory.mktemp("studies")).run(workers=0, progress=False)


def test_a_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    gate, stopped = tmp_path / "open", []
    whole = Study.declared(half_way(gate), out=tmp_path / "whole").run(workers=0, progress=False)
    study = whole.at(tmp_path)

    def stop() -> None:
        while not (found := {row for part in study.folder.glob("units/part-*") for row in workers_in(part)}):
            time.sleep(0.02)
        for pid in found:
            stopped.append(pid)
            os.kill(pid, signal.SIGSTOP)
        gate.touch()

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    with pytest.warns(UserWarning, match="has given no sign of life for 3 s in Retrace .*: it is replaced") as said:
        study.run(workers=1, progress=False, patience=3.0)
    thread.join()
    assert any(f"worker {stopped[0]} has" in str(each.message) for each in said)
    assert not Path(f"/proc/{stopped[0]}").exists()
    assert equal(study.records(), whole.records())


def workers_in(part: Path) -> set[int]:
    import polars as pl

    return {int(worker.split(":")[1]) for worker in pl.read_parquet(part)["worker"]}


def test_a_unit_that_kills_its_workers_is_set_aside_while_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offtrace.studies.local_processes.ATTEMPTS", 2)
    gate = tmp_path / "open"
    places = [f"deadly:states=5,gate={gate}", "random-walk:states=5", "random-walk:states=7"]
    given = declared(modules=["studies.gated"], environments=places, traces=["Retrace"], alphas=[0.1])
    study = Study.declared({**given, "seeds": {"test": {"first": 0, "count": 2}}}, out=tmp_path)
    with pytest.raises(
        StudyError, match=r"1 unit was set aside.*\n  Retrace .* on deadly.*ended its worker 2 times.*SIGKILL"
    ):
        study.run(workers=1, progress=False)
    assert study.status().done == {"test": (2, 3)}
    (words,) = study.status().failed
    assert words.startswith("Retrace λ = 0.5 α = 0.1 on deadly:states=5")
    assert f"  set aside: {words}" in str(study.status())
    gate.touch()
    assert study.run(workers=0, progress=False).status().finished
    assert not study.status().failed


def test_workers_that_are_killed_while_they_start_do_not_count() -> None:
    plan = Plan(Study.declared(declared(**ONE)))
    pool, found = LocalPool(1), []
    try:
        pool.submit(plan.job(next(plan.left())))
        for _ in range(4):
            worker = pool.workers[0]
            worker.process.kill()
            while pool.workers[0] is worker:
                assert pool.answered(1.0) == []
        while not found:
            found = pool.answered(1.0)
    finally:
        pool.close()
    assert found[0][0].unit == next(plan.left())
    assert not pool.deaths


def test_workers_that_cannot_start_end_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offtrace.studies.local_processes.sys.executable", "/bin/false")
    plan = Plan(Study.declared(declared(**ONE)))
    pool = LocalPool(1)
    try:
        pool.submit(plan.job(next(plan.left())))
        with pytest.raises(
            StudyError, match="20 workers have ended before they began a unit, the last one with status 1"
        ):
            exhaust(pool)
    finally:
        pool.close()


def test_a_folder_that_cannot_be_made(forks: Forks, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, said = forks.run(
        "study", "run", "random-walk", "--subset", "ci", "--workers", "0", "--out", f"{tmp_path}/file"
    )
    assert status == 2
    assert said.startswith(f"offtrace: cannot write to {tmp_path}/file/random-walk-ci-")
    assert said.count("\n") == 1


def test_a_disk_that_is_full_when_records_or_the_report_are_written(
    forks: Forks, finished: Study, tmp_path: Path
) -> None:
    (tmp_path / "study.toml").write_text(finished.as_toml())
    run = ["study", "run", str(tmp_path / "study.toml"), "--out", str(tmp_path), "--workers", "0", "-q"]
    for limit, words in ((0, "cannot write to"), (2000, "cannot write to"), (8000, "cannot write to")):
        status, said = forks.run(*run, limit=limit)
        assert status == 2
        assert words in said
        assert said.count("\n") == 1, said
        assert not list(tmp_path.rglob("*.tmp"))
    assert not finished.at(tmp_path).status().problems
    assert equal(finished.at(tmp_path).run(workers=0, progress=False).records(), finished.records())
    page = tmp_path / "page.html"
    status, said = forks.run("study", "report", str(finished.folder), "-o", str(page), "--no-open", limit=8000)
    assert (status, said) == (2, f"offtrace: cannot write {page}: files may not become so large\n")
    assert not page.exists()
    assert not list(tmp_path.rglob(".page*"))


@pytest.mark.parametrize("command", ["run", "status", "report", "list"])
def test_a_finished_study_can_be_read_where_nothing_can_be_written(
    forks: Forks, finished: Study, tmp_path: Path, command: str
) -> None:
    """The process is killed before it changes anything in the folder."""
    options = {"report": ["-o", str(tmp_path / "page.html"), "--no-open", "--no-figures"], "run": ["-q"]}
    words = (
        [command, str(finished.folder), *options.get(command, [])]
        if command != "list"
        else ["list", "--out", str(finished.out)]
    )
    status, said = forks.run("study", *words, kill=1, below=str(finished.out))
    assert status == 0, said
    assert {"run": "small: finished", "report": "The page: "}.get(command, "small") in said


def test_several_starts_at_the_same_time(forks: Forks, finished: Study, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(finished.as_toml())
    for i in range(6):
        out = tmp_path / str(i)
        command = ["study", "run", str(tmp_path / "study.toml"), "--out", str(out), "--workers", "0", "-q"]
        processes = [forks.start(*command) for _ in range(4)]
        said = [process.communicate() for process in processes]
        assert any(process.returncode == 0 for process in processes)
        for process, words in zip(processes, said, strict=True):
            assert process.returncode == 0 or "is running this study" in words, words
        assert equal(finished.at(out).records(), finished.records())
        assert not finished.at(out).status().problems


EVIL = """
from pathlib import Path
with Path({marker!r}).open("a") as file:
    file.write(__name__ + " ")
"""
WALKS = """
from offtrace.mdps import random_walk
from offtrace.studies import register_environment

def walk(states: int):
    return random_walk(states)

register_environment("foreign-walk", walk)
"""


def test_reading_the_folder_of_others_imports_nothing(forks: Forks, tmp_path: Path) -> None:
    package, marker, here = tmp_path / "foreign_package", tmp_path / "marker", {"cwd": str(tmp_path)}
    package.mkdir()
    (package / "__init__.py").write_text(EVIL.format(marker=str(marker)))
    (package / "walks.py").write_text(EVIL.format(marker=str(marker)) + WALKS)
    given = declared(environments=["foreign-walk:states=5"], traces=["Retrace"], modules=["foreign_package.walks"])
    (tmp_path / "study.toml").write_text(as_toml(given))
    run = ["study", "run", "study.toml", "--out", "out", "--workers", "0", "-q"]
    assert forks.run(*run, **here)[0] == 0  # the file is the user's own
    marker.unlink()
    (folder,) = (tmp_path / "out").iterdir()
    for words in (
        ["list", "--out", "out"],
        ["status", str(folder)],
        ["report", str(folder), "--no-open", "--no-figures"],
    ):
        status, said = forks.run("study", *words, **here)
        assert status == 0, said
    next((folder / "units").iterdir()).unlink()
    status, said = forks.run("study", "run", str(folder), "--workers", "0", **here)
    assert status == 2
    assert "names the modules foreign_package.walks, and to run it imports them, which executes their code" in said
    assert forks.run("study", "run", str(folder), "--workers", "0", "--module", "another", **here)[0] == 2
    assert not marker.exists()
    assert forks.run("study", "run", str(folder), "--workers", "0", "--module", "foreign_package.walks", **here)[0] == 0
    assert marker.exists()


def as_toml(given: dict[str, Any]) -> str:
    import tomli_w

    return tomli_w.dumps(given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"question": "Which \x1b[2Jtrace?"},
            r"question: got 'Which \\x1b\[2Jtrace\?'; allowed: a text without control characters",
        ),
        ({"environments": ["random-walk:states=5\x07"]}, r"environments\[0\]: got .* without control characters"),
        ({"traces": [{"name": "Truncated IS", "bo\x00und": 1.0}]}, r"traces\[0\]: got .* without control characters"),
        ({"about": "\x9b2J"}, "about: got .* without control characters"),
    ],
)
def test_control_characters(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        Study.declared(declared(**changes))


def test_seeds_near_the_largest_integer(tmp_path: Path) -> None:
    def seeds(first: int) -> dict[str, Any]:
        return {"tuning": {"first": 0, "count": 1}, "test": {"first": first, "count": 2}}

    last = Study.declared(declared(**ONE, seeds=seeds(2**63 - 2)), out=tmp_path).run(workers=0, progress=False)
    assert last.records().filter(phase="test")["seed"].to_list() == [2**63 - 2, 2**63 - 1]
    with pytest.raises(
        DeclarationError, match=r"seeds\.test: .* seeds below 2\^63: the last one is 9223372036854775808"
    ):
        Study.declared(declared(**ONE, seeds=seeds(2**63 - 1)))
    deep = Study.load("minatar").given
    with pytest.raises(DeclarationError, match=r"seeds\.test: .* seeds below 2\^32: the last one is 4294967296"):
        Study.declared({**deep, "subsets": {}, "seeds": {"test": {"first": 2**32 - 1, "count": 2}}})
