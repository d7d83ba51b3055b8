"""What importing costs, and that the example of the README runs."""

from __future__ import annotations

import inspect
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_import_takes_neither_torch_nor_jax_nor_matplotlib() -> None:
    script = "import sys, offtrace; print(sorted({'torch', 'jax', 'matplotlib', 'scipy.stats'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_compiled_code_is_kept_between_processes() -> None:
    """The second process loads the pass from disk, and so does the first if a test before this one has compiled it."""
    script = """
import numpy as np, offtrace as ot
from offtrace._shared import compile_cache
save, saved = compile_cache._Kept.save_overload, []
compile_cache._Kept.save_overload = lambda self, *what: saved.append(what) or save(self, *what)
no = np.zeros(9, bool)
x = np.zeros(9)
ot.targets(ot.Retrace(0.9), reward=x, q=x, next_value=x, terminated=no, truncated=no, log_pi=x, log_mu=x, gamma=0.9)
print(len(saved))
"""

    def compiled() -> int:
        return int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout)

    assert compiled() == 0 or compiled() == 0


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    example = runpy.run_path(str(ROOT / "examples" / "credit.py"))
    monkeypatch.setitem(example["main"].__globals__, "OUT", tmp_path)
    example["main"]()
    assert "Non-Markov Retrace" in capsys.readouterr().out
    assert (tmp_path / "credit.png").stat().st_size > 50_000


def test_lines_of_generated_functions_lie_beyond_the_file_that_they_name() -> None:
    """Python 3.13 fails where it looks for the lines of a function and finds others."""
    from offtrace.returns.numpy import rule_rows

    assert len(Path(rule_rows.__file__).read_text().splitlines()) < rule_rows.BEYOND
    space: dict[str, object] = {}
    exec(compile("\n" * rule_rows.BEYOND + "def f(): pass", rule_rows.__file__, "exec"), space)
    with pytest.raises(OSError, match=r"out of bounds|could not get source"):
        inspect.getsourcelines(space["f"])  # pyright: ignore[reportArgumentType]
