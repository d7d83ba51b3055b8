"""Files that are written whole, read by their checksums, and swept; locks on folders."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from offtrace._shared.folder_lock import LockedError, locked
from offtrace._shared.whole_files import read_npz, sweep, written_whole


def test_a_bit_flipped_in_any_byte_or_a_cut_never_gives_other_arrays(tmp_path: Path) -> None:
    """A bit that means nothing, as one of the time of writing, may be another."""
    path = tmp_path / "a.npz"
    arrays = {"x": np.arange(5.0), "flags": np.array([True, False])}
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]
    whole = path.read_bytes()
    assert list(read_npz(path)) == ["x", "flags"]
    assert list(read_npz(path, ["flags"])) == ["flags"]
    flipped = [whole[:i] + bytes([whole[i] ^ (1 << i % 8)]) + whole[i + 1 :] for i in range(len(whole))]
    errors = 0
    for damaged in [*flipped, *(whole[:n] for n in range(len(whole)))]:
        path.write_bytes(damaged)
        try:
            read = read_npz(path, arrays)
        except Exception:
            errors += 1
            continue
        for name, array in arrays.items():
            np.testing.assert_array_equal(read[name], array, strict=True)
    assert errors > len(whole)


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"before")

    def fail() -> None:
        with written_whole(path) as file:
            file.write(b"half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert path.read_bytes() == b"before"
    assert [each.name for each in tmp_path.iterdir()] == ["a.bin"]


def test_only_what_dead_processes_left_is_swept(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in (f".a.npz.{dead.pid}.tmp", f".b.npz.{dead.pid}.tmp", f".a.npz.{os.getpid()}.tmp", ".a.npz.x.tmp"):
        (tmp_path / name).touch()
    sweep(tmp_path, "a.npz.*")
    assert {each.name for each in tmp_path.iterdir()} == {
        f".b.npz.{dead.pid}.tmp", f".a.npz.{os.getpid()}.tmp", ".a.npz.x.tmp"
    }  # fmt: skip


def test_one_holds_the_lock_of_a_folder_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(LockedError, match=str(os.getpid())), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
