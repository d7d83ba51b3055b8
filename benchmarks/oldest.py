"""The oldest versions that pyproject.toml claims, really tried: `make oldest`. Not part of `make test`.

For each Python that can be had, an environment under `.bench/` with the lowest version of each dependency that has a wheel, and
in it the tests of what needs no extra. The extras (polars, JAX, PyTorch, …) are not tried.

    .venv/bin/python benchmarks/oldest.py 3.12    only this Python
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

from environments import HOME, ROOT, installed, variables

PYTHONS = ("3.11", "3.12", "3.13")
TESTS = (
    "tests/traces/test_rules.py",
    "tests/test_trajectory.py",
    "tests/mdps",
    "tests/returns/test_identities.py",
    "tests/operators/test_theory.py",
)


def tried(python: str) -> str:
    """What became of one Python: `passed`, or why not."""
    name = f"oldest-{python}"
    HOME.mkdir(exist_ok=True)
    os.environ["PYENV_VERSION"] = ":".join(PYTHONS)  # else pyenv shows only one of its Pythons
    if not installed("venv", "--clear", "--python", python, str(HOME / name), log=name):
        return f"not tried: there is no Python {python} here"
    claimed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pinned = [
        line
        for line in (ROOT / "requirements-dev.txt").read_text().split()
        if line.startswith(("pytest==", "hypothesis=="))
    ]
    program = HOME / name / "bin" / "python"
    lowest = ("--only-binary", ":all:", "--resolution", "lowest-direct")
    if not installed("pip", "install", "--python", str(program), *lowest, *claimed, *pinned, log=name):
        return f"not installed, see .bench/{name}.log"
    print(f"Python {python}: {_versions(program, claimed)}", flush=True)
    cache = {"NUMBA_CACHE_DIR": str(HOME / name / "numba")}
    run = [str(program), "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(run, cwd=ROOT, env={**variables(), **cache}, check=False)
    return "passed" if done.returncode == 0 else "FAILED"


def _versions(program: object, claimed: list[str]) -> str:
    names = [each.partition(">")[0] for each in claimed]
    code = f"from importlib.metadata import version; print(', '.join(f'{{n}} {{version(n)}}' for n in {names}))"
    return subprocess.run([str(program), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    found = {python: tried(python) for python in sys.argv[1:] or PYTHONS}
    for python, words in found.items():
        print(f"Python {python}: {words}")
    sys.exit(any(words != "passed" and not words.startswith("not tried") for words in found.values()))
