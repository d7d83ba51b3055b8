"""What importing costs, and that the example of the README runs."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
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
from offtrace.returns.numpy import linear, read_steps
no = np.zeros(9, bool)
x = np.zeros(9)
ot.targets(ot.Retrace(0.9), reward=x, q=x, next_value=x, terminated=no, truncated=no, log_pi=x, log_mu=x, gamma=0.9)
print(sum(sum(kernel.stats.cache_misses.values()) for kernel in (read_steps.read, linear.solve, read_steps.write)))
"""

    def compiled() -> int:
        return int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout)

    assert compiled() == 0 or compiled() == 0


COMPUTED = """
import sys
import numpy as np, offtrace as ot
from offtrace import learners, mdps, operators
from helpers import TRACES
rng = np.random.default_rng(0)
x = {name: rng.normal(size=(2, 12)) for name in ("reward", "q", "next_value")}
x |= {name: np.log(rng.uniform(0.2, 0.8, (2, 12))) for name in ("log_pi", "log_mu")}
x |= {"terminated": rng.random((2, 12)) < 0.1, "truncated": np.zeros((2, 12), bool), "gamma": 0.9}
custom = {"pair": rng.integers(0, 3, (2, 12)), "greedy": rng.random((2, 12)) < 0.5}
made = [ot.targets(trace, **x, **custom) for trace in TRACES if not trace.per_step]
value = {("value" if name == "q" else name): array for name, array in x.items()}
made += [ot.state_targets(**value).target, ot.state_targets(ot.RBIS(0.9), **value).target]
made += [ot.weights(ot.ImportanceSampling(), log_pi=x["log_pi"], log_mu=x["log_mu"], level="prefix")]
mdp = mdps.random_walk(5, gamma=0.9)
policies = {"target": mdps.uniform(mdp), "behavior": mdps.uniform(mdp)}
op = operators.Operator(ot.RBIS(0.9), mdp, **policies)
made += [op.C, np.array([op.contraction.lower]), learners.evaluate(ot.Retrace(0.9), mdp, **policies, steps=300).Q]
np.savetxt(sys.stdout, np.concatenate([one.ravel() for one in made]))
"""


def test_everything_runs_as_python_too() -> None:
    """NUMBA_DISABLE_JIT=1, for a debugger: the same numbers as in this process, but for rounding."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    env = os.environ | {"PYTHONPATH": path, "NUMBA_DISABLE_JIT": "1"}
    run = subprocess.run([sys.executable, "-c", COMPUTED], env=env, check=True, capture_output=True, text=True)
    with redirect_stdout(StringIO()) as compiled:
        exec(COMPUTED, {})
    as_python, wanted = (np.array(said.split(), float) for said in (run.stdout, compiled.getvalue()))
    np.testing.assert_allclose(as_python, wanted, rtol=1e-9, atol=1e-12)


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    example = runpy.run_path(str(ROOT / "examples" / "credit.py"))
    monkeypatch.setitem(example["main"].__globals__, "OUT", tmp_path)
    example["main"]()
    assert "Non-Markov Retrace" in capsys.readouterr().out
    assert (tmp_path / "credit.png").stat().st_size > 50_000
