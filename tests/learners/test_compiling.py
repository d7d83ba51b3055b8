"""What a compiled loop keeps on disk."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numba
import pytest

from offtrace.learners.core import compiling


def test_a_loop_on_disk_is_that_of_this_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it calls may stand in another file, whose changes Numba does not see: the digest tells."""
    (tmp_path / "loops_on_disk.py").write_text(
        "import called_by_loops\n\ndef loop_of(digest):\n    def loop(n):\n        _ = digest\n"
        "        return called_by_loops.f(n)\n    return loop\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two versions may have been written in the same second

    def found(digest: str, result: int) -> tuple[int, int]:
        """What the loop gives, and whether it was on disk."""
        text = f"import numba\n\n@numba.njit\ndef f(n):\n    return n + {result}\n"
        (tmp_path / "called_by_loops.py").write_text(text)
        for name in ("called_by_loops", "loops_on_disk"):
            sys.modules.pop(name, None)
        loops = importlib.import_module("loops_on_disk")
        monkeypatch.setattr(compiling, "loop_digest", lambda: int(digest * 15, 16))
        loop: Any = compiling.compiled_for((numba.int64,), loops.loop_of)
        return loop(1), sum(loop.stats.cache_hits.values())

    assert found("1", 1) == (2, 0)
    assert found("1", 1) == (2, 1)
    assert found("2", 5) == (6, 0)
    assert found("2", 5) == (6, 1)
    assert found("1", 1) == (2, 1)
