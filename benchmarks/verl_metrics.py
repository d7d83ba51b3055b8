"""The metrics of verl's rollout correction and ours, of the same batch: the largest difference.

    python benchmarks/verl_metrics.py [--write FILE]

verl must be installed. Both are called on the batch of `tests/reference/rollout_weights.npz`. --write puts verl's figures into
a JSON file: `tests/reference/verl_metrics.json` was made so.
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
import torch
from verl.trainer.ppo import rollout_corr_helper as helper  # pyright: ignore[reportMissingImports]

from offtrace.adapters import verl as ours

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

    worst = max(apart, key=lambda at: apart[at])
    print(
        f"verl {version('verl')}: {len(apart)} figures; the largest relative difference: {apart[worst]:.1e}, {' '.join(worst)}"
    )
    return 1 if apart[worst] > 1e-6 else 0


if __name__ == "__main__":
    sys.exit(main())
