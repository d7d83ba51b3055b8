"""Records: what is in the file, what becomes of it when it is damaged, and what is exported."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import warnings
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from offtrace.studies import Study, StudyError
from offtrace.studies.store import NAME, Store, schema, seal, unseal
from studies.small import declared, equal, forget, units_in


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study.declared(declared(), out=tmp_path_factory.mktemp("studies")).run(workers=0, progress=False)


@pytest.fixture
def study(finished: Study, tmp_path: Path) -> Study:
    """A copy that a test may spoil."""
    shutil.copytree(finished.out, tmp_path / "copy")
    return finished.at(tmp_path / "copy")


def test_rows(finished: Study) -> None:
    rows = finished.records()
    assert rows.schema == schema("rows")
    assert rows.height == 24 * 3 + 8 * 4
    assert rows.filter(phase="tuning")["seed"].unique().sort().to_list() == [0, 1, 2]
    assert rows.filter(phase="test")["seed"].unique().sort().to_list() == [3, 4, 5, 6]
    assert rows.filter(trace="One-step")["lam"].null_count() == rows.filter(trace="One-step").height
    assert set(rows["parameters"]) == {"", '{"bound": 1.0}', '{"bound": 2.0}'}
    tuned = (
        rows.filter(phase="tuning").group_by("environment", "trace", "lam", "parameters", "alpha").agg(pl.mean("value"))
    )
    best = tuned.sort("value").group_by("environment", "trace", "lam", "parameters", maintain_order=True).first()
    test = rows.filter(phase="test").select("environment", "trace", "lam", "parameters", "alpha").unique()
    assert best.select(test.columns).sort(test.columns).equals(test.sort(test.columns))


def test_curves(finished: Study) -> None:
    curves = finished.curves()
    assert curves.schema == schema("curves")
    assert curves.height == 32 * 100
    ends = curves.filter(step=200).select("unit", "mean").sort("unit")
    means = finished.records().group_by("unit").agg(pl.mean("value")).sort("unit")
    assert (ends["mean"] - means["value"]).abs().max() < 1e-12  # type: ignore[operator]


def test_a_finished_folder(finished: Study) -> None:
    assert {file.name for file in finished.folder.iterdir()} == {NAME, "study.toml", "lock"}
    units = units_in(finished)
    assert len({unit.id for unit in units}) == len(units) == 32
    assert all(unit.worker.startswith("local:") and unit.code == finished.code.digest for unit in units)
    contents = Store(finished.folder, finished.digest).read(whole=True)
    assert contents.about["digest"] == finished.digest
    assert set(contents.about["versions"]) >= {"offtrace", "numpy", "python"}
    assert Study.load(finished.folder).records().equals(finished.records())
    assert finished.facts()["counts"]["units"] == 32


def test_export(finished: Study, tmp_path: Path) -> None:
    files = finished.export(tmp_path / "exported")
    assert {file.name for file in files} == {"rows.parquet", "rows.csv", "curves.parquet", "curves.csv"}
    assert equal(pl.read_parquet(tmp_path / "exported" / "rows.parquet"), finished.records())
    assert equal(pl.read_parquet(tmp_path / "exported" / "curves.parquet"), finished.curves())
    rows = pl.read_csv(tmp_path / "exported" / "rows.csv", schema=schema("rows"))
    assert rows["value"].equals(finished.records()["value"])


def test_a_finished_study_is_not_run_again(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (study.folder / NAME).stat().st_mtime_ns
    monkeypatch.setattr("offtrace.studies.executor.Processes", None)
    assert study.run(progress=False).status().finished
    assert (study.folder / NAME).stat().st_mtime_ns == before


def test_an_interrupted_study_has_what_was_committed(study: Study, finished: Study) -> None:
    forget(study, keep=5)
    assert not study.status().problems
    left = study.records()
    assert left["unit"].n_unique() == 5
    assert equal(study.run(workers=0, progress=False).records(), finished.records())
    assert equal(study.curves(), finished.curves())
    assert len(units_in(study)) == 32


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5000])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()


def text(path: Path) -> None:
    path.write_text("no records")


def without_its_head(path: Path) -> None:
    path.write_bytes(b"0" * 100 + path.read_bytes()[100:])


def with_a_page_of_noise(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[3 * 4096 : 4 * 4096] = random.Random(0).randbytes(4096)
    path.write_bytes(content)


def with_a_view_for_a_table(path: Path) -> None:
    with sqlite3.connect(path) as writer:
        writer.execute("ALTER TABLE units RENAME TO old")
        writer.execute(
            "CREATE VIEW units AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n"
        )
    writer.close()


SPOILT = [truncate, empty, foreign, text, without_its_head, with_a_page_of_noise, with_a_view_for_a_table]


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_damaged_file_is_named_set_aside_and_its_units_run_again(
    study: Study, finished: Study, spoil: Callable[[Path], None]
) -> None:
    path = study.folder / NAME
    spoil(path)
    spoilt = path.read_bytes()
    with pytest.warns(UserWarning, match=f"damaged: .*{NAME}"):
        study.run(workers=0, progress=False)
    assert not study.status().problems
    assert equal(study.records(), finished.records())
    assert equal(study.curves(), finished.curves())
    assert Study.load(study.folder).status().finished
    (aside,) = (study.folder / "damaged").iterdir()
    assert aside.read_bytes() == spoilt


def damage(study: Study, table: str, number: int, change: Callable[[bytes], bytes]) -> None:
    with sqlite3.connect(study.folder / NAME) as writer:
        ((content,),) = writer.execute(f"SELECT content FROM {table} WHERE number = ?", (number,))
        writer.execute(f"UPDATE {table} SET content = ? WHERE number = ?", (change(content), number))
    writer.close()


def flipped(content: bytes) -> bytes:
    return content[:-9] + bytes([content[-9] ^ 4]) + content[-8:]


@pytest.mark.parametrize("table", ["units", "numbers"])
def test_a_flipped_bit_costs_one_unit(study: Study, finished: Study, table: str) -> None:
    damage(study, table, 3, flipped)
    with pytest.warns(UserWarning, match=f"damaged: .*{NAME}: .*1 unit"):
        left = study.records()
    assert left["unit"].n_unique() >= 30  # the unit, and the test that waits for it
    with pytest.warns(UserWarning, match=f"damaged: .*{NAME}"):
        study.run(workers=0, progress=False)
    assert not study.status().problems
    assert equal(study.records(), finished.records())


def test_numbers_of_another_unit_are_not_believed(study: Study, finished: Study) -> None:
    with sqlite3.connect(study.folder / NAME) as writer:
        writer.execute("UPDATE numbers SET content = (SELECT content FROM numbers WHERE number = 2) WHERE number = 1")
    writer.close()
    with pytest.warns(UserWarning, match="the numbers of 1 unit are damaged"):
        study.run(workers=0, progress=False)
    assert equal(study.records(), finished.records())


def test_what_the_file_says_of_the_study_is_damaged(study: Study, finished: Study) -> None:
    damage(study, "about", 1, flipped)
    assert study.status().problems == (f"{NAME}: what it says of the study is damaged: its checksum does not fit",)
    with pytest.warns(UserWarning, match="what it says of the study is damaged"):
        assert equal(Study.load(study.folder).records(), finished.records())
    with pytest.warns(UserWarning, match="what it says of the study is damaged"):
        study.run(workers=0, progress=False)
    assert not study.status().problems
    assert len(units_in(study)) == 32  # none was run again


def test_flipped_bits_anywhere(study: Study, finished: Study) -> None:
    """Whatever bit it is: no wrong number, no error but ours, and after a run all rows."""
    path, rng = study.folder / NAME, random.Random(1)
    whole, rows = path.read_bytes(), finished.records()
    for _ in range(25):
        for more in study.folder.glob(f"{NAME}-*"):
            more.unlink()
        bit = rng.randrange(8 * len(whole))
        path.write_bytes(whole[: bit // 8] + bytes([whole[bit // 8] ^ 1 << bit % 8]) + whole[bit // 8 + 1 :])
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            left = study.records()
            assert equal(left, rows.join(left.select("unit").unique(), on="unit", how="semi", maintain_order="left")), (
                bit
            )
            study.run(workers=0, progress=False)
        assert equal(study.records(), rows), bit


def test_a_unit_that_is_there_twice_counts_once(study: Study, finished: Study) -> None:
    with sqlite3.connect(study.folder / NAME) as writer:
        for table in ("units", "numbers"):
            writer.execute(f"INSERT INTO {table} SELECT number + 1000, content FROM {table}")
    writer.close()
    assert equal(study.records(), finished.records())
    assert study.status().rows == finished.status().rows


def test_checksums() -> None:
    assert unseal(seal(b"some bytes")) == b"some bytes"
    sealed = seal(b"some bytes")
    for i in range(len(sealed)):
        with pytest.raises(ValueError, match="checksum"):
            unseal(sealed[:i] + bytes([sealed[i] ^ 1]) + sealed[i + 1 :])
    for other in (b"", None, 3, "text", sealed[:-1]):
        with pytest.raises(ValueError, match="checksum"):
            unseal(other)


def test_another_declaration_is_another_folder(study: Study) -> None:
    other = Study.declared(declared(lams=[0.6]), out=study.out)
    assert other.folder != study.folder
    assert other.status().rows == 0
    with pytest.raises(StudyError, match="run the study first"):
        other.records()


def test_a_folder_of_another_study(study: Study) -> None:
    forget(study, keep=3)
    damage(
        study, "about", 1, lambda content: seal(json.dumps(json.loads(unseal(content)) | {"digest": "0" * 64}).encode())
    )
    with pytest.raises(StudyError, match="holds another study"):
        study.run(workers=0, progress=False)


def test_one_at_a_time(study: Study) -> None:
    forget(study, keep=3)
    store = Store(study.folder, study.digest)
    with (
        store.writing({}, study.as_toml(), study.code.about()),
        pytest.raises(StudyError, match=f"process {os.getpid()} is running this study"),
    ):
        study.run(workers=0, progress=False)


def test_a_folder_where_nothing_can_be_written_any_more(
    tmp_path: Path, finished: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some units: an error of one line. What was committed stays, and the next run continues."""
    study, add = finished.at(tmp_path), Store.add

    def full(store: Store, *given: object) -> None:
        if len(units_in(study)) >= 7:
            store._writer.execute("PRAGMA max_page_count = 1")  # type: ignore[union-attr]
        add(store, *given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Store, "add", full)
        with pytest.raises(StudyError, match=r"the disk is full\. What was written before stays"):
            study.run(workers=0, progress=False)
    before = units_in(study)
    assert 7 <= len(before) < 32
    assert equal(study.run(workers=0, progress=False).records(), finished.records())
    assert units_in(study)[: len(before)] == before
