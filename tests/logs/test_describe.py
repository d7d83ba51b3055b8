"""Descriptions against counting by hand; the command line as a person has it."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from logs.test_read import drawn
from offtrace import cli
from offtrace.cli.log_policies import load_policy
from offtrace.logs import Columns, describe, evaluate, read

NEXT = Columns(mu="mu", next_state="next")


def test_what_logs_are_like() -> None:
    rows = drawn(3, with_next=True)
    found = describe(read(pl.DataFrame(rows), columns=NEXT, states=7))
    lengths = sorted(sum(row["episode"] == e for row in rows) for e in range(40))
    assert (found.episodes, found.steps) == (40, len(rows))
    assert found.lengths == (lengths[0], (lengths[19] + lengths[20]) / 2, lengths[-1])
    assert found.terminated == sum(row["terminated"] for row in rows) / 40
    assert (found.states, found.states_seen, found.actions, found.actions_seen) == (7, 5, 3, 3)
    assert found.rewards[0] == min(row["reward"] for row in rows)
    assert found.mu is not None
    assert found.mu[0] == pytest.approx(min(row["mu"] for row in rows))
    assert found.target is None
    assert "7 occur" in str(found)


def test_what_logs_say_about_a_target() -> None:
    rows = drawn(4, with_next=True)
    for row in rows:  # state 4 is only seen where an episode was cut
        if row["state"] == 4:
            row["state"] = 0
        row["next"] = 4 if row["truncated"] and not row["terminated"] else 0
    rows = [row for row in rows if (row["state"], row["action"]) != (2, 1)]
    kept: dict[int, int] = {}
    for row in rows:
        row["step"] = kept[row["episode"]] = kept.get(row["episode"], -1) + 1
    pi = np.array([[0.5, 0.5, 0.0]] * 6)
    logs = read(pl.DataFrame(rows), columns=NEXT, states=6, truncated="at end")
    found = describe(logs, pi).target
    assert found is not None
    assert found.could == sum(row["action"] < 2 for row in rows) / len(rows)
    first = next(row for row in rows if row["action"] == 2)
    assert found.first_not[0] == f"step {first['step']} of episode {first['episode']}"
    taken = {(s, a) for s in range(5) for a in range(2)}  # state 5 is in no log
    seen = {(row["state"], row["action"]) for row in rows}
    assert (found.pairs, found.unseen) == (len(taken), len(taken - seen))
    assert found.first_unseen == ("(2, 1)", "(4, 0)", "(4, 1)")
    weights = dict.fromkeys(kept, 1.0)
    for row in rows:
        weights[row["episode"]] *= pi[row["state"], row["action"]] / row["mu"]
    w = np.array(list(weights.values()))
    assert found.effective == pytest.approx(w.sum() ** 2 / (w**2).sum(), rel=1e-12)
    assert found.largest == pytest.approx(w.max() / w.sum(), rel=1e-12)


def test_weights_of_long_episodes_do_not_overflow() -> None:
    n = 5000
    frame = pl.DataFrame(
        {"episode": [0] * n + [1] * n, "step": [*range(n)] * 2, "action": 0, "reward": 0.0, "mu": 0.01}
    )
    frame = frame.with_columns(state=0, terminated=pl.col("step") == n - 1)
    logs = read(frame, columns=Columns(mu="mu"), truncated="never")
    found = describe(logs, [[1.0]]).target  # W = 100^5000, twice
    assert found is not None
    assert found.effective == pytest.approx(2.0)
    assert found.largest == pytest.approx(0.5)


def test_features_are_described_too() -> None:
    rows = drawn(5)
    logs = read(pl.DataFrame(rows).cast({"state": float}), columns=Columns(mu="mu"))
    found = describe(logs, lambda states: np.tile([0.2, 0.3, 0.5], (len(states), 1)))
    assert (found.states, found.states_seen) == (0, 1)
    assert found.target is not None
    assert (found.target.could, found.target.pairs) == (1.0, None)


@pytest.fixture
def files(tmp_path: Path) -> Any:
    """A log with names and one bad reward, and a policy that has the names in another order."""
    rows = drawn(6, 200, with_next=True)
    rows[7]["reward"] = float("nan")
    frame = pl.DataFrame(rows).with_columns(action=pl.col("action").replace_strict([0, 1, 2], ["a", "b", "c"]))
    frame.rename({"mu": "p"}).write_parquet(tmp_path / "log.parquet")
    pi = np.random.default_rng(0).dirichlet(np.ones(3), 5)
    np.savez(tmp_path / "pi.npz", probabilities=pi[:, [2, 0, 1]], actions=np.array(["c", "a", "b"]))
    return tmp_path, rows, pi


def test_commands(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder, rows, pi = files
    log, policy = str(folder / "log.parquet"), str(folder / "pi.npz")
    options = ["--columns", "mu=p", "next_state=next", "--on-error", "drop"]
    assert cli.main(["logs", "describe", log, "--policy", policy, *options]) == 0
    said = capsys.readouterr().out
    bad = rows[7]["episode"]
    good = [row for row in rows if row["episode"] != bad]
    assert f"steps     {len(good):,}" in said
    assert f"reward is missing, NaN or infinite: 1 row of 1 episode: 7 (episode {bad})" in said
    weights = np.ones(200)
    for row in good:
        weights[row["episode"]] *= pi[row["state"], row["action"]] / row["mu"]
    weights = np.delete(weights, bad)
    assert f"worth {weights.sum() ** 2 / (weights**2).sum():,.1f} episodes" in said
    arguments = ["logs", "evaluate", log, "--policy", policy, "--trace", "rbis", "--lam", "0.9", "--gamma", "0.8"]
    assert cli.main([*arguments, *options, "--resamples", "50", "--rewards", "-9", "9", "--longest", "99"]) == 0
    said = capsys.readouterr()
    assert "dropped 1 episode" in said.out
    assert "fitted, RBIS, λ = 0.9" in said.out
    assert "rewards in [-9, 9] (as stated), episodes of at most 99 steps, independent" in said.out
    assert said.err == ""


def test_a_policy_of_features_from_a_python_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same as by `evaluate` itself."""
    rows = [row | {"x": float(np.sin(row["state"]))} for row in drawn(2, 60)]
    pl.DataFrame(rows).write_csv(tmp_path / "log.csv")
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\ndef target(x):\n    p = np.exp(x * [0.0, 1.0, 2.0])\n    return p / p.sum(1, keepdims=True)\n"
    )
    log, policy = str(tmp_path / "log.csv"), f"{tmp_path / 'mine.py'}:target"
    options = ["--policy", policy, "--columns", "state=x", "mu=mu"]
    assert cli.main(["logs", "describe", log, *options]) == 0
    capsys.readouterr()
    assert (
        cli.main(["logs", "evaluate", log, *options, "--gamma", "0.9", "--model", "linear", "--resamples", "50"]) == 0
    )
    logs = read(log, columns=Columns(state="x", mu="mu"))
    target = runpy.run_path(str(tmp_path / "mine.py"))["target"]
    wanted = evaluate(logs, target, gamma=0.9, model="linear", resamples=50)
    assert str(wanted) in capsys.readouterr().out
    assert cli.main(["logs", "evaluate", log, "--policy", policy[:-1], "--gamma", "0.9", "--columns", "state=x"]) == 2
    assert "makes no 'targe' (did you mean 'target'?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ([], "reward is missing, NaN or infinite"),
        (["--columns", "state=s"], "no column 's' for state"),
        (["--columns", "stte=s"], "got 'stte=s' (did you mean 'state'?)"),
        (["--columns", "truncated=", "next_state=next"], "--truncated at-end"),
        (["--policy", "{folder}/log.parquet"], "no .npz file"),
        (["--policy", "{folder}/cut.npz"], "no .npz file"),
        (["--policy", "{folder}/pi.npy"], "no .npz file"),
        (["--policy", "{folder}/half.npz"], "sums to 0.5"),
        (["--policy", "{folder}/q.npz"], "no array 'probabilities'"),
        (["--policy", "{folder}/none.npz"], "none.npz"),
        (["--policy", "{folder}/unnamed.npz"], "give their names"),
        (["--policy", "{folder}/few.npz"], "action is none of those that were given"),
        (["--on-error", "drop", "--policy", "{folder}/other.npz"], "takes none of the"),
        (["--trace", "rbi"], "did you mean 'RBIS'"),
        (["--trace", "one-step", "--lam", "1"], "no parameter 'lam'"),
    ],
)
def test_errors_are_words(files: Any, capsys: pytest.CaptureFixture[str], extra: list[str], words: str) -> None:
    folder, _, pi = files
    np.savez(folder / "half.npz", probabilities=pi / 2)
    (folder / "cut.npz").write_bytes((folder / "half.npz").read_bytes()[:100])
    np.save(folder / "pi.npy", pi)
    np.savez(folder / "q.npz", q=pi)
    np.savez(folder / "unnamed.npz", probabilities=pi)
    np.savez(folder / "few.npz", probabilities=pi[:, :2] / pi[:, :2].sum(axis=1, keepdims=True), actions=["a", "b"])
    np.savez(folder / "other.npz", probabilities=[[0, 0, 0, 1.0]] * 5, actions=["a", "b", "c", "d"])
    arguments = ["logs", "evaluate", str(folder / "log.parquet"), "--policy", str(folder / "pi.npz"), "--gamma", "0.9"]
    assert cli.main([*arguments, *(text.format(folder=folder) for text in extra)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.startswith("offtrace: ")


def test_a_damaged_policy_file_is_named(tmp_path: Path) -> None:
    """Any one flipped bit gives the policy that was written, or words: no other error than these."""
    file = tmp_path / "policy.npz"
    np.savez(file, probabilities=[[0.25, 0.75]], actions=["wait", "up"])
    whole, rng = file.read_bytes(), np.random.default_rng(0)
    words = []
    for place, bit in zip(rng.integers(len(whole), size=300), rng.integers(8, size=300), strict=True):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        file.write_bytes(damaged)
        try:
            target = load_policy(str(file))
        except ValueError as error:
            words.append(str(error))
        else:
            np.testing.assert_array_equal(target.policy, [[0.25, 0.75]])
    assert len(words) > 100
    assert all("policy.npz" in each for each in words)


@pytest.mark.parametrize("command", ["describe", "evaluate"])
def test_help_says_that_a_python_file_is_executed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["logs", command, "--help"])
    assert "offtrace executes the whole file" in " ".join(capsys.readouterr().out.split())
