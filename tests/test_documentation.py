"""The documentation is built as `make docs` does, and its tutorials are run: a warning is an error."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import offtrace
from offtrace.learners.methods import registry

ROOT = Path(__file__).parents[1]


def test_it_is_built_without_a_warning() -> None:
    built = ROOT / "docs" / "_build" / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(ROOT / "docs"), str(built)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert (built / "index.html").exists()
    rules = [rule.__name__ for rule in offtrace.rules() if rule.__module__.startswith("offtrace.")]
    assert [name for name in rules if f"{name}(" not in words(built / "traces.html")] == []
    calls = [row.call for row in registry.rows()]
    assert [call for call in calls if call not in words(built / "methods.html")] == []


def words(page: Path) -> str:
    """The text of a page, without its tags."""
    return html.unescape(re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8")))
