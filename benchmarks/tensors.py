"""What it costs to pass PyTorch tensors or JAX arrays on the CPU in place of NumPy arrays: kernels and memory are the same.

The three take turns on the same fresh batches, outside of torch.compile and of jit, with twenty calls in a row, and with one, in
which all the code and the arrays are no more in the cache. Reported is the median of the difference to NumPy in a repetition.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from batches import NEAR, Batch, draw
from listed_rules import trajectory_aware
from timing import Competitor, emit, interleave

import offtrace as ot

SHAPES = ((1, 16), (32, 32), (128, 128))  # below 30,000 steps, from where on threads come in, which must be woken
KINDS: dict[str, Callable[[np.ndarray], Any]] = {"NumPy": np.asarray, "PyTorch": torch.from_numpy, "JAX": jnp.asarray}


def converted(batch: Batch, convert: Callable[[np.ndarray], Any]) -> dict[str, Any]:
    return {n: convert(a) if isinstance(a, np.ndarray) else a for n, a in batch.for_targets().items()}


def measured(rule: ot.Trace, B: int, T: int, calls: int) -> dict[str, np.ndarray]:
    """Seconds of a call, of so many in a row."""

    def call(x: dict[str, Any]) -> None:
        for _ in range(calls):
            ot.targets(rule, **x)

    times = interleave(
        {name: Competitor(partial(converted, convert=kind), call) for name, kind in KINDS.items()},
        lambda rng: draw(rng, NEAR, B, T),
        seconds=3,
        least=50,
        most=1000,
    )
    return {name: t / calls for name, t in times.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for rule in (ot.Retrace(lam=0.95), *(rule for rule in trajectory_aware(0.95) if rule.recursive)):
        for B, T in SHAPES:
            warm, cold = (measured(rule, B, T, calls) for calls in (20, 1))
            for name in ("PyTorch", "JAX"):
                more, at_first = (float(np.median(t[name] - t["NumPy"]) * 1e6) for t in (warm, cold))
                numpy_us = float(np.median(warm["NumPy"]) * 1e6)
                about = {"library": name, "rule": type(rule).__name__, "shape": [B, T]}
                emit("tensors", **about, numpy_us=numpy_us, more_us=more, cold_us=at_first)
