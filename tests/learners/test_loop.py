"""The compiled loop: what Numba's cache knows of it, and that its steps count no references to arrays."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import offtrace as ot
from offtrace.learners import EpsilonGreedy, arrays, control
from offtrace.learners.loop import loop
from offtrace.mdps import bifurcation


def test_a_change_of_any_file_is_seen_by_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba does not see changes of what a loop calls in other files: its closure has the time of the newest one."""
    code: Any = getattr(loop(), "py_func", loop())
    newest = arrays.newest_file()
    assert newest in [cell.cell_contents for cell in code.__closure__]
    (tmp_path / "new.py").write_text("")
    monkeypatch.setattr(arrays, "__file__", str(tmp_path / "arrays.py"))
    arrays.newest_file.cache_clear()
    assert arrays.newest_file() == (tmp_path / "new.py").stat().st_mtime_ns != newest
    arrays.newest_file.cache_clear()


@pytest.mark.skipif(not hasattr(loop(), "py_func"), reason="nothing is compiled")
def test_no_references_are_counted() -> None:
    """Counting them made a step ten times as long."""
    control(ot.Retrace(0.9), bifurcation(1), behavior=EpsilonGreedy(0.2), steps=10)
    compiled: Any = loop()
    if not compiled.overloads or any(compiled.stats.cache_hits.values()):
        pytest.skip("it came from the cache, which has no readable code")
    for text in compiled.inspect_llvm().values():
        body = re.split(r"^define ", text, flags=re.MULTILINE)
        main = next(b for b in body if "learn" in b.split("(")[0] and "cpython" not in b.split("(")[0])
        assert "call void @NRT_incref" not in main
