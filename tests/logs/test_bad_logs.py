"""What is impossible in a log is named with its rows, or dropped with its whole episodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import offtrace as ot
from logs.by_rows import Rows, agree, logs_of
from offtrace.logs import Columns, LogsError, read, sweep

NAN = float("nan")


def good(episodes: int = 4, steps: int = 3) -> Rows:
    """Row 3 · e + t is step t of episode e."""
    return [
        {
            "episode": e,
            "step": t,
            "state": (e + t) % 3,
            "action": t % 2,
            "reward": float(e),
            "terminated": t == steps - 1,
            "truncated": False,
            "mu": 0.5,
            "next": (e + t + 1) % 3,
        }
        for e in range(episodes)
        for t in range(steps)
    ]


def put(row: int, **values: Any) -> Callable[[Rows], None]:
    return lambda rows: rows[row].update(values)


def remove(row: int) -> Callable[[Rows], None]:
    return lambda rows: rows.remove(rows[row])


def repeat(row: int) -> Callable[[Rows], None]:
    return lambda rows: rows.insert(row, dict(rows[row]))


BAD: list[tuple[str, Callable[[Rows], None], str, list[str], set[int]]] = [
    # name, what is done to the rows of `good`, the words, the rows named, the episodes dropped
    ("mu is 0", put(4, mu=0.0), "mu is missing or outside", ["4"], {1}),
    ("mu is negative", put(4, mu=-0.1), "mu is missing or outside", ["4"], {1}),
    ("mu above 1", put(5, mu=1.01), "mu is missing or outside", ["5"], {1}),
    ("mu is NaN", put(5, mu=NAN), "mu is missing or outside", ["5"], {1}),
    ("mu is missing", put(0, mu=None), "mu is missing or outside", ["0"], {0}),
    ("reward is NaN", put(7, reward=NAN), "reward is missing, NaN or infinite", ["7"], {2}),
    ("reward is infinite", put(7, reward=-np.inf), "reward is missing, NaN or infinite", ["7"], {2}),
    ("reward is missing", put(7, reward=None), "reward is missing, NaN or infinite", ["7"], {2}),
    ("state is missing", put(3, state=None), "state is missing", ["3"], {1}),
    ("next state is missing", put(3, next=None), "next_state is missing", ["3"], {1}),
    ("action is missing", put(3, action=None), "action is missing", ["3"], {1}),
    ("flag is missing", put(3, terminated=None), "terminated is missing", ["3"], {1}),
    ("step is missing", put(4, step=None), "step is missing", ["4"], {1}),
    ("duplicate step", repeat(4), "a step that its episode already has", ["5"], {1}),
    ("gap", remove(4), "a gap before this step", ["4"], {1}),
    ("first step is missing", remove(6), "does not begin at step 0", ["6"], {2}),
    ("goes on after its end", put(3, terminated=True), "a step after its episode's end", ["4"], {1}),
    ("goes on after a cut", put(4, truncated=True), "a step after its episode's end", ["5"], {1}),
    ("does not end", put(11, terminated=False), "neither terminated nor truncated", ["11"], {3}),
]


@pytest.mark.parametrize(("change", "words", "named", "dropped"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
@pytest.mark.parametrize("order", ["in order", "shuffled"])
def test_named_and_dropped(
    change: Callable[[Rows], None], words: str, named: list[str], dropped: set[int], order: str
) -> None:
    rows = good()
    change(rows)
    numbers = list(range(len(rows)))
    if order == "shuffled":
        numbers = np.random.default_rng(3).permutation(len(rows)).tolist()
        if "already" in words:  # of the two, the one that comes later
            named = [str(max(numbers.index(4), numbers.index(5)))]
        else:
            named = [str(numbers.index(int(row))) for row in named]
    frame = pl.DataFrame([rows[i] for i in numbers], infer_schema_length=None)
    columns = Columns(mu="mu", next_state="next")
    with pytest.raises(LogsError, match=words) as caught:
        read(frame, columns=columns)
    (problem,) = [p for p in caught.value.problems if words in p.what]
    assert [first.split()[0] for first in problem.first] == named
    assert problem.first[0].endswith(f"(episode {next(iter(dropped))})")
    logs = read(frame, columns=columns, on_error="drop", drop_at_most=1.0)
    agree(logs, logs_of([row for row in good() if row["episode"] not in dropped]))
    assert logs.report is not None
    assert logs.report.dropped == len(dropped)
    assert words in str(logs.report)


def test_all_kinds_are_named_at_once() -> None:
    rows = good(30)
    for row in rows[3:60]:
        row["reward"] = NAN
    rows[70]["mu"] = 2.0
    with pytest.raises(LogsError) as caught:
        read(pl.DataFrame(rows), columns=Columns(mu="mu"))
    assert "in 20 of 30 episodes" in str(caught.value)
    reward, mu = caught.value.problems
    assert (reward.rows, reward.episodes, len(reward.first)) == (57, 19, 5)
    assert str(mu).endswith("1 row of 1 episode: 70 (episode 23)")


def test_rows_without_an_episode_are_dropped_together() -> None:
    rows = good()
    rows[11]["episode"] = None
    rows[5]["episode"] = None
    frame = pl.DataFrame(rows)
    columns = Columns(mu="mu", next_state="next")
    with pytest.raises(LogsError, match=r"episode is missing: 2 rows of unknown episodes: 5 \(episode missing\), 11"):
        read(frame.cast({"episode": str}), columns=columns)
    logs = read(frame, columns=columns, on_error="drop", drop_at_most=1.0)
    agree(logs, logs_of([row for row in good() if row["episode"] in (0, 2)]))  # 1 and 3 have no end any more
    assert logs.report is not None
    assert (logs.report.episodes, logs.report.dropped, logs.report.nameless) == (4, 2, 2)
    assert f"dropped 2 episodes ({logs.report.dropped_rows} rows), and 2 rows of unknown episodes:" in str(logs.report)


def test_what_the_policy_does_not_know() -> None:
    frame = pl.DataFrame(good())
    with pytest.raises(
        LogsError, match=r"action is none of the 1 that there are.*actions=1.*4 rows of 4 episodes: 1 \(episode 0\)"
    ):
        read(frame, actions=1)
    with pytest.raises(LogsError, match=r"state is none of the 2 that there are"):
        read(frame, states=2)
    text = frame.cast({"action": str})
    with pytest.raises(LogsError, match=r"action is none of those that were given: '1': 4 rows.*: 1 \("):
        read(text, actions=("0", "2"))
    with pytest.raises(LogsError, match="Nothing would be left"):
        read(text, actions=("0", "2"), on_error="drop", drop_at_most=1.0)
    with pytest.raises(TypeError, match="give their names"):
        read(text, actions=2)
    with pytest.raises(ValueError, match="different names"):
        read(text, actions=("0", "0"))


def test_the_file_is_named(tmp_path: Path) -> None:
    rows = good()
    rows[8]["reward"] = NAN
    for i in range(2):
        pl.DataFrame(rows[6 * i : 6 * i + 6]).write_csv(tmp_path / f"part-{i}.csv")
    with pytest.raises(LogsError, match=r"reward .*: 2 of part-1.csv \(episode 2\)"):
        read(tmp_path)


def test_columns_of_the_wrong_kind() -> None:
    frame = pl.DataFrame(good())
    with pytest.raises(ValueError, match=r"no column 'rewards' for reward \(did you mean 'reward'\?\).*'episode'"):
        read(frame, columns=Columns(reward="rewards"))
    with pytest.raises(TypeError, match="reward must be numbers, but column 'reward' holds String"):
        read(frame.cast({"reward": str}))
    with pytest.raises(TypeError, match="terminated must be booleans"):
        read(frame.cast({"terminated": str}))
    with pytest.raises(LogsError, match="terminated is missing, or neither 0 nor 1"):
        read(frame.with_columns(terminated=pl.col("terminated").cast(int) * 3))
    with pytest.raises(LogsError, match="action is missing or not a whole number"):
        read(frame.with_columns(action=pl.col("action") + 0.5))
    assert read(frame.cast({"action": float, "step": float, "terminated": int})).actions == 2
    with pytest.raises(ValueError, match="two names of one thing"):
        Columns(mu="p", log_mu="q")
    with pytest.raises(TypeError, match="must be the name of a column"):
        Columns(reward=None)  # pyright: ignore[reportArgumentType]


def test_sources_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        read(tmp_path / "nothing.parquet")
    with pytest.raises(FileNotFoundError, match="folder without tables"):
        read(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"one kind, ending in \.parquet"):
        read(tmp_path / "notes.txt")
    with pytest.raises(TypeError, match="cannot be read from int"):
        read(3)
    with pytest.raises(LogsError, match="has no rows"):
        read(pl.DataFrame(good()).head(0))
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(LogsError, match="cannot be read"):
        read(tmp_path / "torn.parquet")


def test_nothing_is_left_of_cut_steps_without_a_next_state() -> None:
    frame = pl.DataFrame(good(steps=1)).with_columns(terminated=False, truncated=True)
    with pytest.raises(LogsError, match="declare Columns\\(next_state"):
        read(frame)
    assert len(read(frame, columns=Columns(next_state="next"))) == 4


HEAD = "episode,step,state,action,reward,terminated,truncated"
BAD_FILES = {
    "nothing": ("", "is empty: a CSV file begins with the names"),
    "blank lines": ("\n\n", "is empty: a CSV file begins with the names"),
    "a header only": (f"{HEAD}\n", "has no rows"),
    "a name twice": (f"{HEAD},state\n0,0,0,1,1.0,1,0,7\n", "has 2 columns that are called 'state': rename all but"),
    "a long row": (f"{HEAD}\n0,0,0,1,1.0,0,0\n0,1,0,1,1.0,1,0,8,9\n", "row 1 of .* has 9 fields, .* names 7 columns"),
    "a flag of 0.0": (f"{HEAD}\n0,0,0,1,1.0,1.0,0\n", "'terminated' holds Float64: .astype"),
    "a flag of 0.5": (f"{HEAD}\n0,0,0,1,1.0,1,0.5\n", "truncated must be booleans, or the integers 0 and 1"),
    "a flag of a word": (f"{HEAD}\n0,0,0,1,1.0,yes,0\n", "'terminated' holds String$"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_what_is_wrong_with_a_csv_file_is_said(name: str, tmp_path: Path) -> None:
    text, words = BAD_FILES[name]
    (tmp_path / "logs.csv").write_text(text)
    with pytest.raises((LogsError, TypeError), match=words):
        read(tmp_path / "logs.csv")


def test_a_name_twice_that_nobody_reads_is_no_matter(tmp_path: Path) -> None:
    (tmp_path / "logs.csv").write_text(f"{HEAD},note,note\n0,0,0,1,1.0,1,0,first,second\n")
    assert len(read(tmp_path / "logs.csv")) == 1


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_an_empty_file_is_said_to_be_empty(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"logs.{suffix}").touch()
    with pytest.raises(LogsError, match="is empty"):
        read(tmp_path / f"logs.{suffix}")


def test_more_than_a_few_dropped_episodes_are_an_error_and_a_misspelt_name_is_guessed() -> None:
    """One state is misspelt in a tenth of the episodes: that is more than 5 %, and the name that was meant is said."""
    n = 40
    state = ["severe" if e % 10 else "sevre" for e in range(n)]
    frame = pl.DataFrame({
        "episode": range(n), "step": [0] * n, "state": state, "action": [0] * n,
        "reward": [-1.0 if e % 10 else 2.0 for e in range(n)],
        "terminated": [True] * n, "truncated": [False] * n,
    })  # fmt: skip
    names = ("mild", "severe")
    with pytest.raises(LogsError, match=r"none of those that were given: 'sevre' \(did you mean 'severe'\?\): 4 rows"):
        read(frame, states=names)
    with pytest.raises(LogsError, match=r"10 % of the episodes, and at most 5 % may be dropped.*--drop-at-most"):
        read(frame, states=names, on_error="drop")
    logs = read(frame, states=names, on_error="drop", drop_at_most=0.2)
    assert logs.report is not None
    assert (logs.report.dropped, logs.report.dropped_return, logs.report.kept_return) == (4, 2.0, -1.0)
    assert "mean sum of rewards of 2 against -1 of the rest" in str(logs.report)
    assert "of the states given, these never occur: 'mild'" in str(logs.report)
    with pytest.raises(ValueError, match="drop_at_most must be a share"):
        read(frame, drop_at_most=5)


@pytest.mark.parametrize("source", ["", "*.parquet", "b.parquet"], ids=["folder", "pattern", "file"])
def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path, source: str) -> None:
    """Its rows would be missing without a word."""
    pl.DataFrame(good()).write_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").symlink_to(tmp_path / "gone" / "b.parquet")
    with pytest.raises(FileNotFoundError, match=r"b\.parquet is a link to .*gone.* which is not there"):
        read(tmp_path / source)
    with pytest.raises(FileNotFoundError, match=r"b\.parquet"):
        sweep(tmp_path / source, [[1.0]], trace=ot.TreeBackup(), gamma=0.9)
    (tmp_path / "b.parquet").unlink()
    (tmp_path / "b.parquet").symlink_to(tmp_path / "a.parquet")
    assert read(tmp_path / "b.parquet").episodes == 4
    (tmp_path / "notes.txt").symlink_to(tmp_path / "gone")  # is no table
    (tmp_path / "b.parquet").unlink()
    assert read(tmp_path).episodes == 4


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_files_with_other_columns_are_named(tmp_path: Path, suffix: str) -> None:
    rows = pl.DataFrame(good())
    others: dict[str, pl.DataFrame] = {
        "lacks 'truncated'": rows.drop("truncated"),
        "also has 'note'": rows.with_columns(note=pl.lit("x")),
        "lacks 'reward' and also has 'rewards'": rows.rename({"reward": "rewards"}),
        "'reward' is Int64": rows.with_columns(pl.col("reward").cast(int)),
    }
    write = {"csv": "write_csv", "parquet": "write_parquet", "arrow": "write_ipc"}[suffix]
    getattr(rows[:6], write)(tmp_path / f"a.{suffix}")
    for words, other in others.items():
        getattr(other[6:], write)(tmp_path / f"b.{suffix}")
        if (suffix, words) in (("csv", "'reward' is Int64"), ("arrow", "also has 'note'")):  # are read all the same
            assert read(tmp_path).episodes == 4
            continue
        with pytest.raises(LogsError, match=rf"b\.{suffix} has other columns than a\.{suffix}: it {words}"):
            read(tmp_path)
    getattr(rows[6:].select(reversed(rows.columns)), write)(tmp_path / f"b.{suffix}")
    try:
        assert read(tmp_path).episodes == 4
    except LogsError as error:
        assert "has the same columns, but in another order" in str(error)  # noqa: PT017


def test_a_sweep_names_the_file_that_lacks_a_column(tmp_path: Path) -> None:
    rows = pl.DataFrame(good())
    rows[:6].write_parquet(tmp_path / "a.parquet")
    rows[6:].drop("truncated").write_parquet(tmp_path / "b.parquet")
    S, A = (len(set(rows[name])) for name in ("state", "action"))
    with pytest.raises(ValueError, match=r"b\.parquet: the source has no column 'truncated'"):
        sweep(tmp_path, np.full((S, A), 1 / A), trace=ot.TreeBackup(), gamma=0.9)


def test_the_sum_of_rewards_that_are_missing_is_not_known() -> None:
    """Neither 0, where all are missing, nor what the others sum to."""
    rows = good(100)  # 3 steps an episode
    for i in (0, 1, 2, 4):  # all of the first episode, one of the second
        rows[i]["reward"] = None
    report = read(pl.DataFrame(rows), on_error="drop").report
    assert report is not None
    assert report.dropped == 2
    assert np.isnan(report.dropped_return)
    assert "mean sum" not in str(report)
    rows[9]["action"], rows[9]["reward"] = None, 7.0
    frame = pl.DataFrame(rows)
    report = read(frame, on_error="drop").report
    assert report is not None
    assert report.dropped_return == pytest.approx(sum(row["reward"] for row in rows[9:12]))
    assert "of the 1 whose rewards are all known" in str(report)
    nameless = frame.with_columns(episode=pl.when(pl.col("episode") == 50).then(None).otherwise(pl.col("episode")))
    again = read(nameless, on_error="drop").report  # rows of no episode are none
    assert again is not None
    assert again.dropped_return == report.dropped_return


def test_texts_that_should_be_numbers_are_shown() -> None:
    frame = pl.DataFrame(good())
    for text in ("$1,200.50", "12 %", "3,5"):
        with pytest.raises(TypeError, match=rf"such as {re.escape(repr(text))}: take the signs of currency, percent"):
            read(frame.with_columns(reward=pl.lit(text)))
    with pytest.raises(TypeError, match=r"such as 'n/a'$"):
        read(frame.with_columns(reward=pl.when(pl.col("step") == 1).then(pl.lit("n/a")).otherwise(pl.lit("1"))))


def test_propensities_in_percent_are_guessed() -> None:
    frame = pl.DataFrame(good()).with_columns(mu=pl.col("mu") * 100)
    with pytest.raises(LogsError, match="look like percent; divide them by 100"):
        read(frame, columns=Columns(mu="mu"))


def test_csv_files_of_other_habits(tmp_path: Path) -> None:
    frame = pl.DataFrame(good())
    frame.write_csv(tmp_path / "a.csv", separator=";")
    with pytest.raises(LogsError, match=r"separated by semicolons, not by commas.*decimal_comma"):
        read(tmp_path / "a.csv")
    text = frame.with_columns(state=pl.lit("Köln")).write_csv()
    (tmp_path / "a.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(LogsError, match=r"not written in UTF-8: see line 2, '0,0,Köln.*encoding=\"latin1\""):
        read(tmp_path / "a.csv")


def test_the_odd_file_of_a_folder_is_named(tmp_path: Path) -> None:
    frame = pl.DataFrame(good())
    for e in range(3):
        frame.filter(pl.col("episode") == e).write_parquet(tmp_path / f"{e}.parquet")
    (tmp_path / "1.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(LogsError, match=r"1\.parquet"):
        read(tmp_path)
    (tmp_path / "1.parquet").unlink()
    frame.write_csv(tmp_path / "more.csv")
    with pytest.raises(ValueError, match=r"The odd one is more\.csv"):
        read(tmp_path)


def test_ties_that_are_not_dropped_say_what_to_do() -> None:
    frame = pl.DataFrame(good()).with_columns(step=pl.lit(datetime(2026, 1, 1)))
    with pytest.raises(LogsError, match=r"No episode is dropped for this.*Columns\(step=None\)"):
        read(frame, on_error="drop")
