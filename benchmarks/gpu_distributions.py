"""Distributional targets on a card, [256, 64] with 101 atoms in float32, beside T copies of such an array.

python benchmarks/gpu_distributions.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from triton.testing import do_bench

import offtrace as ot

B, T, N = 256, 64, 101
RULES = (ot.OneStep(), ot.Retrace(0.95), ot.RBIS(0.95), ot.TruncatedIS(lam=0.95), ot.NStep(5))


def timed(call: Callable[[], object]) -> float:
    """The median time in ms."""
    ms: Any = do_bench(call, warmup=100, rep=200, return_mode="median")
    return float(ms)


def main() -> None:
    """Print the median times."""
    torch.manual_seed(0)
    p, next_p = torch.rand(2, B, T, N, device="cuda").softmax(-1)
    logs = torch.rand(2, B, T, device="cuda").log()
    ends = torch.rand(B, T, device="cuda") < 0.01
    x = {"reward": torch.randn(B, T, device="cuda"), "terminated": ends, "truncated": ends & ~ends, "gamma": 0.99}
    x |= {"probabilities": p, "next_probabilities": next_p, "log_pi": logs[0], "log_mu": logs[1]}
    support = torch.linspace(-10, 10, N, device="cuda")
    out = torch.empty_like(p)
    copies = T * timed(partial(out.copy_, p))
    print(f"{T} copies of [{B}, {T}, {N}]: {1000 * copies:.0f} µs")
    for trace in RULES:
        call = partial(ot.distributional_targets, trace, **x, support=support)
        ms = timed(call)
        print(f"{trace!r:<40} {1000 * ms:.0f} µs, {ms / copies:.2f} times the copies")


if __name__ == "__main__":
    main()
