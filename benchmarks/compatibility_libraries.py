"""The adapters of Stable-Baselines3 and tianshou, tested against the libraries, each in an environment of its own in `.bench/`.

    python benchmarks/compatibility_libraries.py [--sb3 CHECKOUT] [--tianshou CHECKOUT]

Our tests of the adapters run there, with the examples in their docstrings. CHECKOUT is a clone of the library: its own tests run
once more with our class or functions in the place of theirs. The exit status is 1 where a test of ours or of theirs fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from environments import ROOT, ensure, variables

ALONE = ["-o", "addopts=", "-p", "no:cacheprovider", "--import-mode=importlib", "-q"]
SB3 = [
    "run",
    "identity",
    "deterministic",
    "predict",
    "save_load",
    "train_eval_mode",
    "custom_policy",
    "callbacks",
    "spaces",
    "cnn",
]
# The first fills the buffer by hand, without log μ; the second asks for optimize_memory_usage. test_dict_env.py and
# test_n_step_replay.py are left out too: TraceDQN refuses dicts of observations and n_steps.
REFUSED = "test_save_load_replay_buffer", "test_warn_buffer"
THEIRS = {
    "sb3": ([f"tests/test_{name}.py" for name in SB3], " and not ".join(["dqn", *REFUSED])),
    "tianshou": (["test/base/test_returns.py"], ""),
}


def pytest(python: Path, *arguments: str, folder: Path = ROOT) -> bool:
    """Whether all tests pass; pytest itself prints how many."""
    names = variables() | {"OMP_NUM_THREADS": "1"}
    names["PYTHONPATH"] += f":{ROOT / 'tests'}:{ROOT / 'benchmarks'}"
    return subprocess.run([str(python), "-m", "pytest", *arguments], env=names, cwd=folder).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in THEIRS:
        parser.add_argument(
            f"--{name}", type=Path, metavar="CHECKOUT", help="a clone, whose tests run with ours inside"
        )
    checkouts = vars(parser.parse_args())
    passed = True
    for name, (files, chosen) in THEIRS.items():
        adapter = ROOT / f"src/offtrace/adapters/{name}.py"
        python, missing = ensure(f"with-{name}")
        if missing:
            print(missing)
            return 1
        print(f"\nour tests of {name}", flush=True)
        passed &= pytest(python, f"tests/adapters/test_{name}.py", str(adapter), "--doctest-modules", *ALONE)
        if checkouts[name] is not None:
            print(f"\ntests of {name} itself, with ours inside: {' '.join(files)} {chosen}", flush=True)
            ours = ["-p", f"ours_in_{name}", "-c", "/dev/null", "--rootdir", ".", "-k", chosen, "-W", "ignore"]
            passed &= pytest(python, *files, *ours, *ALONE[2:], folder=checkouts[name])
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
