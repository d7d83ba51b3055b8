"""Faults: workers that hang or die, disks that take nothing, folders of others, starts at the same time."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from offtrace import cli
from offtrace.studies import DeclarationError, Study, StudyError, tasks
from offtrace.studies.executor import Processes
from offtrace.studies.plan import Failure, Job, Plan
from studies.forked import Forks
from studies.small import declared, equal, forget, half_way, units_in

ATTEMPTS = 3
ONE = {"traces": ["Retrace"], "environments": ["random-walk:states=5"]}


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study.declared(declared(**ONE), out=tmp_path_factory.mktemp("studies")).run(workers=0, progress=False)


def test_a_unit_that_takes_too_long_is_ended_and_run_again(tmp_path: Path) -> None:
    """Its worker is stopped, as one that hangs in whatever way: it gets no answer, and its unit is run by another."""
    gate, stopped = tmp_path / "open", []
    whole = Study.declared(half_way(gate), out=tmp_path / "whole").run(workers=0, progress=False)
    study = whole.at(tmp_path)

    def stop() -> None:
        while not (units := units_in(study)) or not list(tmp_path.glob("waiting-*")):
            time.sleep(0.02)
        for pid in {int(unit.worker.split(":")[1]) for unit in units}:
            stopped.append(pid)
            os.kill(pid, signal.SIGSTOP)
        gate.touch()

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    study.run(workers=1, progress=False, patience=3.0)
    thread.join()
    assert stopped
    assert not Path(f"/proc/{stopped[0]}").exists()
    assert equal(study.records(), whole.records())


@pytest.mark.whole
def test_a_unit_that_always_takes_too_long_is_set_aside(tmp_path: Path) -> None:
    places = [f"gated:states=5,gate={tmp_path / 'never'}"]
    given = declared(modules=["studies.gated"], environments=places, traces=["Retrace"], alphas=[0.1])
    study = Study.declared({**given, "seeds": {"test": {"first": 0, "count": 2}}}, out=tmp_path)
    with pytest.raises(StudyError, match=r"1 unit was set aside.*\n.* on gated.*: it was not done within 0\.5 s"):
        study.run(workers=1, progress=False, patience=0.5)
    assert study.status().done == {"test": (0, 1)}


@pytest.mark.whole
def test_processes_that_units_start_end_with_their_worker(tmp_path: Path) -> None:
    """A child that sleeps for ever, with all open files of its worker, while the worker is killed: nobody waits for it."""
    gate = tmp_path / "open"
    places = [f"forking:states=5,gate={gate}", "random-walk:states=5"]
    given = declared(modules=["studies.gated"], environments=places, traces=["Retrace"], alphas=[0.1])
    study = Study.declared({**given, "seeds": {"test": {"first": 0, "count": 2}}}, out=tmp_path)
    with pytest.raises(StudyError, match=r"1 unit was set aside.*\n.* on forking.*ended its worker with status -9"):
        study.run(workers=1, progress=False)
    children = [int(file.name.split("-")[1]) for file in tmp_path.glob("child-*")]
    assert len(children) == ATTEMPTS
    for pid in children:
        while "Z" not in (state := _state(pid)) and state:
            time.sleep(0.02)  # a killed one that nobody has waited for stays in the table of processes


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@pytest.mark.whole
def test_units_may_use_multiprocessing(tmp_path: Path) -> None:
    given = declared(modules=["studies.gated"], environments=["pooled:states=5"], traces=["Retrace"], alphas=[0.1])
    study = Study.declared({**given, "seeds": {"test": {"first": 0, "count": 2}}}, out=tmp_path)
    assert study.run(workers=1, progress=False).status().finished


def test_a_unit_that_kills_its_workers_is_set_aside_while_others_continue(tmp_path: Path) -> None:
    gate = tmp_path / "open"
    places = [f"deadly:states=5,gate={gate}", "random-walk:states=5", "random-walk:states=7"]
    given = declared(modules=["studies.gated"], environments=places, traces=["Retrace"], alphas=[0.1])
    study = Study.declared({**given, "seeds": {"test": {"first": 0, "count": 2}}}, out=tmp_path)
    with pytest.raises(
        StudyError, match=r"1 unit was set aside.*\n  Retrace .* on deadly.*ended its worker with status -9 .SIGKILL"
    ):
        study.run(workers=1, progress=False)
    assert study.status().done == {"test": (2, 3)}
    (words,) = study.status().failed
    assert words.startswith("Retrace λ = 0.5 α = 0.1 on deadly:states=5")
    assert f"  set aside: {words}" in str(study.status())
    gate.touch()
    assert study.run(workers=0, progress=False).status().finished
    assert not study.status().failed


@pytest.mark.whole
def test_a_unit_that_raises_in_its_workers_is_set_aside_while_others_continue(tmp_path: Path) -> None:
    gate = tmp_path / "open"
    places = [f"raising:states=5,gate={gate}", "random-walk:states=5"]
    given = declared(modules=["studies.gated"], environments=places, traces=["Retrace"])
    study = Study.declared(given, out=tmp_path)
    with pytest.raises(
        StudyError, match="3 units were set aside; the others are done, but for tests that wait for them"
    ):
        study.run(workers=1, progress=False)
    assert (tmp_path / "tried").read_text() == 3 * ATTEMPTS * "x"
    assert study.status().done == {"tuning": (3, 6), "test": (1, 2)}
    for alpha, words in zip((0.1, 0.3, 0.5), sorted(study.status().failed), strict=True):
        assert words == f"Retrace λ = 0.5 α = {alpha} on {places[0]}: it raised ValueError: no walk of 5"
    gate.touch()
    assert study.run(workers=1, progress=False).status().finished
    assert not study.status().failed


def test_commands_and_the_page_say_which_units_raised_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(job: Job) -> Any:
        if job.unit.environment == "random-walk:states=7" and job.unit.phase == "tuning":
            raise ValueError("<no> walk of 7\x1b[2J\ntoday")
        return whole(job)

    whole, file = tasks.TASKS["evaluation"], tmp_path / "study.toml"
    study = Study.declared(declared(traces=["Retrace"]), out=tmp_path)
    file.write_text(study.as_toml())
    run = ["study", "run", str(file), "--out", str(tmp_path), "--workers", "0", "-q"]
    monkeypatch.setitem(tasks.TASKS, "evaluation", broken)
    for _ in range(2):  # the second run tries them again
        assert cli.main(run) == 2
        said = capsys.readouterr().err
        assert "3 units were set aside" in said
        assert said.count("on random-walk:states=7: it raised ValueError: <no> walk of 7") == 3
        assert f"The tracebacks are in {study.folder / 'failed'}" in said
    kept = [text.read_text() for text in (study.folder / "failed").iterdir()]
    assert len(kept) == 3
    assert all("Traceback" in text and "today" in text for text in kept)

    assert cli.main(["study", "status", str(study.folder)]) == 0
    said = capsys.readouterr().out
    assert "begun; units: tuning 3/6, test 1/2" in said
    assert said.count("  set aside: Retrace") == 3
    assert "\x1b" not in said

    page = tmp_path / "page.html"
    report = ["study", "report", str(study.folder), "-o", str(page), "--no-open", "--no-figures"]
    assert cli.main(report) == 0
    text = page.read_text()
    assert "3 units were set aside; the rows are missing on this page" in text
    assert text.count("on random-walk:states=7: it raised ValueError: &lt;no&gt; walk of 7") == 3

    monkeypatch.setitem(tasks.TASKS, "evaluation", whole)
    assert cli.main(run) == 0
    assert "set aside" not in capsys.readouterr().out
    assert cli.main(report) == 0
    assert "set aside" not in page.read_text()


def test_a_study_of_which_every_unit_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no page then, and the report says why."""

    def broken(job: Job) -> Any:
        raise ValueError("no walk")

    study = Study.declared(declared(**ONE), out=tmp_path)
    monkeypatch.setitem(tasks.TASKS, "evaluation", broken)
    with pytest.raises(StudyError, match="3 units were set aside"):
        study.run(workers=0, progress=False)
    assert cli.main(["study", "report", str(study.folder), "--no-open"]) == 2
    said = capsys.readouterr().err
    assert "there are no rows to report" in said
    assert said.count("set aside: Retrace") == 3


