"""Records: what is in the files, and which files are not believed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from offtrace._shared.whole_files import checksum
from offtrace.studies import Study, StudyError, part_files, records, study_file
from studies.small import declared, equal


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study.declared(declared(), out=tmp_path_factory.mktemp("studies")).run(workers=0, progress=False)


@pytest.fixture
def study(finished: Study, tmp_path: Path) -> Study:
    """A copy that a test may spoil."""
    shutil.copytree(finished.out, tmp_path / "copy")
    return finished.at(tmp_path / "copy")


def part(study: Study, kind: str) -> Path:
    return sorted((study.folder / kind).glob("part-*.parquet"))[0]


def test_rows(finished: Study) -> None:
    rows = finished.records()
    assert rows.schema == records.schema("rows")
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
    assert curves.schema == records.schema("curves")
    assert curves.height == 32 * 100
    ends = curves.filter(step=200).select("unit", "mean").sort("unit")
    means = finished.records().group_by("unit").agg(pl.mean("value")).sort("unit")
    assert (ends["mean"] - means["value"]).abs().max() < 1e-12  # type: ignore[operator]


def test_files_load_without_offtrace(finished: Study) -> None:
    whole = pl.read_parquet(finished.folder / "rows" / "*.parquet")
    assert whole.height == finished.records().height
    head = pl.read_parquet_metadata(part(finished, "rows"))
    assert (head["offtrace.schema"], head["offtrace.study"], head["offtrace.kind"]) == ("1", finished.digest, "rows")
    units = pl.read_parquet(finished.folder / "units" / "*.parquet")
    assert units["unit"].n_unique() == units.height == 32
    assert units["worker"].str.starts_with("local:").all()
    about = json.loads((finished.folder / "study.json").read_text())
    assert about["digest"] == finished.digest
    assert set(about["versions"]) >= {"offtrace", "numpy", "python"}
    assert Study.load(finished.folder).records().equals(finished.records())
    assert finished.facts()["counts"]["units"] == 32


def test_a_finished_study_is_not_run_again(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {f: f.stat().st_mtime_ns for f in study.folder.rglob("*.parquet")}
    monkeypatch.setattr("offtrace.studies.local_processes.LocalPool", None)
    assert study.run(progress=False).status().finished
    assert {f: f.stat().st_mtime_ns for f in study.folder.rglob("*.parquet")} == before


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(bytes(content))


def named(path: Path, number: int | None = None) -> Path:
    """The file under the name that fits its bytes."""
    return path.rename(path.with_name(part_files.name(number or part_files.number(path) or 0, path.read_bytes())))


def foreign(path: Path) -> None:
    pl.DataFrame({"unit": ["x"]}).write_parquet(path)
    named(path)


def with_head(path: Path, **head: str) -> None:
    known = {k: v for k, v in pl.read_parquet_metadata(path).items() if "ARROW" not in k}
    pl.read_parquet(path).write_parquet(path, metadata=known | {f"offtrace.{k}": v for k, v in head.items()})


def of_another_study(path: Path) -> None:
    with_head(path, study="0" * 64)
    named(path)


def of_the_future(path: Path) -> None:
    with_head(path, schema="2")
    named(path)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("kind", ["rows", "curves", "units"])
@pytest.mark.parametrize("spoil", [truncate, flip, foreign, of_another_study, of_the_future, empty, Path.unlink])
def test_spoilt_files_are_reported(study: Study, finished: Study, kind: str, spoil: Any) -> None:
    path = part(study, kind)
    spoil(path)
    status = study.status()
    if (kind, spoil) == ("units", Path.unlink):  # as after a kill between two files
        assert not status.finished
        assert not status.problems
        return
    number = path.name[: len("part-000001")]
    assert any(number in problem for problem in status.problems)
    with pytest.warns(UserWarning, match=number):
        left = study.records()
    assert equal(
        left, finished.records().join(left.select("unit").unique(), on="unit", how="semi", maintain_order="left")
    )


def test_what_an_interrupted_write_has_left_is_removed(study: Study, finished: Study) -> None:
    part(study, "units").unlink()
    (study.folder / "rows" / ".part-000009.parquet.tmp").write_bytes(b"half")
    assert equal(study.run(workers=0, progress=False).records(), finished.records())
    assert pl.read_parquet(study.folder / "rows" / "*.parquet").height == finished.records().height
    assert not list(study.folder.rglob("*.tmp"))


@pytest.mark.parametrize("kind", ["rows", "curves", "units"])
@pytest.mark.parametrize("spoil", [truncate, flip])
def test_damaged_files_are_set_aside_and_their_units_run_again(
    study: Study, finished: Study, kind: str, spoil: Any
) -> None:
    path = part(study, kind)
    spoil(path)
    with pytest.warns(UserWarning, match=f"not read: .*{path.name}"):
        study.run(workers=0, progress=False)
    assert not study.status().problems
    assert equal(study.records(), finished.records())
    assert equal(study.curves(), finished.curves())
    aside = [file.relative_to(study.folder).as_posix() for file in study.folder.glob("set-aside/*/*")]
    assert f"set-aside/{kind}/{path.name}" in aside
    assert len(aside) == 3  # the whole part
    whole = pl.read_parquet(study.folder / "rows" / "*.parquet")  # nor do others meet it
    assert whole.height == finished.records().height


@pytest.mark.parametrize("kind", ["rows", "curves", "units"])
def test_no_flipped_bit_reaches_a_parser(study: Study, kind: str) -> None:
    path = part(study, kind)
    content = path.read_bytes()
    regions = {*range(64), *range(len(content) - 64, len(content)), *range(0, len(content), len(content) // 200)}
    for i in regions:
        path.write_bytes(content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :])
        with pytest.raises(part_files.NotReadError, match="damaged: its bytes are not those that were written"):
            part_files.content(path)
    path.write_bytes(content)
    assert part_files.content(path) == content


def test_a_damaged_study_json(study: Study, finished: Study) -> None:
    path = study.folder / "study.json"
    content = path.read_bytes()
    for i in [*range(0, len(content), 97), len(content) - 2]:
        path.write_bytes(content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :])
        assert study_file.about_of(study.folder) == {}
    assert study.status().problems == (
        f"study.json: {path} is damaged: its checksum is not the one in study.json.sha256",
    )
    assert equal(Study.load(study.folder).records(), finished.records())
    part(study, "units").unlink()
    with pytest.warns(UserWarning, match=f"not read: {path} is damaged"):
        study.run(workers=0, progress=False)
    assert json.loads(path.read_text())["digest"] == study.digest
    assert not study.status().problems
    assert len(list(study.folder.glob("set-aside/study.json"))) == 1


def as_before(study: Study) -> None:
    """The folder as offtrace wrote it when names had no checksums."""
    for kind in ("rows", "curves", "units"):
        for path in (study.folder / kind).iterdir():
            path.rename(path.with_name(f"part-{part_files.number(path):06d}.parquet"))
    (study.folder / "study.json.sha256").unlink()
    about = json.loads((study.folder / "study.json").read_text())
    del about["toml"]
    (study.folder / "study.json").write_text(json.dumps(about))


def test_records_of_before_checksums_were_in_names(study: Study, finished: Study) -> None:
    as_before(study)
    assert study.status().finished
    assert equal(Study.load(study.folder).records(), finished.records())
    path = part(study, "units")
    truncate(path)
    with pytest.warns(UserWarning, match="part-000001.parquet: torn"):
        study.run(workers=0, progress=False)
    assert equal(study.records(), finished.records())


def test_reasons(study: Study) -> None:
    for spoil, kind, words in (
        (truncate, "units", "damaged: its bytes"),
        (foreign, "units", "foreign: offtrace did not write it"),
        (of_another_study, "units", "foreign: it belongs to the study 000000000000"),
        (of_the_future, "units", "its schema is 2"),
        (truncate, "rows", "its checksum does not fit"),
        (Path.unlink, "curves", "its curves are missing"),
    ):
        path = part(study, kind)
        content = path.read_bytes()
        spoil(path)
        assert any(words in problem for problem in study.status().problems), words
        for other in (study.folder / kind).glob(f"{path.name[:11]}-*"):
            other.unlink()
        path.write_bytes(content)
    assert study.status().finished


def test_other_files_are_named(study: Study) -> None:
    (study.folder / "rows" / "notes.txt").write_text("mine")
    assert study.status().problems == ("rows/notes.txt: foreign: no part of a study has such a name",)
    assert study.status().finished


def test_a_part_that_is_there_twice_counts_once(study: Study, finished: Study) -> None:
    folder = records.Folder(study.folder, study.digest)
    sums = {}
    for kind in records.KINDS:  # as if two coordinators had run on a file system without locks
        copy = Path(shutil.copy(part(study, kind), study.folder / kind / "copy"))
        with_head(copy, part="part-000099.parquet", **sums)
        sums[kind] = checksum(named(copy, 99).read_bytes())
    assert not study.status().problems
    assert len(folder.look({}).parts) == len(list((study.folder / "units").iterdir()))
    assert equal(study.records(), finished.records())


def test_another_declaration_is_another_folder(study: Study) -> None:
    other = Study.declared(declared(lams=[0.6]), out=study.out)
    assert other.folder != study.folder
    assert other.status().rows == 0
    with pytest.raises(StudyError, match="run the study first"):
        other.records()


def test_a_folder_of_another_study(study: Study) -> None:
    study_file.write(study.folder, study_file.about_of(study.folder) | {"digest": "0" * 64})
    part(study, "units").unlink()
    with pytest.raises(StudyError, match="holds another study"):
        study.run(workers=0, progress=False)


def test_one_at_a_time(study: Study) -> None:
    part(study, "units").unlink()
    with (
        records.Folder(study.folder, study.digest).lock(),
        pytest.raises(StudyError, match=f"process {os.getpid()} is running this study"),
    ):
        study.run(workers=0, progress=False)


def test_a_full_disk(tmp_path: Path, finished: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    study, real = finished.at(tmp_path), os.fsync

    def full(handle: int) -> None:
        if list(study.folder.glob("curves/part-000002*")):  # the first part is whole, the second is not
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr("offtrace.studies.running.FLUSH", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StudyError, match=r"the disk is full\. What was written before stays"):
            study.run(workers=0, progress=False)
    before = study.status()
    assert 0 < before.rows < finished.status().rows
    assert not list(study.folder.rglob("*.tmp"))
    kept = {f: f.read_bytes() for f in study.folder.rglob("units/*.parquet")}
    assert equal(study.run(workers=0, progress=False).records(), finished.records())
    assert all(f.read_bytes() == content for f, content in kept.items())
