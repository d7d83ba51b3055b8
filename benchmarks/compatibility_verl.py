"""verl's own tests of rollout correction, run with our functions in the place of verl's, and both on the same batches.

    python benchmarks/compatibility_verl.py [--write FILE]

verl must be installed; its wheel brings its tests. Nothing of it is copied: its test modules are imported after the functions of
`verl.trainer.ppo.rollout_corr_helper` that ours replace have been replaced. Then verl's functions and ours are called on the
batch of `tests/reference/rollout_weights.npz`, and the largest difference of a figure is printed. --write puts verl's figures
into a JSON file: `tests/reference/verl_metrics.json` was made so.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from verl.trainer.ppo import rollout_corr_helper as helper  # pyright: ignore[reportMissingImports]

from offtrace.adapters import verl as ours

REPLACED = ("compute_rollout_correction_and_rejection_mask", "compute_is_metrics", "compute_offpolicy_metrics")
TESTS = ("test_rollout_corr.py", "test_rollout_corr_integration.py")
LEFT_OUT = {"TestRolloutCorrectionConfigNormalization": "verl's configuration alone, nothing of ours is called"}
STORED = Path(__file__).parents[1] / "tests" / "reference" / "rollout_weights.npz"
CASES: dict[str, dict[str, Any]] = {
    f"weight:{level}:{bound}": {"rollout_is": level, "rollout_is_threshold": bound}
    for level, bound in product(("token", "sequence"), (1.0, 1.2, 2.0, "0.9_1.1"))
}
CASES |= {
    f"keep:{name}:{bound}": {"rollout_rs": name, "rollout_rs_threshold": bound}
    for over, k in product(("token", "seq_sum", "seq_mean", "seq_max"), ("k1", "k2", "k3"))
    for name, bound in [(f"{over}_{k}", "0.9_1.15" if k == "k1" else 0.02)]
    if name in helper.SUPPORTED_ROLLOUT_RS_OPTIONS
}


class Report:
    """A plugin of pytest: what became of each test."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.left_out: dict[str, int] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave out what does not call ours."""
        kept = [item for item in items if item.cls is None or item.cls.__name__ not in LEFT_OUT]
        for item in items:
            if item not in kept:
                self.left_out[item.cls.__name__] = self.left_out.get(item.cls.__name__, 0) + 1
        items[:] = kept

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note what became of a test."""
        if report.when == "call" or report.failed:
            self.outcomes[report.nodeid] = report.outcome


def figures(correct: Any) -> dict[str, dict[str, float]]:
    """The metrics of each case."""
    stored = np.load(STORED)
    log_pi, log_mu, mask = (torch.from_numpy(stored[name]) for name in ("log_pi", "log_mu", "valid"))
    made = {name: correct(log_pi, log_mu, mask.double(), **options)[2] for name, options in CASES.items()}
    of_policies = set(correct(log_pi, log_mu, mask.double())[2])
    own = {case: {n: value for n, value in found.items() if n not in of_policies} for case, found in made.items()}
    return own | {"policies": {n: value for n, value in next(iter(made.values())).items() if n in of_policies}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="a JSON file for verl's figures")
    write = parser.parse_args().write
    theirs = figures(helper.compute_rollout_correction_and_rejection_mask)
    mine = figures(ours.compute_rollout_correction_and_rejection_mask)
    apart = {
        (case, name): abs(mine[case][name] - value) / max(abs(value), 1e-3)
        for case, made in theirs.items()
        for name, value in made.items()
    }
    if write:
        write.write_text(json.dumps({"verl": version("verl"), **theirs}, indent=1) + "\n")

    for name in REPLACED:
        setattr(helper, name, getattr(ours, name))
    folder = Path(helper.__file__).parents[3] / "tests" / "trainer" / "ppo"
    report = Report()
    options = ["-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-W", "ignore", "-c", "/dev/null"]
    pytest.main([*(str(folder / test) for test in TESTS), *options, "--rootdir", str(folder)], plugins=[report])
    failed = [name for name, outcome in report.outcomes.items() if outcome != "passed"]
    print(f"\nverl {version('verl')}: {len(report.outcomes) - len(failed)} of {len(report.outcomes)} tests pass")
    for name, number in report.left_out.items():
        print(f"left out: {number} of {name}: {LEFT_OUT[name]}")
    worst = max(apart, key=lambda at: apart[at])
    print(f"{len(apart)} figures; the largest relative difference is {apart[worst]:.1e}, of {' '.join(worst)}")
    return 1 if failed or not report.outcomes or apart[worst] > 1e-6 else 0


if __name__ == "__main__":
    sys.exit(main())
