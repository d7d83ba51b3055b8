"""What the host does before a GPU can start: Python's time of one eager call on CUDA tensors, in microseconds.

    .venv/bin/python benchmarks/host.py

A call returns once its kernels are queued. Twenty calls are made in a row after the device has come to rest, so that the queue is
never full; the least of many such rows is reported, and how many kernels a call launches for each part of the batch. One JSON
record a line; without a GPU it says so.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from batches import NEAR, draw
from timing import emit

import offtrace as ot

SHAPES = ((32, 128), (4096, 256), (1024, 1024), (256, 4096), (16, 65_536))
RULES = ("Retrace", "TreeBackup", "NonMarkovRetrace", "RBIS", "TruncatedIS")
CALLS, ROWS = 20, 30


def on_gpu(seed: int, B: int, T: int) -> dict[str, Any]:
    batch = draw(np.random.default_rng(seed), NEAR, B, T).for_targets()
    return {n: torch.from_numpy(a).cuda() if isinstance(a, np.ndarray) else a for n, a in batch.items()}


def least(rule: ot.Trace, arrays: dict[str, Any]) -> float:
    """Microseconds of a call, on the host."""
    found = []
    for _ in range(ROWS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            ot.targets(rule, **arrays)
        found.append((time.perf_counter() - start) / CALLS)
    torch.cuda.synchronize()
    return min(found) * 1e6


def measure(name: str, B: int, T: int) -> None:
    from offtrace.returns.torch import cuda

    rule, arrays = getattr(ot, name)(lam=0.95), on_gpu(0, B, T)
    cuda._plans.clear()
    ot.targets(rule, **arrays)
    launches = [len(plan.launches) for plan in cuda._plans.values()]  # of each part of the batch
    emit("host", rule=name, shape=[B, T], us=least(rule, arrays), launches=launches[0])


if __name__ == "__main__":
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU here: nothing was measured")
    for B, T in SHAPES:
        for rule in RULES:
            measure(rule, B, T)
