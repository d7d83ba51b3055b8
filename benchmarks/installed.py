"""The wheel and the sdist, built, and installed where nothing else of this repository is: `make dist`.

Both must pass `twine check --strict`. The wheel goes into an empty environment outside of the checkout. There the README's lines
of Python run, and commands that need no extra; a command or adapter whose extra is missing must name it. The sdist must hold what
its own tests read.
"""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from environments import HOME, ROOT, installed, variables

NEEDED = (
    "README.md",
    "pyproject.toml",
    "Makefile",
    "requirements-dev.txt",
    "docs/index.md",
    "examples/credit.py",
    "benchmarks/batches.py",
)
COMMANDS = (["--version"], ["doctor"], ["explore", "--no-open", "--output", "explorer.html"], ["audit", "--help"])
LACKING = {
    "import offtrace.adapters.rlax": "pip install '.[jax]'",
    "import offtrace.adapters.torchrl": "pip install '.[torchrl]'",
    "from offtrace import deep; deep.train": "pip install '.[deep]'",
    "from offtrace import logs; open('a.csv', 'w').write('episode'); logs.read('a.csv')": "pip install '.[logs]'",
    "from offtrace import studies; studies.load('bifurcation', 'ci').run()": "pip install '.[studies]'",
    "from offtrace import reports; reports.write('out')": "pip install '.[reports]'",
    "import offtrace.adapters.sb3": "pip install '.[sb3]'",
    "import offtrace.adapters.tianshou": "pip install '.[tianshou]'",
}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        dist, home = Path(folder) / "dist", Path(folder) / "elsewhere"
        home.mkdir()
        HOME.mkdir(exist_ok=True)
        built = [sys.executable, "-m", "hatchling", "build", "-d", str(dist)]
        subprocess.run(built, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, env=variables())
        (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
        with tarfile.open(sdist) as held:
            names = {name.partition("/")[2] for name in held.getnames()}
        problems = [f"the sdist lacks {name}" for name in NEEDED if name not in names]
        python, checker = (_environment(home / name, what) for name, what in (("env", str(wheel)), ("twine", "twine")))
        if python is None or checker is None:
            return _said(["the wheel, or twine, could not be installed, see .bench/installed.log"])
        checked = [str(checker), "-m", "twine", "check", "--strict", str(wheel), str(sdist)]
        done = subprocess.run(checked, capture_output=True, text=True, check=False)
        problems += [done.stdout + done.stderr] if done.returncode else []
        problems += [words for words in _tried(python, home) if words]
    return _said(problems)


def _environment(folder: Path, package: str) -> Path | None:
    """The Python of a new environment with one package and what it needs; None if that could not be installed."""
    python = folder / "bin" / "python"
    done = installed("venv", str(folder), log="installed")
    return python if done and installed("pip", "install", "--python", str(python), package, log="installed") else None


def _tried(python: Path, home: Path) -> list[str]:
    """What does not work in the environment of the wheel, in words."""

    def run(*arguments: str) -> tuple[int, str]:
        clean = {k: v for k, v in variables().items() if k != "PYTHONPATH"} | {"NUMBA_CACHE_DIR": str(home / "numba")}
        done = subprocess.run(
            [str(python), "-P", *arguments], cwd=home, env=clean, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    found = []
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = "".join(example.source for block in blocks for example in doctest.DocTestParser().get_examples(block))
    code, said = run("-c", lines)
    found.append(f"the README's lines: {said}" if code else "")
    for command in COMMANDS:
        code, said = run("-m", "offtrace", *command)
        found.append(f"offtrace {' '.join(command)}: {said}" if code else "")
    for line, extra in LACKING.items():
        code, said = run("-c", line)
        last = said.strip().splitlines()[-1] if said.strip() else "no error"
        found.append("" if code and extra in last else f"{line}: names no {extra}, but says {last}")
    return found


def _said(problems: list[str]) -> int:
    print("\n".join(problems) or "The wheel works where nothing else is; the sdist holds what its tests need.")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
