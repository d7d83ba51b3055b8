"""The tests of other libraries and trainers, run with our functions in the place of theirs: `make peers`.

    python benchmarks/peer_suites.py [NAME …]

Each library runs in an environment of its own in `.bench/`, or in the development environment where it is a part of
that. The tests of rlax and verl come with their packages. Those of the others come from a clone below
`.bench/checkouts/`; a library without its clone is left out, and the exit status is then 1, as it is where a test
fails. `ours_in_NAME.py` puts ours in, and says which tests of a file cannot apply, and why; all the others run. Without
a NAME, our own tests and scripts that need these libraries or TRL run too, and the counts are written to
docs/peers.inc, which docs/libraries.md includes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from environments import HOME, ROOT, ensure, variables

CHECKOUTS = HOME / "checkouts"
TABLE = ROOT / "docs" / "peers.inc"
ALONE = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "--import-mode=importlib"]
# fmt: off
SB3 = ["run", "identity", "deterministic", "predict", "save_load", "train_eval_mode", "custom_policy", "callbacks",
       "spaces", "cnn", "her"]
# fmt: on


class Suite(NamedTuple):
    """The test files of a library and where they are."""

    package: str
    files: list[str]
    environment: str = ""
    checkout: str = ""
    """A folder below CHECKOUTS; without it `files` are below the folder of the installed packages."""
    repository: str = ""
    settings: dict[str, str] = {}  # noqa: RUF012 (never changed)
    """Variables of the environment; PYTHONPATH is added to ours."""


RLAX = [f"rlax/_src/{name}_test.py" for name in ("multistep", "vtrace", "value_learning", "nonlinear_bellman")]
SUITES = {
    "rlax": Suite("rlax", RLAX),
    "rlax, rank promotion refused": Suite("rlax", RLAX, settings={"JAX_NUMPY_RANK_PROMOTION": "raise"}),
    "torchrl": Suite(
        "torchrl", ["test/objectives/test_values.py::TestAdv"], checkout="rl", repository="github.com/pytorch/rl"
    ),
    "sb3": Suite(
        "stable-baselines3",
        [f"tests/test_{name}.py" for name in SB3],
        "with-sb3",
        "stable-baselines3",
        "github.com/DLR-RM/stable-baselines3",
    ),
    "tianshou": Suite(
        "tianshou", ["test/base/test_returns.py"], "with-tianshou", "tianshou", "github.com/thu-ml/tianshou"
    ),
    "verl": Suite(
        "verl",
        [f"tests/trainer/ppo/test_rollout_corr{name}.py" for name in ("", "_integration")],
        "with-verl",
    ),
    "slime": Suite(
        "slime",
        [f"tests/test_{name}.py" for name in ("policy_loss", "cispo_loss", "loss_cp_invariance")],
        "with-trainers", "slime", "github.com/THUDM/slime", {"PYTHONPATH": ".:tests"},
    ),
    "prime-rl": Suite(
        "prime-rl",
        ["tests/unit/train/rl/test_loss.py"],
        "with-trainers", "prime-rl", "github.com/PrimeIntellect-ai/prime-rl",
        {"PYTHONPATH": "src:packages/prime-rl-configs/src:."},
    ),
    "skyrl": Suite(
        "SkyRL",
        [f"tests/train/algorithms/test_{name}.py" for name in ("losses", "off_policy_correction")],
        "with-trainers", "SkyRL", "github.com/NovaSky-AI/SkyRL", {"PYTHONPATH": ".:skyrl-gym"},
    ),
    "areal": Suite(
        "AReaL",
        ["tests/test_rejection_sampling.py"],
        "with-trainers", "AReaL", "github.com/inclusionAI/AReaL", {"PYTHONPATH": "."},
    ),
}  # fmt: skip


def run(name: str, suite: Suite) -> list[dict[str, Any]] | str:
    """Run the tests of a library; the counts of each file, or why there are none."""
    python, missing = ensure(suite.environment) if suite.environment else (Path(sys.executable), {})
    if missing:
        return str(missing)
    ours = variables()["PYTHONPATH"] + os.pathsep + str(ROOT / "benchmarks")
    names = variables() | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"} | suite.settings
    names["PYTHONPATH"] = os.pathsep.join(filter(None, [ours, suite.settings.get("PYTHONPATH")]))
    if suite.checkout:
        folder = CHECKOUTS / suite.checkout
        if not folder.exists():
            return f"no clone of {suite.repository} in {folder.relative_to(ROOT)}"
    else:
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        folder = Path(subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip())
    result = HOME / "peer_suite.json"
    result.unlink(missing_ok=True)
    short = name.partition(",")[0]
    # fmt: off
    options = ["-q", "--no-header", "--tb=short", "-W", "ignore", "-c", "/dev/null", "--rootdir", ".", "--noconftest",
               "--import-mode=importlib", "-p", "no:cacheprovider", "-p", f"ours_in_{short}", "-p", "count_tests"]
    # fmt: on
    package = suite.package if suite.environment != "with-trainers" else _at_commit(suite.package, folder)
    names["COUNT_TESTS"] = json.dumps({"plugin": f"ours_in_{short}", "result": str(result), "package": package})
    subprocess.run([python, "-m", "pytest", *suite.files, *options], env=names, cwd=folder)
    return json.loads(result.read_text()) if result.exists() else "pytest did not run"


def _at_commit(package: str, folder: Path) -> str:
    """The name of a package that is not installed, with the commit of its clone, where git knows it."""
    if not (folder / ".git").exists():
        return f"{package} (checkout)"
    commit = subprocess.run(
        ["git", "rev-parse", "--short=9", "HEAD"], cwd=folder, capture_output=True, text=True, check=True
    )
    return f"{package} at {commit.stdout.strip()}"


CHECKS = {  # scripts and tests of ours that need a library: environment, arguments of Python
    "our tests of the adapter of Stable-Baselines3": (
        "with-sb3",
        ["-m", "pytest", *ALONE, "tests/adapters/test_sb3.py"],
    ),
    "our tests of the adapter of tianshou": (
        "with-tianshou",
        ["-m", "pytest", *ALONE, "tests/adapters/test_tianshou.py"],
    ),
    "verl's metrics and ours": ("with-verl", ["benchmarks/verl_metrics.py"]),
    "the recipe for TRL, with its trainer": ("with-trl", ["benchmarks/trl_recipe.py"]),
}


def check(environment: str, arguments: list[str]) -> bool:
    """Whether a check of ours passes in its environment."""
    python, missing = ensure(environment)
    if missing:
        print(missing)
        return False
    names = variables() | {"OMP_NUM_THREADS": "1"}
    names["PYTHONPATH"] += os.pathsep + str(ROOT / "tests")
    return subprocess.run([python, *arguments], env=names, cwd=ROOT).returncode == 0


def table(counts: dict[str, list[dict[str, Any]]]) -> str:
    """The counts as Markdown."""
    rows = [
        "| library | file | tests | pass | skip themselves | fail | left out, and why |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, files in counts.items():
        _, comma, setting = name.partition(",")
        for file in files:
            reasons = "; ".join(f"{number} {why}" for why, number in sorted(file["left_out"].items()))
            rows.append(
                f"| {file['version']}{comma}{setting} | `{file['file']}` | {file['tests']} | {file['passed']} | "
                f"{file['skipped']} | {len(file['failed'])} | {reasons or 'none'} |"
            )
    return "\n".join(rows)


def main() -> int:
    chosen = sys.argv[1:] or list(SUITES)
    unknown = [name for name in chosen if name not in SUITES]
    if unknown:
        print(f"no suite {', '.join(unknown)}; there are: {', '.join(SUITES)}")
        return 2
    counts, good = {}, True
    for name in chosen:
        print(f"\n{name}", flush=True)
        got = run(name, SUITES[name])
        if isinstance(got, str):
            print(f"not run: {got}")
            good = False
        else:
            counts[name] = got
            good &= bool(got) and not any(file["failed"] for file in got)
    for name, (environment, arguments) in CHECKS.items() if chosen == list(SUITES) else ():
        print(f"\n{name}", flush=True)
        good &= check(environment, arguments)
    print("\n" + table(counts))
    for files in counts.values():
        for file in files:
            for test in file["failed"]:
                print(f"FAILED {file['file']} {test}")
    if list(counts) == list(SUITES):
        TABLE.write_text(table(counts) + "\n")
        print(f"\nwritten to {TABLE.relative_to(ROOT)}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
