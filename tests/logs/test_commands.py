"""`offtrace logs evaluate` with its newer options, as somebody who has only the help would use them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from logs import settings
from offtrace import cli, mdps
from offtrace.cli.errors import in_words_of_the_command
from offtrace.logs import simulate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pl = pytest.importorskip("polars")
    path = tmp_path_factory.mktemp("logs")
    mdp, mu, pi, _ = settings.near()
    logs = simulate(mdp, mu, seed=0, episodes=200)
    episode = np.repeat(np.arange(logs.episodes), np.diff(logs.starts))
    columns = {"episode": episode, "step": np.arange(len(logs)) - logs.starts[episode]}
    names = ("state", "action", "reward", "terminated", "truncated", "log_mu")
    pl.DataFrame(columns | {name: getattr(logs, name) for name in names}).write_parquet(path / "l.parquet")
    np.savez(path / "pi.npz", probabilities=pi)
    np.savez(path / "other.npz", probabilities=mdps.random_policy(mdp, np.random.default_rng(9), 20.0))
    np.save(path / "first.npy", np.array([0, 1]))
    (path / "rules.py").write_text("import offtrace as ot\n\nmine = ot.Retrace(lam=0.5)\nnumber = 3\n")
    return path


def run(folder: Path, capsys: pytest.CaptureFixture[str], *more: str, status: int = 0) -> str:
    given = [
        "logs",
        "evaluate",
        str(folder / "l.parquet"),
        "--columns",
        "log_mu=log_mu",
        "--gamma",
        "0.95",
        "--resamples",
        "50",
    ]
    found = cli.main([*given, *(text.replace("{folder}", str(folder)) for text in more)])
    said = capsys.readouterr()
    assert found == status, said.err
    return said.err if status else said.out


def test_json_is_all_that_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(folder, capsys, "--policy", "{folder}/pi.npz", "--json"))
    assert found["headline"] == "direct method"
    assert found["behavior"]["low"] < found["behavior"]["value"] < found["behavior"]["high"]
    first = found["estimates"][0]
    assert first["estimator"] == "direct method"
    assert first["low"] < first["estimate"] < first["high"]
    assert any(check["kind"] == "V(μ)" and not check["failed"] for check in first["checks"])


def test_several_policies_are_ranked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--policy", "{folder}/pi.npz", "{folder}/other.npz", "--estimators", "fitted"]
    assert "2 policies by" in run(folder, capsys, *options)
    found = json.loads(run(folder, capsys, *options, "--json"))
    assert sorted(found["ranking"]) == ["other", "pi"]
    assert len(found["differences"]) == 1


def test_traces_from_a_file_and_other_first_states(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--policy", "{folder}/pi.npz", "--estimators", "fitted", "--trace", "{folder}/rules.py:mine"]
    by_array = run(folder, capsys, *given, "--initial", "{folder}/first.npy")
    assert "fitted, Retrace, λ = 0.5" in by_array
    assert run(folder, capsys, *given, "--initial", "0", "1") == by_array
    assert "λ = 0.7" in run(folder, capsys, *given, "--lam", "0.7")
    assert "number in" in run(folder, capsys, *given[:-1], "{folder}/rules.py:number", status=2)
    assert "makes no 'mind' (did you mean 'mine'?)" in run(
        folder, capsys, *given[:-1], "{folder}/rules.py:mind", status=2
    )
    assert "--initial 99: there is no such state" in run(folder, capsys, *given, "--initial", "99", status=2)


def test_errors_are_in_the_words_of_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(folder, capsys, "--policy", "{folder}/pi.npz", "--columns", "log_mu=", "mu=p", status=2)
    assert "--columns mu=…" in said
    assert "Columns(" not in said
    assert in_words_of_the_command('on_error="drop" (--on-error drop)') == "--on-error drop"
    assert "--confidence must lie" in run(folder, capsys, "--policy", "{folder}/pi.npz", "--confidence", "2", status=2)
