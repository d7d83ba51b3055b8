"""Logs of every source are the ones that the definition makes of their rows."""

from __future__ import annotations

import gzip
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logs.by_rows import Rows, agree, logs_of
from offtrace.logs import Columns, LogsError, read
from offtrace.logs.reading.assembly import DENSE

MU = Columns(mu="mu")


def drawn(seed: int = 0, episodes: int = 40, with_next: bool = False) -> Rows:
    """Good rows of episodes of 1 to 9 steps, some terminated, some truncated, some both, in order."""
    rng, rows = np.random.default_rng(seed), []
    for episode in range(episodes):
        length, end = int(rng.integers(1, 10)), rng.random()
        for step in range(length):
            last = step == length - 1
            row = {"episode": episode, "step": step, "state": int(rng.integers(5)), "action": int(rng.integers(3))}
            row |= {"reward": float(rng.normal()), "terminated": last and end < 0.6, "truncated": last and end > 0.5}
            rows.append(
                row | {"mu": float(rng.uniform(0.05, 1))} | ({"next": int(rng.integers(5))} if with_next else {})
            )
    return rows


@pytest.mark.parametrize("with_next", [False, True])
def test_every_table_gives_the_same_logs(tmp_path: Path, with_next: bool) -> None:
    rows = drawn(with_next=with_next)
    columns = Columns(mu="mu", next_state="next" if with_next else None)
    frame = pl.DataFrame(rows)
    frame.write_parquet(tmp_path / "a.parquet")
    frame.write_ipc(tmp_path / "a.arrow")
    frame.write_csv(tmp_path / "a.csv")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    frame.write_ndjson(tmp_path / "a.jsonl")
    (tmp_path / "parts").mkdir()
    for i in range(0, len(frame), 50):
        frame[i : i + 50].write_parquet(tmp_path / "parts" / f"{i:04d}.parquet")
    sources: dict[str, Any] = {
        "parquet": tmp_path / "a.parquet",
        "arrow": str(tmp_path / "a.arrow"),
        "csv": tmp_path / "a.csv",
        "folder": tmp_path / "parts",
        "pattern": str(tmp_path / "parts" / "*.parquet"),
        "csv.gz": tmp_path / "a.csv.gz",
        "jsonl": tmp_path / "a.jsonl",
        "rows": rows,
        "polars": frame,
        "lazy": frame.lazy(),
        "pandas": frame.to_pandas(),
        "pyarrow": frame.to_arrow(),
    }
    for source in sources.values():
        logs = read(source, columns=columns)
        agree(logs, logs_of(rows))
        assert (logs.states, logs.actions, logs.state_names) == (5, 3, ())
    report = read(frame, columns=columns).report
    assert report is not None
    cut = [row for row in rows if row["truncated"] and not row["terminated"]]
    assert report.only_next == (0 if with_next else len(cut)) > 0 or with_next
    assert report.emptied == (0 if with_next else sum(row["step"] == 0 for row in cut))


@settings(deadline=None, max_examples=60)
@given(data=st.data(), text=st.booleans(), with_next=st.booleans(), base=st.sampled_from([0, 1]))
def test_rows_in_any_order_give_the_same_logs(data: st.DataObject, text: bool, with_next: bool, base: int) -> None:
    rows = drawn(data.draw(st.integers(0, 1000)), data.draw(st.integers(2, 12)), with_next)
    if all(row["truncated"] and not row["terminated"] and row["step"] == 0 for row in rows):
        rows[-1] |= {"terminated": True}
    for row in rows:
        row["step"] += base
        if text:
            row["episode"] = f"run {row['episode']}"
    wanted = logs_of(rows)
    columns = Columns(mu="mu", next_state="next" if with_next else None)
    agree(read(pl.DataFrame(data.draw(st.permutations(rows))), columns=columns), wanted)


def test_without_steps_rows_are_in_order() -> None:
    rows = drawn()
    mixed = sorted(rows, key=lambda row: (row["step"], -row["episode"]))
    agree(read(pl.DataFrame(mixed).drop("step"), columns=Columns(step=None, mu="mu")), logs_of(rows))


