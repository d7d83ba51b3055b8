"""The documentation is built as `make docs` does, and its tutorials are run: a warning is an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_it_is_built_without_a_warning() -> None:
    built = ROOT / "docs" / "_build" / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(ROOT / "docs"), str(built)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert (built / "index.html").exists()
