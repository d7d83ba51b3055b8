"""The planted bugs are still where they were: `planted_bugs.py` runs them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from planted_bugs import BUGS, PACKAGE, ROOT, Bug, PlantedBugError, copy_of_tree, first_failure, planted


def test_there_are_thirty() -> None:
    assert len(BUGS) == 30
    assert len({(bug.file, bug.old) for bug in BUGS}) == 30


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.breaks)
def test_each_can_be_planted(bug: Bug) -> None:
    text = planted(bug, ROOT)  # an error unless the old lines are there exactly once
    if bug.file.endswith(".py"):
        ast.parse(text)
    assert bug.new in text
    for test in bug.tests:
        assert (ROOT / test.partition("::")[0]).exists(), test


def test_lines_that_are_not_there_once_are_refused(tmp_path: Path) -> None:
    file = tmp_path / PACKAGE / "some.py"
    file.parent.mkdir(parents=True)
    bug = Bug("some.py", "x = 1", "x = 2", "x", ())
    for text, times in (("y = 1\n", 0), ("x = 1\nx = 1\n", 2)):
        file.write_text(text)
        with pytest.raises(PlantedBugError, match=f"has {times} times, not once"):
            planted(bug, tmp_path)
    file.write_text("x = 1\n")
    assert planted(bug, tmp_path) == "x = 2\n"


def test_the_copy_is_what_is_tested(tmp_path: Path) -> None:
    """In the copy its own package is imported, and the test that fails is named."""
    assert (copy_of_tree(tmp_path) / "src" / "offtrace").is_dir()
    test = tmp_path / "tests" / "test_where.py"
    test.write_text(f"""
import offtrace

def test_where():
    assert offtrace.__file__.startswith({str(tmp_path)!r})

def test_wrong():
    assert False
""")
    assert first_failure(tmp_path, ["tests/test_where.py"], tmp_path / "numba") == "tests/test_where.py::test_wrong"
