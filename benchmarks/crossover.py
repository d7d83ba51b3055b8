"""No kernel may be slower than the vectorised direct O(T²) one: both on the same batches, over T.

Both sides are `offtrace.targets`; the direct one has its kernel exchanged for `every_pair.py`, which takes 32 starts side by
side and stops early where nothing is left. For Truncated IS, `passes.FEW_STEPS` says up to which T the direct kernel is the
one that users get; its rows "FEW_STEPS = 0" show the other kernel there, and so where the crossover lies. Every T has the same
number of steps in all: 2048 rows at T = 16, 8 at T = 4096.

    .venv/bin/python benchmarks/run.py crossover
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
from aware import rules
from batches import SETTINGS, Batch, draw
from timing import Competitor, emit, interleave, ratio

import offtrace as ot
from offtrace.returns.numpy import every_pair, passes, readout_cap

LENGTHS = (16, 32, 64, 128, 256, 1024, 4096)
STEPS = 32_768
KERNELS = {"direct": every_pair.sweep, "direct, recursive": every_pair.sweep_recursive, "long": readout_cap.sweep}
CHOSEN = passes.plan_of


def calling(rule: ot.Trace, kernel: str) -> Competitor:
    """The rule by the kernel that is chosen for it ("ours"), or by another."""

    def call(x: dict[str, Any]) -> np.ndarray:
        passes.plan_of = CHOSEN if kernel == "ours" else by_kernel  # pyright: ignore[reportAttributeAccessIssue]
        return ot.targets(rule, **x)

    def by_kernel(*arguments: Any) -> Any:
        return CHOSEN(*arguments)._replace(kernel=KERNELS[kernel])

    return Competitor(Batch.for_targets, call)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.2)
    seconds = parser.parse_args().seconds
    for T in LENGTHS:
        for setting in SETTINGS.values():
            pairs = {name: (rule, "ours") for name, rule in list(rules(setting).items())[1:]}
            if T <= passes.FEW_STEPS:
                pairs["TruncatedIS, FEW_STEPS = 0"] = rules(setting)["TruncatedIS"], "long"
            both = {}
            for name, (rule, plan) in pairs.items():
                both[name, "ours"] = calling(rule, plan)
                both[name, "direct"] = calling(rule, "direct, recursive" if rule.recursive else "direct")
            times = interleave(both, partial(draw, setting=setting, B=STEPS // T, T=T), seconds=seconds)
            for name in pairs:
                r = ratio(times, (name, "direct"), (name, "ours"))  # pyright: ignore[reportArgumentType]
                emit("crossover", T=T, rows=STEPS // T, setting=setting.name, rule=name, **r)
