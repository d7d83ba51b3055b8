"""Files that are written whole, sealed with their checksum, and swept; locks on folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from offtrace._shared.folder_lock import LockedError, locked
from offtrace._shared.whole_files import (
    DamagedError,
    opened_sealed,
    sweep,
    written_whole,
)


def seal(path: Path, content: bytes) -> None:
    with written_whole(path, sealed=True) as file:
        file.write(content)


def unsealed(path: Path, length: int) -> bytes:
    with opened_sealed(path) as file:
        return file.read(length)


def test_a_bit_flipped_in_any_byte_and_every_cut_of_a_sealed_file_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    seal(path, b"some bytes")
    whole = path.read_bytes()
    assert unsealed(path, 10) == b"some bytes"
    flipped = [whole[:i] + bytes([whole[i] ^ (1 << i % 8)]) + whole[i + 1 :] for i in range(len(whole))]
    for damaged in [*flipped, *(whole[:n] for n in range(len(whole))), whole + b"\n"]:
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match=r"a\.bin"):
            unsealed(path, 10)


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    seal(path, b"before")

    def fail() -> None:
        with written_whole(path, sealed=True) as file:
            file.write(b"half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert unsealed(path, 6) == b"before"
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
