"""Compiled code on disk: damaged files are compiled anew, and without a folder all works, which is said once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core import config

import offtrace
from offtrace._shared import compile_cache
from offtrace._shared.compile_cache import kept_njit


def double(x: int) -> int:
    return 2 * x


def hits() -> int:
    """How often a new function, called once, has found its code on disk."""
    made: Any = kept_njit()(double)
    assert made(4) == 8
    return sum(made.stats.cache_hits.values())


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def empty(content: bytes) -> bytes:
    return b""


def flipped(content: bytes) -> bytes:
    at = len(content) * 2 // 3
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("damage", [cut, empty, flipped], ids=lambda d: d.__name__)
@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_a_damaged_file_is_compiled_anew(
    kind: str, damage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    assert [hits(), hits()] == [0, 1]
    (file,) = tmp_path.rglob(f"*.{kind}")
    file.write_bytes(damage(file.read_bytes()))
    assert [hits(), hits()] == [0, 1]


def test_a_folder_that_is_lost_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the disk is full when the code is to be written."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile_cache, "_said", set())
    made: Any = kept_njit()(double)
    for folder in tmp_path.iterdir():
        folder.rmdir()
        folder.write_text("in its place")
    with pytest.warns(RuntimeWarning, match="NUMBA_CACHE_DIR"):
        assert made(4) == 8


def test_of_two_that_need_it_at_once_one_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one waits while the first compiles, and then finds the code on disk."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    made: list[Any] = []

    def make() -> None:
        made.append(kept_njit((numba.int64,))(double))

    first: Any = numba.njit(double)
    compile_cache.keep_on_disk(first)
    with compile_cache._one_at_a_time(first):
        other = threading.Thread(target=make)
        other.start()
        first.compile((numba.int64,))
        assert not made
    other.join()
    assert sum(made[0].stats.cache_hits.values()) == 1
    assert made[0](4) == 8


def test_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(compile_cache, "_said", set())
    space: dict[str, Any] = {"__name__": __name__}
    exec(compile("def triple(x): return 3 * x", "/dev/null/nowhere.py", "exec"), space)
    with pytest.warns(RuntimeWarning, match="set NUMBA_CACHE_DIR"):
        assert kept_njit()(space["triple"])(4) == 12
    with warnings.catch_warnings():  # said once
        warnings.simplefilter("error")
        assert kept_njit((numba.int64,))(space["triple"])(5) == 15


def test_a_package_that_cannot_be_written_and_no_home(tmp_path: Path) -> None:
    package = tmp_path / "offtrace"
    shutil.copytree(Path(offtrace.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (package, *(f for f in package.rglob("*") if f.is_dir())):
        (folder / "__pycache__").write_text("no folder can be made here, not even by root")
    script = (
        "import offtrace.logs, offtrace.learners, offtrace.operators, offtrace.mdps.sampling; print(offtrace.__file__)"
    )
    outside = {"PYTHONPATH": str(tmp_path), "HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null"}
    done = subprocess.run([sys.executable, "-c", script], env=outside, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(package))
    assert done.stderr.count("offtrace cannot keep compiled code on disk") == 1
