"""How many numbers the shards of a row send: the table of docs/distributed.md, as Markdown.

Eight processes on this machine, each with 2,048 of 16,384 steps of eight rows. log ρ of a step is normal: with mean −σ²/2 if the
actions are drawn from μ, so that the mean of ρ is 1, and with mean σ²/2 if they are drawn from π. In the hard rows the product
falls by e²⁵ at the end of each shard, and then rises by 1% a step. Every shard sends as much as the one that needs most.

    .venv/bin/python benchmarks/shards.py
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import offtrace as ot

B, T, SHARDS = 8, 16_384, 8
RULES = {
    "Retrace": ot.Retrace(),
    "Non-Markov Retrace": ot.NonMarkovRetrace(lam=1.0),
    "RBIS, λ = 0.95": ot.RBIS(lam=0.95),
    "Truncated IS": ot.TruncatedIS(bound=1.0),
}
DATA = {
    "π = μ": (0.0, 0.0),
    "drawn from μ, σ = 0.02": (-0.0002, 0.02),
    "drawn from μ, σ = 0.1": (-0.005, 0.1),
    "drawn from μ, σ = 0.5": (-0.125, 0.5),
    "drawn from π, σ = 0.1": (0.005, 0.1),
    "drawn from π, σ = 0.5": (0.125, 0.5),
    "made to be hard": (0.01, 0.0),
}


def batch(mean: float, deviation: float) -> dict[str, Any]:
    """Rows of one episode each."""
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {n: rng.normal(size=(B, T)) for n in ("reward", "q", "next_value")}
    made |= {n: np.zeros((B, T), bool) for n in ("terminated", "truncated")}
    log_pi = rng.normal(mean, deviation, (B, T))
    if mean and not deviation:
        log_pi[:, T // SHARDS - 1 :: T // SHARDS] = -25.0
    return made | {"log_pi": log_pi, "log_mu": np.zeros((B, T))}


def measure(rank: int, file: str) -> None:
    """What one process does; the first one prints."""
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=SHARDS)
    steps = slice(rank * T // SHARDS, (rank + 1) * T // SHARDS)
    for name, moments in DATA.items():
        whole = batch(*moments)
        mine = {n: torch.from_numpy(a[:, steps].copy()) for n, a in whole.items()}
        cells: list[str] = []
        for rule in RULES.values():
            sent = ot.sharded.Sent()
            found = ot.sharded.corrections(rule, **mine, gamma=1.0, process_group=dist.group.WORLD, sent=sent)
            if rank == 0:
                wanted = ot.corrections(rule, **whole, gamma=1.0)[:, steps]
                off = np.max(np.abs(found.numpy() - wanted)) / np.max(np.abs(wanted))
                assert off < 1e-11, f"{rule}: {off}"
                cells.append(f"{sent.numbers / B:,.0f}")
        if rank == 0:
            print(f"| {name} | {' | '.join(cells)} |")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"| data | {' | '.join(RULES)} |\n|---|{'---|' * len(RULES)}", flush=True)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        children: list[int] = []
        for rank in range(1, SHARDS):
            child = os.fork()
            if not child:
                measure(rank, f"{folder}/store")
                os._exit(0)
            children.append(child)
        measure(0, f"{folder}/store")
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
    print(f"\nNumbers for each row and shard; {time.perf_counter() - began:.0f} s in all.")
