"""The command line: parsing, the forms of output, and the progress bar that only a terminal sees."""

import io
import json
import subprocess
import sys

import pytest

import offtrace
from offtrace import cli
from offtrace.operators.auditing import audit_table as audit

ROWS = [
    audit.Row("a | b", "Lemma 0", audit.REFUTED, "1 > 0", "one state", "online.a", 0.1),
    audit.Row("c", "Theorem 0", audit.HOLDS, "0 ≤ 1", "two states", "online.b", 0.2),
]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    def stand_in(progress=None, **_):
        if progress:
            progress(0, 2, "a | b")
            progress(2, 2, "")
        return ROWS

    monkeypatch.setattr(audit, "audit", stand_in)


def test_text(capsys):
    assert cli.main(["audit"]) == 0
    out, err = capsys.readouterr()
    assert "Lemma 0" in out
    assert "2 statements: 1 refuted" in out
    assert err == ""  # no bar where stderr is not a terminal


def test_json(capsys):
    assert cli.main(["audit", "--json"]) == 0
    assert [row["verdict"] for row in json.loads(capsys.readouterr().out)] == ["refuted", "holds on everything tried"]


def test_markdown_to_a_file(tmp_path, capsys):
    path = tmp_path / "audit.md"
    assert cli.main(["audit", "--markdown", "--output", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert path.read_text(encoding="utf-8").startswith("# The paper, audited")


def test_progress_bar_on_a_terminal(monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm")  # rich draws no bar on a dumb one
    assert cli.main(["audit"]) == 0
    assert "0/2 a | b" in err.getvalue()
    assert err.getvalue().endswith("\r\x1b[1A\x1b[2K")  # one line up, and that line erased: nothing of the bar stays
    out = capsys.readouterr().out
    assert "━" not in out
    assert "\x1b" not in out


def test_whoever_names_no_command_reads_which_there_are(capsys):
    assert cli.main([]) == 2
    assert "usage: offtrace" in (out := capsys.readouterr().out)
    assert "audit" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["audit", "--json", "--markdown"], "not allowed together"),
        (["audit", "--jsn"], "--json"),
        (["unknown"], "usage: offtrace"),
        (["audti"], "did you mean 'audit'?"),
        (["logs", "evalute"], "did you mean 'logs evaluate'?"),
    ],
)
def test_bad_arguments(arguments, words, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_help_of_every_command_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([*command.split(), "--help"])
    assert stop.value.code == 0
    assert f"`offtrace {command}" in capsys.readouterr().out


def test_a_missing_file_is_a_sentence(tmp_path, capsys):
    (tmp_path / "policy.npz").touch()
    given = ["logs", "describe", str(tmp_path / "no.csv"), "--policy", str(tmp_path / "polcy.npz")]
    assert cli.main(given) == 2
    assert capsys.readouterr().err == (
        f"offtrace: there is no file {tmp_path / 'polcy.npz'} (did you mean 'policy.npz'?)\n"
    )


def test_a_python_file_can_import_its_neighbours(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "weights_of_mine.py").write_text("LAM = 0.25\n")
    (tmp_path / "rules_of_mine.py").write_text(
        "import offtrace as ot\nfrom weights_of_mine import LAM\nmine = ot.RBIS(lam=LAM)\n"
    )
    from offtrace.cli.rule_options import named_or_in_file

    assert named_or_in_file(f"{tmp_path}/rules_of_mine.py:mine", {}) == offtrace.RBIS(lam=0.25)


def test_columns_of_repeated_options_add_up():
    import tyro

    from offtrace.cli.log_options import Dataset
    from offtrace.logs import Columns

    given = ["table.csv", "--columns", "state=x,y", "mu=p", "--columns", "reward=r"]
    assert tyro.cli(Dataset, args=given).named() == Columns(state=("x", "y"), mu="p", reward="r")


def test_version(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"offtrace {offtrace.__version__}\n"


def test_as_a_program():
    done = subprocess.run([sys.executable, "-m", "offtrace", "--help"], capture_output=True, text=True, check=True)
    assert "audit" in done.stdout
