"""States and actions are matched by their names or values, or in an order that the user gave: never in sorted order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import offtrace as ot
from offtrace import cli, reports
from offtrace.logs import Columns, Density, Features, Logs, Result, describe, evaluate, read, sweep

COLUMNS = Columns(mu="mu", step=None)
NAMES = ("well", "ill"), ("wait", "act")
"""In an order that is not the sorted one."""
WORTH = 0.25
"""V of always waiting: one in four patients is well, and to wait is worth 1 then; else nothing is worth anything, but acting."""


def clinic(state: Any = NAMES[0], action: Any = NAMES[1], n: int = 200) -> pl.DataFrame:
    """Episodes of one step: (well, wait) and (ill, act) are worth 1, all else 0; μ is uniform."""
    i = np.arange(n)
    s, a = (i % 4 > 0).astype(int), i // 4 % 2
    return pl.DataFrame({
        "episode": i, "state": [state[k] for k in s], "action": [action[k] for k in a], "reward": (s == a).astype(float),
        "terminated": True, "mu": 0.5,
    })  # fmt: skip


def value(logs: Logs, target: object, **options: Any) -> Result:
    estimators = ["fitted"] if "initial" in options or options.get("behavior") is False else ["fitted", "IS"]
    return evaluate(logs, target, trace=ot.RBIS(), gamma=0.9, estimators=estimators, **options)


def logs_of(frame: object = None, **options: Any) -> Logs:
    return read(clinic() if frame is None else frame, columns=COLUMNS, truncated="never", **options)


def always(first: float) -> np.ndarray:
    """The table of waiting, in the order of `NAMES`."""
    return np.tile([first, 1 - first], (2, 1))


def by_name(states: np.ndarray) -> dict[str, np.ndarray]:
    return {"wait": np.ones(len(states)), "act": np.zeros(len(states))}


class Waits:
    """A classifier that knows actions by their names, and states too."""

    classes_ = np.array(["wait"])

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        assert set(x[:, 0]) <= set(NAMES[0])
        return np.ones((len(x), 1))


@pytest.mark.parametrize(
    "target", [by_name, lambda s: {"wait": 1.0}, Waits()], ids=["mapping", "numbers", "classifier"]
)
@pytest.mark.parametrize("given", [{}, {"actions": NAMES[1], "states": NAMES[0]}, {"actions": ("act", "wait")}])
def test_names_decide_whatever_the_order(target: Any, given: Any) -> None:
    assert value(logs_of(**given), target).value == pytest.approx(WORTH)
    behavior = value(logs_of(**given), target, behavior=lambda s: {"act": 0.5, "wait": np.full(len(s), 0.5)})
    assert behavior["IS"].estimate == pytest.approx(WORTH)


def test_a_function_gets_states_by_their_names() -> None:
    seen: list[object] = []

    def target(states: np.ndarray) -> dict[str, np.ndarray]:
        seen.extend(states.tolist())
        return {"wait": states == "well", "act": states == "ill"}

    assert value(logs_of(), target).value == pytest.approx(1.0)
    assert value(logs_of(states=NAMES[0]), target).value == pytest.approx(1.0)
    assert set(seen) == set(NAMES[0])
    frame = clinic(state=(-7, 10**9))
    assert value(logs_of(frame), lambda s: {"wait": s == -7, "act": s == 10**9}).value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("target", "given", "words"),
    [
        (always(1), {}, "order of the states ('ill', 'well') and actions ('act', 'wait') was not given"),
        (always(1), {"actions": NAMES[1]}, r"order of the states \('ill', 'well'\) was not given"),
        (always(1).tolist(), {"states": NAMES[0]}, r"order of the actions \('act', 'wait'\) was not given"),
        (lambda s: np.tile([1.0, 0.0], (len(s), 1)), {"states": NAMES[0]}, r"order of the actions .* was not given"),
        (lambda s: {"wait": 1.0, "akt": 0.0}, {}, r"'akt' \(did you mean 'act'\?\)"),
        (pl.DataFrame({"wait": [1.0, 1.0], "act": [0.0, 0.0]}), {"states": NAMES[0], "actions": NAMES[1]}, "DataFrame"),
    ],
)  # fmt: skip
def test_positions_of_names_that_were_sorted_are_refused(target: Any, given: Any, words: str) -> None:
    words = words.replace("states ('ill', 'well') and actions ('act', 'wait')", r"states .* and actions .*")
    with pytest.raises((TypeError, ValueError), match=words):
        value(logs_of(**given), target)
    with pytest.raises((TypeError, ValueError), match=words):
        describe(logs_of(**given), target)
    with pytest.raises((TypeError, ValueError), match=words):
        value(logs_of(**given), by_name, behavior=target)


def test_a_table_in_an_order_that_was_given() -> None:
    for i in (1, -1):
        logs = logs_of(states=NAMES[0][::i], actions=NAMES[1][::i])
        assert value(logs, always(1)[::i, ::i]).value == pytest.approx(WORTH)


@pytest.mark.parametrize("source", [clinic, lambda **names: episodes_of(clinic(**names))], ids=["frame", "episodes"])
@pytest.mark.parametrize("odd", [10**9, -1])
def test_one_odd_id_does_not_renumber_the_others(source: Any, odd: int) -> None:
    """The rows of a table are those of the ids 0, 1, …: an id that is none is named, and is never a reason to move the others."""
    frame: Any = source(state=(0, 1), action=(0, 1))
    columns: Any = {"columns": COLUMNS, "truncated": "never"} if isinstance(frame, pl.DataFrame) else {}
    assert value(read(frame, **columns), always(1), behavior=always(0.5)).value == pytest.approx(WORTH)
    if isinstance(frame, pl.DataFrame):
        changed: Any = frame.with_columns(state=pl.when(pl.col("episode") == 5).then(odd).otherwise(pl.col("state")))
    else:
        changed = [*frame[:5], frame[5] | {"observations": np.array([odd, odd])}, *frame[6:]]
    for n in (2, 3):  # also a table that would fit the renumbered ids
        with pytest.raises(
            ValueError, match=rf"order of the states \({'-1, 0, 1' if odd < 0 else '0, 1, 1000000000'}\)"
        ):
            value(read(changed, **columns), np.tile([1.0, 0.0], (n, 1)), behavior=False)
    with pytest.raises(ValueError, match="none of the 2 that there are"):
        read(changed, **columns, states=2)


def episodes_of(frame: pl.DataFrame) -> list[dict[str, np.ndarray]]:
    """The same as a list of episodes."""
    return [
        {
            "observations": np.array([row["state"]] * 2), "actions": np.array([row["action"]]),
            "rewards": np.array([row["reward"]]), "terminations": np.array([True]), "truncations": np.array([False]),
        }
        for row in frame.iter_rows(named=True)
    ]  # fmt: skip


def test_a_list_of_episodes_sorts_its_names_too() -> None:
    logs = read(episodes_of(clinic()))
    with pytest.raises(ValueError, match="was not given"):
        value(logs, always(1), behavior=False)
    assert value(logs, by_name).value == pytest.approx(WORTH)
    logs = read(episodes_of(clinic()), states=NAMES[0], actions=NAMES[1])
    assert value(logs, always(1)).value == pytest.approx(WORTH)


def test_first_states_and_features_are_not_matched_by_position_either() -> None:
    sorted_here, given = logs_of(), logs_of(states=NAMES[0], actions=NAMES[1])
    for initial in (["well"], ["well", "well"]):
        assert value(sorted_here, by_name, initial=initial)["fitted"].estimate == pytest.approx(1.0)
        assert value(given, by_name, initial=initial)["fitted"].estimate == pytest.approx(1.0)
    assert value(given, by_name, initial=[1.0, 0.0])["fitted"].estimate == pytest.approx(1.0)
    assert value(logs_of(clinic(state=(-7, 10**9))), by_name, initial=[-7])["fitted"].estimate == pytest.approx(1.0)
    with pytest.raises(ValueError, match=r"order of the states .* was not given"):
        value(sorted_here, by_name, initial=[1.0, 0.0])
    with pytest.raises(ValueError, match=r"'weel' \(did you mean 'well'\?\)"):
        value(sorted_here, by_name, initial=["weel"])
    for features in (Features(np.eye(2)), Features(lambda s: np.eye(2)[s]), Features(of_pairs=lambda s, a: s[:, None])):
        with pytest.raises(ValueError, match=r"order of the states .* was not given"):
            value(sorted_here, by_name, model=features)
        value(given, by_name, model=features)


def test_densities_over_states_that_were_sorted_are_refused() -> None:
    frame = clinic().with_columns(action=pl.lit(0.5))
    logs = logs_of(frame, actions="continuous")
    with pytest.raises(ValueError, match=r"order of the states .* was not given"):
        evaluate(logs, Density(lambda s, a: np.zeros(len(a))), trace=ot.RBIS(), gamma=0.9, estimators=["IS"])


def test_a_sweep_takes_names_in_the_order_of_the_table(tmp_path: Path) -> None:
    clinic().write_parquet(tmp_path / "a.parquet")
    given: Any = {"trace": ot.RBIS(), "gamma": 0.9, "columns": COLUMNS, "truncated": "never"}
    found = sweep(tmp_path, always(1), states=NAMES[0], actions=NAMES[1], **given)
    assert found.value == pytest.approx(WORTH)
    with pytest.raises(TypeError, match="give their names in the order of their ids"):
        sweep(tmp_path, always(1), **given)
    with pytest.raises(TypeError, match="DataFrame"):
        sweep(tmp_path, pl.DataFrame(always(1)), states=NAMES[0], actions=NAMES[1], **given)


# --- on the command line ---------------------------------------------------------------------------------------------

POLICIES = """
import numpy as np

