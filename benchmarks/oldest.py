"""Both ends of the ranges that pyproject.toml claims, really tried: `make oldest`. Not part of `make test`.

Each environment under `.bench/` has the lowest version of each requirement that has a wheel, or the newest that resolves, and
runs the tests that need it.

    .venv/bin/python benchmarks/oldest.py                  the dependencies at their lowest, on each Python that can be had
    .venv/bin/python benchmarks/oldest.py 3.12             only this Python
    .venv/bin/python benchmarks/oldest.py extras           each extra at its lowest, on the oldest Python
    .venv/bin/python benchmarks/oldest.py newest           dependencies and extras at their newest, on the newest Python
    .venv/bin/python benchmarks/oldest.py extras logs ray  only these extras

PyTorch stays at one version, of which there is a small build for CPUs: others bring gigabytes of CUDA.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from environments import HOME, ROOT, TORCH, installed, variables

PYTHONS = ("3.11", "3.12", "3.13")
CLAIMED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TESTS = (
    "tests/traces/test_rules.py",
    "tests/test_trajectory.py",
    "tests/mdps",
    "tests/returns/test_identities.py",
    "tests/operators/test_theory.py",
    # what uses names of Numba that are not public
    "tests/test_compile_cache.py",
    "tests/learners/test_algorithm.py",
    "tests/returns/test_battery.py",
)
# The other tests name environments that only newer versions have, such as Taxi-v4.
AGELESS = "not Taxi and not Cliff and not optima and not three and not refused and not chance"
# An extra, what else its tests need (extras or packages), and the tests.
EXTRAS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "plot": ((), ("tests/test_figures.py", "tests/test_package.py")),
    "gymnasium": ((), ("tests/mdps/test_toy_text.py", "tests/learners/test_host.py", "-k", AGELESS)),
    "reports": (
        ("studies",),
        ("tests/reports/test_statistics.py", "tests/reports/test_study.py", "tests/reports/test_study_page.py"),
    ),
    "logs": (
        ("pandas>=2.2.2",),
        ("tests/logs/test_read.py", "tests/logs/test_bad_logs.py", "tests/logs/test_fitted.py"),
    ),
    "studies": (
        (),
        ("tests/studies/test_declaration.py", "tests/studies/test_records.py", "tests/studies/test_work.py"),
    ),
    "ray": (("studies", "logs"), ("tests/studies/test_ray.py",)),
    "torch": ((), ("tests/traces/test_symbols.py",)),
    "torchrl": (("gymnasium",), ("tests/adapters/test_torchrl_states.py", "tests/adapters/test_torchrl_order.py")),
    "sb3": ((), ("tests/adapters/test_sb3.py",)),
    "tianshou": ((), ("tests/adapters/test_tianshou.py",)),
    "jax": ((), ("tests/traces/test_symbols.py", "tests/returns/test_jax.py", "-k", "not triton")),
    "notebook": (("plot", "ipykernel>=6.29", "nbclient>=0.10"), ("tests/test_notebook_kernel.py",)),
    "deep": ((), ("tests/deep/test_replay_memory.py", "tests/deep/test_agent.py")),
}
# Ray 2.20's own cluster for tests refuses to remove a node while a study runs there.
LATER = {"ray": ("-k", "not killed")}


def tried(name: str, python: str, requirements: Iterable[str], tests: Iterable[str], resolution: str) -> str:
    """What became of one environment: `passed`, or why not."""
    HOME.mkdir(exist_ok=True)
    os.environ["PYENV_VERSION"] = ":".join(PYTHONS)  # else pyenv shows only one of its Pythons
    if not installed("venv", "--clear", "--python", python, str(HOME / name), log=name):
        return f"not tried: there is no Python {python} here"
    kept = (line for line in (ROOT / "requirements-dev.txt").read_text().split())
    pinned = [line for line in kept if line.startswith(("pytest==", "hypothesis=="))]
    program = HOME / name / "bin" / "python"
    options = ("--only-binary", ":all:", "--resolution", resolution)
    requirements = list(requirements)
    if not installed("pip", "install", "--python", str(program), *options, *requirements, *pinned, log=name):
        return f"not installed, see .bench/{name}.log"
    print(f"{name}, Python {python}: {_versions(program, requirements)}", flush=True)
    cache = {"NUMBA_CACHE_DIR": str(HOME / name / "numba"), "JAX_COMPILATION_CACHE_DIR": str(HOME / name / "jax")}
    # Other versions warn of other things.
    run = [str(program), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", *tests]
    done = subprocess.run(run, cwd=ROOT, env={**variables(), **cache}, check=False)
    return "passed" if done.returncode == 0 else "FAILED"


def _versions(program: Path, requirements: list[str]) -> str:
    names = [re.split(r"[<>=\[]", each)[0] for each in requirements]
    code = f"from importlib.metadata import version; print(', '.join(f'{{n}} {{version(n)}}' for n in {names}))"
    return subprocess.run([str(program), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def dependencies(pythons: Iterable[str]) -> dict[str, str]:
    """What needs no extra, on each Python, at its lowest."""
    return {
        name: tried(name, python, CLAIMED["dependencies"], TESTS, "lowest-direct")
        for python in pythons
        for name in [f"oldest-{python}"]
    }


def extras(names: Iterable[str], end: str) -> dict[str, str]:
    """Each extra with the dependencies: its `oldest`, or its `newest`."""
    resolution, python = ("lowest-direct", PYTHONS[0]) if end == "oldest" else ("highest", PYTHONS[-1])
    found = {}
    for extra in names:
        others, tests = EXTRAS[extra]
        tests = (*tests, *LATER.get(extra, ())) if end == "oldest" else tests
        listed = CLAIMED["optional-dependencies"]
        wanted = [one for each in others for one in listed.get(each, [each])] + listed.get(extra, [])
        torch = [TORCH] if extra in ("torch", "torchrl", "sb3", "tianshou") else []
        requirements = list(
            dict.fromkeys([*CLAIMED["dependencies"], *(one for one in wanted if "torch>" not in one), *torch])
        )
        found[f"{extra}-{end}"] = tried(f"{extra}-{end}", python, requirements, tests, resolution)
    return found


if __name__ == "__main__":
    asked = sys.argv[1:]
    if asked[:1] == ["extras"]:
        found = extras(asked[1:] or EXTRAS, "oldest")
    elif asked[:1] == ["newest"]:
        found = extras(asked[1:] or EXTRAS, "newest")
    else:
        found = dependencies(asked or PYTHONS)
    for name, words in found.items():
        print(f"{name}: {words}")
    sys.exit(any(words != "passed" and not words.startswith("not tried") for words in found.values()))
