"""Inside `jax.jit` on the CPU, where most users of JAX test: offtrace against rlax, from log-probabilities to targets, float32.

Both are one jitted function of the same arrays, called alike: nothing is checked. The seconds are those of a first call at its
shape, tracing and compilation, in a process that has compiled for other shapes. All on one core, as in `peers.py`.
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from typing import Any

import numpy as np
import peers
from batches import FAR, NEAR, Batch, Setting, draw
from timing import Competitor, emit, interleave, ratio

import offtrace as ot

SHAPES = ((32, 128), (8, 2048), (256, 128))
RLAX = "rlax Retrace"


def jitted(rule: ot.Trace, gamma: float) -> Competitor:
    import jax
    import jax.numpy as jnp

    call = jax.jit(lambda arrays: ot.targets(rule, **arrays, gamma=gamma))

    def prepare(x: Batch) -> dict[str, Any]:
        return {n: jnp.asarray(a) for n, a in x.for_targets().items() if isinstance(a, np.ndarray)}

    return Competitor(prepare, lambda arrays: call(arrays).block_until_ready())


def first_calls(competitors: dict[str, Competitor], batch: Batch) -> dict[str, float]:
    """Seconds of a first call of each."""
    seconds = {}
    for name, competitor in competitors.items():
        given = competitor.prepare(batch)
        began = time.perf_counter()
        competitor.call(given)
        seconds[name] = time.perf_counter() - began
    return seconds


def compare(setting: Setting, seconds: float, seed: int) -> None:
    lam = setting.lam
    rules = (
        ot.Retrace(lam),
        ot.ImportanceSampling(lam),
        ot.NonMarkovRetrace(lam),
        ot.RBIS(lam),
        ot.TruncatedIS(1.0, lam),
    )
    competitors = {RLAX: peers.rlax(setting)[RLAX]} | {type(r).__name__: jitted(r, setting.gamma) for r in rules}
    for B, T in SHAPES:
        drawn = partial(draw, setting=setting, B=B, T=T)
        first = first_calls(competitors, drawn(np.random.default_rng(seed)))
        times = interleave(competitors, drawn, seconds=seconds, least=20, seed=seed)
        for name in list(competitors)[1:]:
            about = {"rule": name, "shape": [B, T], "setting": setting.name}
            emit("jitted", **about, **ratio(times, name, RLAX), first=first[name], first_of_rlax=first[RLAX])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # before jax counts the cores
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for i, level in enumerate((NEAR, FAR)):
        compare(level, options.seconds, seed=i)