def by_position(states):
    return np.tile([1.0, 0.0], (len(states), 1))  # wait, act

def by_name(states):
    return {"wait": np.ones(len(states)), "act": np.zeros(len(states))}

table = np.array([[1.0, 0.0], [1.0, 0.0]])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    clinic().with_columns(x=pl.col("state").replace_strict({"well": 0.0, "ill": 1.0})).write_parquet(
        tmp_path / "l.parquet"
    )
    (tmp_path / "p.py").write_text(POLICIES)
    np.savez(tmp_path / "p.npz", probabilities=always(1), states=NAMES[0], actions=NAMES[1])
    return tmp_path


def run(folder: Path, capsys: pytest.CaptureFixture[str], command: str, *more: str, status: int = 0) -> str:
    given = ["logs", command, str(folder / "l.parquet"), "--columns", "mu=mu", "step=", "--truncated", "never"]
    given += ["--gamma", "0.9", "--estimators", "fitted", "IS"] if command == "evaluate" else []
    found = cli.main([*given, *(text.replace("{}", str(folder)) for text in more)])
    said = capsys.readouterr()
    assert found == status, said.err
    return said.err if status else said.out


@pytest.mark.parametrize(
    "given",
    [
        ["{}/p.py:by_name"],
        ["{}/p.py:by_name", "--actions", "act", "wait"],
        ["{}/p.py:by_position", "--actions", "wait", "act"],
        ["{}/p.py:table", "--actions", "wait", "act", "--states", "well", "ill"],
        ["{}/p.npz"],
        ["{}/p.npz", "--actions", "wait", "act"],
    ],
)
def test_always_wait_is_evaluated_as_always_wait(
    folder: Path, capsys: pytest.CaptureFixture[str], given: list[str]
) -> None:
    found = json.loads(run(folder, capsys, "evaluate", "--policy", *given, "--json"))
    assert found["value"] == pytest.approx(WORTH)
    assert found["actions"] == (["act", "wait"] if "by_name" in given[0] else ["wait", "act"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["{}/p.py:by_position"], "which need not be this one: --actions act wait"),
        (["{}/p.py:table"], "--states ill well --actions act wait"),
        (["{}/p.py:table", "--actions", "wait", "act"], "--states ill well"),
        (["{}/p.py:by_position", "--actions", "wait", "akt"], "none of those that were given: 'act' (did you mean 'akt'?)"),
        (["{}/p.npz", "--actions", "act", "wait"], "--actions act wait is another order"),
        (["{}/p.npz", "--states", "ill", "well"], "--states ill well is another order"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["describe", "evaluate"])
def test_what_has_no_order_is_refused_with_what_to_do(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, given: list[str], words: str
) -> None:
    assert words in run(folder, capsys, command, "--policy", *given, status=2)


def test_functions_of_features_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--columns", "state=x", "mu=mu", "step=", "--model", "linear"]
    for more in (["{}/p.py:by_name"], ["{}/p.py:by_position", "--actions", "wait", "act"]):
        found = json.loads(run(folder, capsys, "evaluate", *given, "--policy", *more, "--json"))
        assert found["value"] == pytest.approx(WORTH, abs=1e-6)
    assert "--actions act wait" in run(folder, capsys, "evaluate", *given, "--policy", "{}/p.py:by_position", status=2)


def test_the_order_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(folder, capsys, "describe")
    assert "actions   2 of 2 occur: act, wait (sorted: no order was given)" in said
    assert "states    2 of 2 occur: ill, well (sorted: no order was given)" in said
    said = run(folder, capsys, "evaluate", "--policy", "{}/p.npz", "--page", "{}/p.html")
    assert "states in the order: well, ill\n" in said
    assert "actions in the order: wait, act\n" in said
    page = (folder / "p.html").read_text(encoding="utf-8")
    assert "well, ill" in page
    assert "wait, act" in page
    result = value(logs_of(), by_name)
    reports.evaluation_page(result, folder / "q.html")
    assert "act, wait (sorted: no order was given)" in (folder / "q.html").read_text(encoding="utf-8")
    many = logs_of(
        clinic(state=[f"s{i:03}" for i in range(2)], action=[f"a{i:03}" for i in range(2)]),
        states=[f"s{i:03}" for i in range(90)],
    )
    assert "s000, s001" in str(describe(many))
    assert "… (90 in all)" in str(describe(many))
