"""Messages about what is missing: the command that they name works from a checkout or a wheel, and the extra exists."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import offtrace
from offtrace._shared.extras import install

HOME, ROOT = Path(offtrace.__file__).parent, Path(__file__).parents[1]
SOURCES = [path.read_text(encoding="utf-8") for path in HOME.rglob("*.py")]


def test_no_message_names_offtrace_on_a_package_index() -> None:
    """The name is not ours there yet."""
    pages = [path.read_text(encoding="utf-8") for path in (*(ROOT / "docs").rglob("*.md"), ROOT / "README.md")]
    for text in (*SOURCES, *pages):
        assert not re.findall(r"pip install ['\"]?offtrace\b(?!-)", text)


def test_every_extra_that_a_message_names_exists() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {extra for text in SOURCES for extra in re.findall(r"\b(?:install|from_extra)\(['\"]([\w-]+)['\"]", text)}
    assert {"studies", "reports", "logs", "deep", "jax", "torch"} <= named <= set(known)
    assert "'WHEEL[logs]'" in install("logs")


def test_an_adapter_whose_library_is_missing_says_how_to_install_it() -> None:
    script = "import sys; sys.modules['torch'] = None; import offtrace.adapters.verl"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert (
        f"ImportError: offtrace.adapters.verl needs PyTorch (import of torch halted; None in sys.modules): {install('torch')}"
        in ran.stderr
    )
