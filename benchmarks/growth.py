"""Time per step as one row grows from 10⁴ to 10⁶ steps.

The claim is less than twice, a log factor for Truncated IS aside. One row, so one thread. The fixed cost of a call
(measured at T = 1) is taken off first: it would hide growth at the short end. A length whose predicted time is too long
is left out, and says so.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
from aware import competitor, rules
from batches import SETTINGS, draw
from timing import emit, interleave

LENGTHS = (10_000, 100_000, 1_000_000)
PATIENCE = 4.0  # seconds for one call


def predicted(seen: list[float]) -> float:
    """Seconds of a call ten times as long: as the last two grew, quadratically where only one is known."""
    return seen[-1] * max(10.0, seen[-1] / seen[-2] if len(seen) > 1 else 100.0) if seen else 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    seconds = parser.parse_args().seconds
    for setting in SETTINGS.values():
        them = {name: competitor(rule) for name, rule in rules(setting).items()}
        fixed = interleave(them, partial(draw, setting=setting, B=1, T=1), seconds=0.5)
        seen: dict[str, list[float]] = {name: [] for name in them}
        for T in LENGTHS:
            for name in [name for name in them if predicted(seen[name]) > PATIENCE]:
                emit("growth", setting=setting.name, rule=name, T=T, left_out=f"left out: over {PATIENCE:g} s a call")
                del them[name]
            times = interleave(them, partial(draw, setting=setting, B=1, T=T), seconds=seconds)
            for name, t in times.items():
                seen[name].append(float(np.median(t)))
                net = seen[name][-1] - float(np.median(fixed[name]))
                emit("growth", setting=setting.name, rule=name, T=T, ns_per_step=net / T * 1e9, repetitions=len(t))
