"""A batch that is split in any way has the gradient of the whole: micro-batches, ranks, shards of rows, packed rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import whole

pytest.importorskip("torch")

PROCESSES = """
import os, sys, numpy as np, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from offtrace import policy
import offtrace as ot
from sharded_batches import zigzag

B, T, F, WORLD = 8, 12, 3, int(sys.argv[2])
rng = np.random.default_rng(0)
lengths = rng.integers(2, T + 1, B)
mask = torch.from_numpy((np.arange(T) < lengths[:, None]) & (rng.random((B, T)) < 0.8))
features, log_prox = torch.from_numpy(rng.normal(size=(B, T, F))), torch.from_numpy(-rng.exponential(size=(B, T)))
log_mu = log_prox + torch.from_numpy(0.3 * rng.normal(size=(B, T)))
advantage = torch.from_numpy(rng.normal(size=B))
given = {"log_prox": log_prox, "log_mu": log_mu, "log_ref": log_prox - 0.1, "mask": mask}
KL = {"kl": "k3", "kl_cost": 0.1}
LOSSES = [policy.losses()[name] for name in ("ppo", "gspo", "ctpo", "mis", "opsm")]
LOSSES.append(policy.PolicyLoss("capped", policy.losses()["ppo"].shape, weight=ot.NonMarkovRetrace(),
                                weight_options={"level": "prefix"}))
MEANS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")

def log_pi(theta, at=slice(None), steps=slice(None)):
    return log_prox[at][:, steps] + 0.3 * torch.tanh(features[at][:, steps] @ theta)

def gradient(call):
    theta = torch.full((F,), 0.4, dtype=torch.float64, requires_grad=True)
    for loss in call(theta):
        loss.backward()
    return theta.grad

def whole(loss, mean):
    def losses(theta):
        yield policy.loss(loss, log_pi=log_pi(theta), **given, advantage=advantage, mean=mean, length=T, **KL).loss
    return gradient(losses)

def packed(arrays, at, advantages):
    # Two rows in one, with ids, as trainers pack them.
    rows = {n: torch.cat([a[at[0]], a[at[1]]])[None] for n, a in arrays.items()}
    ids = torch.repeat_interleave(torch.arange(2), T)[None]
    return rows | {"segment": ids, "advantage": torch.repeat_interleave(advantages[at], T)[None]}

def work(rank):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=WORLD)
    rows_of_all = {"tokens": float(mask.sum()), "rows": float(mask.any(1).sum()), "length": T}
    for cp in (n for n in (1, 2, 4) if WORLD % n == 0):
        dp = WORLD // cp
        groups = [dist.new_group(list(range(d * cp, d * cp + cp))) for d in range(dp)]
        d, c = divmod(rank, cp)
        micro = np.split(np.arange(B), dp)[d].reshape(-1, 2)  # micro-batches of two rows
        for pack in (False, True):
            width = 2 * T if pack else T
            for split in (np.array_split(np.arange(width), cp), zigzag(width, cp)):
                mine = torch.from_numpy(split[c])
                ordered = (np.concatenate(split) == np.arange(width)).all()
                where = {"process_group": groups[d]} | ({} if ordered else {"position": mine.tolist()})
                for loss in LOSSES:
                    for mean in MEANS:
                        def losses(theta):
                            for at in micro:
                                part = {"log_pi": log_pi(theta, at), **{n: a[at] for n, a in given.items()}}
                                if pack:
                                    part = packed(part, [0, 1], advantage[at])
                                else:
                                    part["advantage"] = advantage[at]
                                shard = {n: a[:, mine] if a.ndim == 2 else a for n, a in part.items()}
                                options = dict(mean=mean, ranks=WORLD, **rows_of_all, **KL)
                                if cp == 1:
                                    yield policy.loss(loss, **shard, **options).loss
                                else:
                                    yield policy.sharded_loss(loss, **shard, **options, **where).loss
                        found = gradient(losses)
                        dist.all_reduce(found)
                        np.testing.assert_allclose(found / WORLD, whole(loss, mean), rtol=1e-10, atol=1e-13,
                                                   err_msg=f"{loss.name} {mean} dp={dp} cp={cp} packed={pack}")
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.set_num_threads(1)
    mp.start_processes(work, nprocs=WORLD, start_method="fork") if WORLD > 1 else work(0)
"""


@pytest.mark.parametrize("processes", [2, *whole([1, 4])])
def test_any_split_has_the_gradient_of_the_whole_batch(processes: int, tmp_path: Path) -> None:
    """Six losses, four means; micro-batches of two rows, padded or packed; shards in order and in zigzag."""
    script = tmp_path / "split.py"
    script.write_text(PROCESSES)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(tmp_path / "meet"), str(processes)]
    subprocess.run(command, check=True, env=environment, timeout=600)
