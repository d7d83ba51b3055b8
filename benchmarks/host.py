"""What the host does before a GPU can start: Python's time of one eager call on CUDA tensors, in microseconds.

    .venv/bin/python benchmarks/host.py

A call returns once its kernels are queued. Twenty calls are made in a row after the device has come to rest, so that the queue is
never full; the least of many such rows is reported, once as users get it, with calls repeated from a recording, and once without.
Both must give the same numbers, on other data than were recorded. One JSON record a line; without a GPU it says so.
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
    from offtrace.returns.torch import repeated_calls

    rule, first, second = getattr(ot, name)(lam=0.95), on_gpu(0, B, T), on_gpu(1, B, T)
    ot.targets(rule, **first)
    repeated = least(rule, first)
    as_repeated = ot.targets(rule, **second)
    ways = [call for call in repeated_calls._calls.values() if call is not None]
    usual, repeated_calls.usual = repeated_calls.usual, lambda call: None
    try:
        one_by_one = least(rule, first)
        same = torch.equal(as_repeated, ot.targets(rule, **second))
    finally:
        repeated_calls.usual = usual
    launches = len(ways[-1].launches) if ways else None
    emit("host", rule=name, shape=[B, T], us=repeated, unrecorded_us=one_by_one, same=same, launches=launches)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU here: nothing was measured")
    for B, T in SHAPES:
        for rule in RULES:
            measure(rule, B, T)
