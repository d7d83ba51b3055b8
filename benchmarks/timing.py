"""Interleaved timing: the competitors take turns on each fresh batch, so that noise and luck hit all alike.

In every repetition a new random batch is drawn (on a repeated one the branch predictor learns the answers), every
competitor gets it in its own array type, untimed, and then all of them are called once, in random order. What is
reported is the ratio of the medians, and the quartiles of the ratio within one repetition.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Competitor(NamedTuple):
    """`prepare` makes its inputs from a batch, untimed; `call` is timed and must return finished results."""

    prepare: Callable[[Any], Any]
    call: Callable[[Any], Any]


def interleave(
    competitors: dict[str, Competitor],
    draw: Callable[[np.random.Generator], Any],
    *,
    seconds: float,
    least: int = 5,
    most: int = 200,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, np.ndarray]:
    """Seconds of each competitor in each repetition; stops after `seconds`, but not before `least` repetitions.

    By the clock time.process_time they are seconds of the processor, of all cores together.
    """
    rng = np.random.default_rng(seed)
    names = list(competitors)
    for _ in range(2):  # compile, and touch everything once
        batch = draw(rng)
        for c in competitors.values():
            c.call(c.prepare(batch))
    times: dict[str, list[float]] = {name: [] for name in names}
    start = time.perf_counter()
    for repetition in range(most):
        if repetition >= least and time.perf_counter() - start > seconds:
            break
        batch = draw(rng)
        inputs = {name: c.prepare(batch) for name, c in competitors.items()}
        for i in rng.permutation(len(names)):
            call, given = competitors[names[i]].call, inputs[names[i]]
            began = clock()
            result = call(given)
            times[names[i]].append(clock() - began)
            del result
    return {name: np.array(t) for name, t in times.items()}


def ratio(times: dict[str, np.ndarray], of: str, to: str) -> dict[str, float]:
    """Ratio of the medians, the quartiles of the ratio within a repetition, and the medians in microseconds."""
    q1, q3 = np.quantile(times[of] / times[to], [0.25, 0.75])
    a, b = np.median(times[of]), np.median(times[to])
    return {
        "ratio": float(a / b),
        "q1": float(q1),
        "q3": float(q3),
        "of_us": float(a) * 1e6,
        "to_us": float(b) * 1e6,
        "repetitions": len(times[of]),
    }


def emit(table: str, **record: Any) -> None:
    """One JSON line for run.py."""
    print(json.dumps({"table": table, **record}), flush=True)