def test_names_are_kept_and_given_names_decide() -> None:
    rows = drawn(with_next=True)
    text = pl.DataFrame(
        [
            row | {"state": f"s{row['state']}", "next": f"s{row['next']}", "action": (70, -1, 9)[row["action"]]}
            for row in rows
        ]
    )
    columns = Columns(mu="mu", next_state="next")
    wanted = logs_of(rows)
    logs = read(text, columns=columns)
    assert (logs.states, logs.state_names) == (5, ("s0", "s1", "s2", "s3", "s4"))
    assert (logs.actions, logs.action_names) == (3, (-1, 9, 70))
    agree(logs, wanted | {"action": [{0: 2, 1: 0, 2: 1}[a] for a in wanted["action"]]})
    names = tuple(f"s{i}" for i in (9, 4, 3, 2, 1, 0))
    logs = read(text.cast({"state": pl.Categorical}), columns=columns, states=names, actions=[70, -1, 9])
    assert (logs.states, logs.state_names, logs.action_names) == (6, names, (70, -1, 9))
    swapped = {name: [5 - s for s in wanted[name]] for name in ("state", "next_state")}
    agree(logs, wanted | swapped)
    assert read(pl.DataFrame(rows), states=16, actions=4).states == 16


def test_large_integers_are_numbered_and_small_ones_are_not() -> None:
    rows = drawn()
    for row in rows:
        row["state"] = row["state"] * DENSE
    logs = read(pl.DataFrame(rows), columns=MU)
    assert logs.state_names == tuple(DENSE * i for i in range(5))
    agree(logs, logs_of([row | {"state": row["state"] // DENSE} for row in rows]))


def hashed(rows: Rows, shuffled: bool = False) -> tuple[Rows, Rows]:
    """The rows with hashes of 64 bits in place of the episodes' numbers, in the order of the numbers; and in any order."""
    rng = np.random.default_rng(7)
    numbers = sorted({row["episode"] for row in rows})
    hashes = np.sort(rng.integers(0, 2**64, len(numbers), dtype=np.uint64, endpoint=False))
    hashes[-3:] = 2**63, 2**64 - 2, 2**64 - 1  # as floats, the last two are one
    name = dict(zip(numbers, np.sort(hashes).tolist(), strict=True))
    made = [row | {"episode": name[row["episode"]]} for row in rows]
    return made, [made[i] for i in rng.permutation(len(made))] if shuffled else made


WIDE = {"episode": pl.UInt64}


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("form", ["polars", "parquet", "csv", "pandas", "int128", "string"])
@pytest.mark.parametrize("on_error", ["raise", "drop"])
def test_hashes_of_64_bits_are_episodes(tmp_path: Path, shuffled: bool, form: str, on_error: Any) -> None:
    rows, given = hashed(drawn(episodes=100), shuffled)
    frame = pl.DataFrame(given, schema_overrides=WIDE)
    source: Any = frame
    if form in ("parquet", "csv"):
        source = tmp_path / f"a.{form}"
        frame.write_parquet(source) if form == "parquet" else frame.write_csv(source)
    elif form == "pandas":
        source = frame.to_pandas()
    elif form == "int128":
        source = frame.cast({"episode": pl.Int128})
    elif form == "string":
        source = frame.cast({"episode": pl.String})
        rows = sorted(rows, key=lambda row: (str(row["episode"]), row["step"]))
    logs = read(source, columns=MU, on_error=on_error)
    agree(logs, logs_of([row | {"episode": str(row["episode"])} for row in rows] if form == "string" else rows))
    assert logs.report is not None
    assert (logs.report.episodes, logs.report.dropped, logs.report.nameless) == (100, 0, 0)


def test_a_bad_row_of_a_hashed_episode_is_named_by_its_hash() -> None:
    rows, _ = hashed(drawn(episodes=10))
    rows[-1]["reward"] = float("nan")
    with pytest.raises(LogsError, match=rf"\(episode {2**64 - 1}\)"):
        read(pl.DataFrame(rows, schema_overrides=WIDE), columns=MU)


def test_hashes_are_states_and_actions_too() -> None:
    rows, _ = hashed(drawn(with_next=True))
    states, actions = [2**64 - 1, 2**63, 0, 2**63 - 1, 7], [5, 2**64 - 2, 2**64 - 1]
    wide = [
        row | {"state": states[row["state"]], "next": states[row["next"]], "action": actions[row["action"]]}
        for row in rows
    ]
    columns = Columns(mu="mu", next_state="next")
    schema = WIDE | dict.fromkeys(("state", "next", "action"), pl.UInt64)
    found = read(pl.DataFrame(wide, schema_overrides=schema), columns=columns)
    assert found.state_names == tuple(sorted(states))
    assert found.action_names == tuple(sorted(actions))
    assert [found.state_names[s] for s in found.state] == [row["state"] for row in wide]
    assert [found.action_names[a] for a in found.action] == [row["action"] for row in wide]
    given = read(pl.DataFrame(wide, schema_overrides=schema), columns=columns, states=states, actions=actions)
    assert given.state.tolist() == [row["state"] for row in rows]
    assert given.action.tolist() == [row["action"] for row in rows]
    with pytest.raises(LogsError, match="state is none of those that were given"):
        read(pl.DataFrame(wide, schema_overrides=schema), columns=columns, states=states[1:])


def test_ids_that_floats_cannot_tell_apart_are_refused() -> None:
    rows = drawn(episodes=10)
    for row in rows:
        row["episode"] = float(2**53 + row["episode"])
    with pytest.raises(LogsError, match=r"episode: column 'episode' holds Float64 .* two episodes may have become one"):
        read(pl.DataFrame(rows), columns=MU, on_error="drop")
    steps = {"actions": [0], "rewards": [1.0], "terminations": [True], "truncations": [False]}
    with pytest.raises(LogsError, match=r"episode 0 has ids of 2\^63 or more"):
        read([{"observations": [1, 2**63]} | steps])
    assert read([{"observations": np.array([1, 2**63], np.uint64)} | steps]).state_names == (1, 2**63)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), form=st.sampled_from(["ids", "features"]), in_order=st.booleans(), at_end=st.booleans())
def test_dropped_episodes_leave_the_others_as_they_are(
    data: st.DataObject, form: str, in_order: bool, at_end: bool
) -> None:
    rows = drawn(data.draw(st.integers(0, 1000)), episodes=data.draw(st.integers(2, 12)))
    rows += [row | {"episode": 99, "terminated": row["step"] == 2} for row in rows[:1] * 3]
    for step, row in enumerate(rows[-3:]):
        row |= {"step": step, "terminated": step == 2, "truncated": False}
    spoiled = data.draw(st.sets(st.sampled_from(sorted({row["episode"] for row in rows[:-3]}))))
    given = [row | {"reward": None} if row["episode"] in spoiled else row for row in rows]
    frame = pl.DataFrame(given if in_order else data.draw(st.permutations(given)), infer_schema_length=None)
    if at_end:
        frame = frame.drop("truncated")
    columns = MU
    if form == "features":
        frame = frame.with_columns(x=pl.col("state"), y=-pl.col("state"))
        columns = Columns(state=("x", "y"), mu="mu")
        rows = [row | {"state": [row["state"], -row["state"]]} for row in rows]
    logs = read(frame, columns=columns, on_error="drop", drop_at_most=1, truncated="at end" if at_end else None)
    agree(logs, logs_of([row for row in rows if row["episode"] not in spoiled], at_end))
    assert logs.report is not None
    assert logs.report.dropped == len(spoiled)


@pytest.mark.parametrize("form", ["columns", "list", "array"])
def test_features(form: str) -> None:
    rng, rows = np.random.default_rng(1), drawn()
    x = rng.normal(size=(len(rows), 2))
    frame = pl.DataFrame(rows)
    if form == "columns":
        frame, columns = frame.with_columns(x=x[:, 0], y=x[:, 1]), Columns(state=("x", "y"), mu="mu")
    else:
        kind = pl.List(pl.Float64) if form == "list" else pl.Array(pl.Float64, 2)
        frame, columns = frame.with_columns(x=pl.Series(x.tolist(), dtype=kind)), Columns(state="x", mu="mu")
    logs = read(frame, columns=columns)
    assert not logs.tabular
    agree(logs, logs_of([row | {"state": list(values)} for row, values in zip(rows, x, strict=True)]))


def test_one_column_of_floats_is_a_feature_unless_states_are_given() -> None:
    rows = drawn()
    logs = read(pl.DataFrame(rows).cast({"state": float}), columns=MU)
    agree(logs, logs_of([row | {"state": [row["state"]]} for row in rows]))
    ids = read(pl.DataFrame(rows).cast({"state": float}), columns=MU, states=5)
    assert ids.states == 5
    agree(ids, logs_of(rows))


def test_whether_episodes_were_cut_is_asked() -> None:
    rows = [{k: v for k, v in row.items() if k != "truncated"} for row in drawn()]
    frame = pl.DataFrame(rows)
    with pytest.raises(ValueError, match=r"(?s)truncated=\"never\".*truncated=\"at end\""):
        read(frame, columns=MU)
    agree(read(frame, columns=MU, truncated="at end"), logs_of(rows, at_end=True))
    with pytest.raises(LogsError, match=r"neither terminated nor truncated.*truncated=\"at end\""):
        read(frame, columns=MU, truncated="never")
    finished = {row["episode"] for row in rows if row["terminated"]}
    whole = [row for row in rows if row["episode"] in finished]
    agree(read(pl.DataFrame(whole), columns=MU, truncated="never"), logs_of(whole))
    with pytest.raises(ValueError, match="leave out one of the two"):
        read(pl.DataFrame(drawn()), truncated="never")
    ongoing = read(frame.drop("terminated"), columns=Columns(terminated=None, mu="mu"), truncated="at end")
    agree(ongoing, logs_of([row | {"terminated": False} for row in rows], at_end=True))


def test_terminated_episodes_need_no_next_state() -> None:
    rows = drawn(with_next=True)
    for row in rows:
        if row["terminated"]:
            row["next"] = None
    logs = read(pl.DataFrame(rows), columns=Columns(mu="mu", next_state="next"))
    agree(logs, logs_of([row | {"next": row["state"] if row["next"] is None else row["next"]} for row in rows]))


def test_columns_that_are_passed_over_are_named() -> None:
    frame = pl.DataFrame(drawn(with_next=True)).rename({"next": "next_state"})
    assert "'mu' was not used" in str(read(frame).report)
    assert "'next_state' was not used" in str(read(frame).report)
    assert "not used" not in str(read(frame, columns=Columns(mu="mu", next_state="next_state")).report)


def test_logs_without_mu() -> None:
    assert read(pl.DataFrame(drawn())).log_mu is None
    rows = drawn()
    logs = read(pl.DataFrame(rows).with_columns(log_mu=pl.col("mu").log()), columns=Columns(log_mu="log_mu"))
    agree(logs, logs_of(rows))


def test_times_are_steps_and_order_the_rows() -> None:
    """Dates, texts of dates and seconds since 1970 give what consecutive steps give; ties are an error, dropped or not."""
    rows = [
        {
            "episode": e,
            "step": t,
            "state": 10 * e + t,
            "action": 0,
            "reward": float(t),
            "terminated": t == 3,
            "truncated": False,
        }
        for e in range(3)
        for t in range(4)
    ]
    wanted = read(pl.DataFrame(rows))
    mixed = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    assert read(pl.DataFrame(mixed)).state.tolist() == wanted.state.tolist()
    hours = [datetime(2024, 3, 1) + timedelta(hours=row["episode"] + row["step"] ** 2) for row in mixed]
    seconds = [int(each.timestamp()) for each in hours]
    for times in (hours, [each.isoformat() for each in hours], seconds, [float(each) for each in seconds]):
        logs = read(pl.DataFrame(mixed).with_columns(step=pl.Series(times)))
        assert logs.state.tolist() == wanted.state.tolist()
        assert logs.reward.tolist() == wanted.reward.tolist()
    tied = pl.DataFrame(mixed).with_columns(step=pl.Series([seconds[0]] * len(mixed)))
    for options in ({}, {"on_error": "drop", "drop_at_most": 1.0}):
        with pytest.raises(LogsError, match="at the same time, so that it is not known which came first"):
            read(tied, **options)


def test_each_row_may_be_an_episode() -> None:
    frame = pl.DataFrame({"state": [0, 1, 0], "action": [1, 0, 0], "reward": [1.0, 0.0, 2.0], "user": ["b", "a", "b"]})
    logs = read(frame, columns=Columns(episode=None, keep="user"))
    assert (logs.episodes, logs.terminated.tolist(), logs.reward.tolist()) == (3, [True] * 3, [1.0, 0.0, 2.0])
    assert logs.kept["user"].tolist() == ["b", "a", "b"]


def test_further_columns_are_kept_once_an_episode() -> None:
    rows = [row | {"user": f"u{row['episode'] % 3}"} for row in drawn(with_next=True)]
    mixed = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    logs = read(mixed, columns=Columns(next_state="next", keep=("user",)))
    assert logs.kept["user"].tolist() == [f"u{e % 3}" for e in range(logs.episodes)]


def test_ids_of_text_and_numbers() -> None:
    rows = [row | {"state": "lobby" if row["state"] == 0 else row["state"]} for row in drawn()]
    wanted = ("1", "2", "3", "4", "lobby")
    frame = pl.DataFrame([row | {"state": str(row["state"])} for row in rows])
    for source in (
        rows,
        frame,
        frame.to_pandas(),
        pl.DataFrame(drawn()).to_pandas().assign(state=[r["state"] for r in rows]),
    ):
        assert read(source).state_names == wanted
    assert read(rows, states=["lobby", 1, 2, 3, 4]).state_names == ("lobby", "1", "2", "3", "4")
    assert read(drawn(), states=np.int64(7)).states == 7
    assert read(drawn(), states=np.arange(5)).state_names == (0, 1, 2, 3, 4)
