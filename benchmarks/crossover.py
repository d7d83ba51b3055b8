"""No kernel may be slower than the vectorised direct O(T²) one: both on the same batches, over T.

Both sides are `offtrace.targets`; the direct one has its kernel exchanged for `direct.py`, which takes 32 starts side by
side and stops early where nothing is left. For Truncated IS, `on_numpy.SHORT` says up to which T the direct kernel is the
one that users get; its rows "SHORT = 0" show what it would be without, and so where the crossover lies. Every T has the same
number of steps in all: 2048 rows at T = 16, 8 at T = 4096.

    .venv/bin/python benchmarks/run.py crossover
"""

from __future__ import annotations

import argparse
from functools import cache, partial
from typing import Any

import numpy as np
from aware import rules
from batches import SETTINGS, Batch, draw
from timing import Competitor, emit, interleave, ratio

import offtrace as ot
from offtrace.returns.numpy import call_plans, cap_at_readout, every_pair

LENGTHS = (16, 32, 64, 128, 256, 1024, 4096)
STEPS = 32_768
PLANS = {"ours": call_plans.usual_plan}


def with_kernel(kernel: Any) -> Any:
    """In place of `call_plans.usual_plan`: the same with another kernel."""

    @cache
    def plan(trace: ot.Trace, T: int) -> Any:
        ours = PLANS["ours"](trace, T)
        return None if ours is None else ours._replace(kernel=kernel)

    return plan


PLANS |= {
    "direct": with_kernel(every_pair.KERNEL),
    "direct, recursive": with_kernel(every_pair.RECURSIVE),
    "long": with_kernel(cap_at_readout.KERNEL),
}


def calling(rule: ot.Trace, plan: str) -> Competitor:
    def call(x: dict[str, Any]) -> np.ndarray:
        call_plans.usual_plan = PLANS[plan]  # pyright: ignore[reportAttributeAccessIssue]
        return ot.targets(rule, **x)

    return Competitor(Batch.for_targets, call)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.2)
    seconds = parser.parse_args().seconds
    for T in LENGTHS:
        for setting in SETTINGS.values():
            pairs = {name: (rule, "ours") for name, rule in list(rules(setting).items())[1:]}
            if T <= call_plans.SHORT:
                pairs["TruncatedIS, SHORT = 0"] = rules(setting)["TruncatedIS"], "long"
            both = {}
            for name, (rule, plan) in pairs.items():
                both[name, "ours"] = calling(rule, plan)
                both[name, "direct"] = calling(rule, "direct, recursive" if rule.recursive else "direct")
            times = interleave(both, partial(draw, setting=setting, B=STEPS // T, T=T), seconds=seconds)
            for name in pairs:
                r = ratio(times, (name, "direct"), (name, "ours"))  # pyright: ignore[reportArgumentType]
                emit("crossover", T=T, rows=STEPS // T, setting=setting.name, rule=name, **r)
