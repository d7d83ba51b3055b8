"""The folder of somebody else: nothing that it names is imported before it is trusted, whatever the command and the field."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offtrace import cli, reports
from offtrace.studies import DeclarationError, Study, StudyError
from offtrace.studies.spec import modules_named
from offtrace.studies.store import NAME, Store
from studies.small import declared, forget

EVIL = "evil_module"
DEEP: dict[str, Any] = {
    "name": "small",
    "question": "Does it run?",
    "task": "deep",
    "metric": "return",
    "environments": ["CartPole-v1"],
    "traces": ["Retrace"],
    "lams": [0.9],
    "ages": [5000],
    "seeds": {"test": {"first": 0, "count": 1}},
    "protocol": {"frames": 10_000},
}
GAME, TINY = f"gym/{EVIL}:Env-v0", {"tiny": {"metric": "mean rms error"}}
FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "modules": (declared(modules=[EVIL]), {"modules": [EVIL]}),
    "modules of a subset": (declared(subsets={"tiny": {"modules": [EVIL]}}), {}),
    "a trace": (declared(traces=[f"{EVIL}:Capped"], subsets=TINY), {"title": f"{EVIL}:Capped"}),
    "a trace in a table": (declared(traces=[{"name": f"{EVIL}:Capped", "lam": 0.5}]), {"title": f"{EVIL}:Capped"}),
    "a trace in a file": (declared(traces=[f"{EVIL}.py:Capped"]), {"title": f"{EVIL}.py:Capped"}),
    "a trace of a subset": (declared(subsets={"tiny": {"traces": [f"{EVIL}:Capped"]}}), {}),
    "a trace of the records alone": (declared(), {"title": f"{EVIL}:Capped"}),
    "an environment": (declared(environments=[f"{EVIL}:Env-v0"]), {"name": f"{EVIL}:Env-v0"}),
    "an environment in a table": (declared(environments=[{"name": f"{EVIL}:Env-v0"}]), {"name": f"{EVIL}:Env-v0"}),
    "an environment in a file": (declared(environments=[f"{EVIL}.py:make"]), {"name": f"{EVIL}.py:make"}),
    "an argument of an environment": (
        declared(environments=[f"GymV21Environment-v0:env_id={EVIL}:Env-v0"]),
        {"name": f"GymV21Environment-v0:env_id={EVIL}:Env-v0"},
    ),
    "a game": ({**DEEP, "environments": [{"name": GAME}], "subsets": {"tiny": {"ages": [6000]}}}, {"name": GAME}),
    "a game as text": ({**DEEP, "environments": [GAME]}, {"name": GAME}),
    "a game with an argument": ({**DEEP, "environments": [f"gym/{EVIL}:a=b"]}, {"name": f"gym/{EVIL}:a=b"}),
    "a game in a table with an argument": (
        {**DEEP, "environments": [{"name": f"gym/{EVIL}", "a": "b"}]},
        {"name": f"gym/{EVIL}:a=b"},
    ),
    "a game of a subset": ({**DEEP, "subsets": {"tiny": {"environments": [{"name": GAME}]}}}, {}),
    "a policy": (declared(protocol={**declared()["protocol"], "behavior": f"{EVIL}.py:policy"}), {}),
}
"""What study.toml says, and which modules, name of an environment or title of a trace the records have."""
READ = (["status"], ["status", "--out", "elsewhere"])
COMMANDS = (
    *READ,
    ["status", "--subset", "tiny"],
    *(
        ["report", "--no-open", "--no-figures", "-o", "page.html", *options]
        for options in ([], ["--out", "elsewhere"], ["--subset", "tiny"])
    ),
    *(
        ["run", "-q", "--workers", "0", *options]
        for options in (
            [],
            ["--out", "elsewhere"],
            ["--subset", "tiny"],
            ["--subset", "tiny", "--out", "elsewhere"],
            ["--other-code"],
            ["--rerun-changed"],
            ["--module", "another"],
        )
    ),
)


@pytest.fixture(autouse=True)
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / f"{EVIL}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop(EVIL, None)


def foreign(out: Path, field: str) -> Path:
    """The folder of a study that names a module; its digest fits what it says."""
    given, recorded = FIELDS[field]
    given = {**given, "name": field.replace(" ", "-")}
    base = Study.declared({**(declared() if given["task"] != "deep" else DEEP), "name": given["name"]}, out=out)
    places, traces = base.environments, base.traces
    if "name" in recorded:
        places = (places[0].model_copy(update={"name": recorded["name"]}),)
    if "title" in recorded:
        traces = (traces[0].model_copy(update={"title": recorded["title"]}),)
    study = replace(base, environments=places, traces=traces, modules=tuple(recorded.get("modules", ())), given=given)
    about = {"study": study.declaration, "versions": {}, "machine": "theirs"}
    text = Study.as_toml(replace(study, given={**given, "subsets": {}})) + _subsets(given)
    with Store(study.folder, study.digest).writing(about, text, study.code.about()):
        pass
    assert EVIL not in sys.modules
    return study.folder


def _subsets(given: dict[str, Any]) -> str:
    import tomli_w

    return tomli_w.dumps({"subsets": given["subsets"]}) if "subsets" in given else ""


@pytest.mark.parametrize("field", ["modules", "a trace", "a game"])
def test_nor_what_the_declaration_in_it_names(tmp_path: Path, field: str, capsys: pytest.CaptureFixture[str]) -> None:
    """FOLDER/study.toml in the place of FOLDER: it came with the folder."""
    toml = foreign(tmp_path, field) / "study.toml"
    for command, *options in COMMANDS:
        assert cli.main(["study", command, str(toml), *options]) == 2
        refused = f"names the modules {EVIL}" if field == "modules" else "list its module in `modules`"
        assert refused in capsys.readouterr().err
        assert EVIL not in sys.modules
    if field == "modules":
        Study.load(toml, trust=[EVIL])
        assert EVIL in sys.modules


@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("field", FIELDS)
def test_no_command_imports_what_a_folder_names(
    tmp_path: Path, field: str, readable: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = foreign(tmp_path / "out", field)
    if not readable:
        (folder / NAME).unlink()
    for command, *options in COMMANDS:
        status = cli.main(["study", command, str(folder), *options])
        said = capsys.readouterr().err
        assert EVIL not in sys.modules, (command, options)
        assert status == 0 or (status == 2 and not (readable and [command, *options] in READ)), (command, options)
        assert "Traceback" not in said


@pytest.mark.parametrize("readable", [True, False])
def test_the_list_imports_nothing(tmp_path: Path, readable: bool, capsys: pytest.CaptureFixture[str]) -> None:
    for field in FIELDS:
        folder = foreign(tmp_path / "out", field)
        if not readable:
            (folder / NAME).unlink()
    assert cli.main(["study", "list", "--out", str(tmp_path / "out")]) == 0
    assert EVIL not in sys.modules
    said = capsys.readouterr().out
    if readable:
        assert said.count("not begun") == len(FIELDS)
    else:  # those of a trace or an environment are refused, as is a policy; the records of one have another trace
        assert said.count(f"names the modules {EVIL}") == 2
        assert said.count("cannot be read") == len(FIELDS)
    assert all(field.replace(" ", "-") in said for field in FIELDS)


@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("field", FIELDS)
def test_nothing_in_python_imports_what_a_folder_names(tmp_path: Path, field: str, readable: bool) -> None:
    """Where Python offers what no command does."""
    folder = foreign(tmp_path / "out", field)
    if not readable:
        (folder / NAME).unlink()
    uses: list[Any] = [
        lambda: Study.load(folder, "tiny", tmp_path / "elsewhere"),
        lambda: Study.load(folder).small("tiny"),
        lambda: Study.load(folder, trust=["another"]),
        lambda: Study.load(folder).at(tmp_path / "elsewhere").run(workers=0, progress=False, other_code=True),
        lambda: reports.write(folder, tmp_path / "page.html", figures=False),
    ]
    for i, use in enumerate(uses):
        with contextlib.suppress(StudyError, ValueError):
            use()
        assert EVIL not in sys.modules, i


@pytest.mark.parametrize("field", ["modules", "modules of a subset"])
@pytest.mark.parametrize("trust", [True, [EVIL]])
def test_what_is_trusted_is_imported(tmp_path: Path, field: str, trust: bool | list[str]) -> None:
    folder = foreign(tmp_path / "out", field)
    with pytest.raises(
        StudyError, match=rf"names the modules {EVIL}, and to run it imports them.*--trust, or --module"
    ):
        Study.load(folder).run(workers=0, progress=False, other_code=True)
    with contextlib.suppress(DeclarationError):  # there is no such game in it
        Study.load(folder, trust=trust)
    assert EVIL in sys.modules


def test_a_folder_that_names_no_module_runs_without_trust(tmp_path: Path) -> None:
    given = declared(traces=["Retrace"], environments=["random-walk:states=5"])
    study = Study.declared(given, out=tmp_path / "out").run(workers=0, progress=False)
    forget(study, keep=1)
    assert Study.load(study.folder).run(workers=0, progress=False).status().finished
    (study.folder / NAME).unlink()
    assert not Study.load(study.folder).status().rows
    assert modules_named(given) == []


def test_traces_of_a_study_name_no_module() -> None:
    """Its workers would not know them, and its digest would not cover their code."""
    with pytest.raises(DeclarationError, match=rf"traces\[0\]: got '{EVIL}:Capped'.*list its module in `modules`"):
        Study.declared(declared(traces=[f"{EVIL}:Capped"]))
    assert EVIL not in sys.modules


def test_environments_name_no_module() -> None:
    for given in ({"name": GAME}, f"GymV21Environment-v0:env_id={EVIL}:Env-v0", {"name": "cliff", "a": f"{EVIL}:b"}):
        with pytest.raises(DeclarationError, match=r"environments\[0\]: got .*list its module in `modules`"):
            Study.declared({**DEEP, "environments": [given]})
    assert EVIL not in sys.modules


def test_games_take_no_arguments() -> None:
    """Gymnasium would take what stands before the colon for a module."""
    for given in (f"gym/{EVIL}:a=b", {"name": f"gym/{EVIL}", "a": "b"}):
        with pytest.raises(DeclarationError, match=r"environments\[0\]: got .* a game without arguments"):
            Study.declared({**DEEP, "environments": [given]})
    assert EVIL not in sys.modules
