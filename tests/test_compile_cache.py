"""Compiled code on disk, and that all works without a folder for it, which is said once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from numba.core import config

import offtrace
from offtrace._shared import compile_cache
from offtrace._shared.compile_cache import cached_njit


def double(x: int) -> int:
    return 2 * x


def hits() -> int:
    """How often a new function, called once, has found its code on disk."""
    compiled: Any = cached_njit()(double)
    assert compiled(4) == 8
    return sum(compiled.stats.cache_hits.values())


def test_the_second_process_finds_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    assert [hits(), hits()] == [0, 1]


def test_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", "")
    compile_cache._warn.cache_clear()
    space: dict[str, Any] = {"__name__": __name__}
    exec(compile("def triple(x): return 3 * x", "/dev/null/nowhere.py", "exec"), space)
    with pytest.warns(RuntimeWarning, match="set NUMBA_CACHE_DIR"):
        assert cached_njit()(space["triple"])(4) == 12
    with warnings.catch_warnings():  # said once
        warnings.simplefilter("error")
        assert cached_njit()(space["triple"])(5) == 15


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