def test_workers_that_are_killed_while_they_start_do_not_count() -> None:
    plan = Plan(Study.declared(declared(**ONE)))
    unit, pool, answers = next(plan.left()), Processes(1, 60.0), []
    try:
        for _ in range(4):
            worker = pool.workers[0]
            worker.process.kill()
            while pool.workers[0] is worker:
                assert pool.answers(0.1) == []
        pool.submit(plan.job(unit))
        while not answers:
            answers = pool.answers(0.1)
    finally:
        pool.close()
    assert answers[0][0].unit == unit
    assert not isinstance(answers[0][0], Failure)


def test_workers_that_cannot_start_end_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offtrace.studies.executor.sys.executable", "/bin/false")
    pool = Processes(1, 60.0)
    try:
        with pytest.raises(StudyError, match=r"20 workers have ended before they began a unit, .* with status 1"):
            exhaust(pool)
    finally:
        pool.close()


def exhaust(pool: Processes) -> None:
    """Take what a pool answers until it raises."""
    while True:
        pool.answers(0.1)


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
    for limit in (0, 2000, 8000, 30_000):
        status, said = forks.run(*run, limit=limit)
        assert status == 2
        assert "cannot write to" in said
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
    """The process is killed before it changes anything in the folder, whose files and which itself are read only."""
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
    forget(Study.load(folder), keep=1)
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
