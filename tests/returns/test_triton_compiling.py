"""Every Triton kernel, compiled for a GPU that is not there: the interpreter takes what the compiler does not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

COMPILE = """
import sys
from dataclasses import dataclass
from typing import ClassVar

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class NoGPU:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


driver.set_active(NoGPU())
names = set()
triton.knobs.compilation.listener = lambda src, **_: names.add(src.name)

import offtrace as ot
from offtrace.returns.torch import cuda, cuda_weights
from offtrace.returns.triton import mixtures, plans
from offtrace.returns.weights.decisions import Weighing


cuda.Plan.first = lambda plan, *given: cuda.compile_jobs(plan.jobs(*given))


@dataclass(frozen=True)
class Everything(ot.Trace):
    c: float = 0.5
    reads: ClassVar = ("pi", "mu", "rho")

    @staticmethod
    def factors(xp, pi, mu, rho, c):
        root = xp.sqrt(pi) * mu + abs(pi - mu) ** 0.5 / mu + rho**c + c ** (pi - 0.5) + xp.log(1.0 + rho) + xp.exp(-rho)
        often = ((rho > c) & (pi <= mu)) | ~(pi != mu)
        return c, xp.where(often, 0.5, xp.maximum(xp.minimum(root, c), 0.1)) + (rho < c), xp.inf


def batch(T, dtype=torch.float32, padded=False, by_step=False):
    x = {n: torch.zeros(2, T, dtype=dtype) for n in ("reward", "q", "next_value", "log_pi", "log_mu")}
    x |= {n: torch.zeros(2, T, dtype=torch.uint8) for n in ("terminated", "truncated")}
    x |= {"pair": torch.zeros(2, T, dtype=torch.int64), "valid": x["terminated"] if padded else None}
    return x | {"gamma": x["reward"] if by_step else 0.9}


def targets(trace, x):
    cuda.correct(trace, x, None if trace.custom else trace.bounds_by_lag(x["reward"].shape[1]), add_q=True)


def states(trace, x):
    cuda.correct(trace, x, None if trace.custom else trace.bounds_by_lag(x["reward"].shape[1]), add_q=None)


plans.SMALL = 0
by_lag = ot.NonMarkovRetrace(0.9, horizon=3)
targets(Everything(), batch(30, padded=True, by_step=True))
targets(ot.RBIS(0.9), batch(1100))
states(ot.TruncatedIS(1.5), batch(600))
states(ot.Retrace(0.9), batch(4096, padded=True))
for trace in (by_lag, ot.replacing(0.9)):
    targets(trace, batch(24, padded=True))
d = torch.zeros(3, 9, dtype=torch.float64)
cuda.given(d, d, d, d, d[0], per_decision=False, recursive=True, transposed=True)
given = {"log_pi": torch.zeros(2, 24), "log_mu": torch.zeros(2, 24).half(), "mask": torch.ones(2, 24) > 0}
for level in ("token", "prefix"):
    cuda_weights.weigh(ot.RBIS(0.9), given, Weighing(level, upper=2.0), torch.zeros(2, 24))
    given["segment"] = torch.zeros(2, 24, dtype=torch.int64)
packed = {name: given[name].flatten() for name in ("log_pi", "log_mu", "mask")}
for level in ("suffix", "sequence"):
    offsets = torch.tensor([0, 20, 48])
    cuda_weights.weigh_packed(ot.RBIS(0.9), packed, Weighing(level), offsets, torch.float32)
f, few = torch.zeros(1, dtype=torch.float64), {"LANES": 128, "HALVINGS": 7}
mixtures.mix_rows.warmup(*[f] * 9, 64, 101, grid=(1,), **few)
assert names == {
    "fill", "linear_rows", "linear_ends", "linear_odd", "prepare", "sweep", "sweep_again", "lifetimes", "leaf_tables",
    "group", "starts", "running_sums", "sorted_blocks", "level", "walk_rows", "step_rows", "transpose_rows", "weigh_rows",
    "state_results", "mix_rows",
}, names
if "whole" in sys.argv:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for trace in (ot.Retrace(0.9), ot.RBIS(0.9), ot.TruncatedIS(1.5), by_lag, ot.replacing(0.9)):
            for T in (30, 600, 4096, 70_000):
                targets(trace, batch(T, dtype))
                if T < 1000:
                    states(trace, batch(T, dtype, padded=True, by_step=True))
    for T in (30, 600, 4096):
        for recursive in (True, False):
            d = torch.zeros(2, T, dtype=torch.float64)
            cuda.given(d, d, d, d, None, per_decision=False, recursive=recursive)
            cuda.given(d, d, d, d, d[0, :3], per_decision=False, recursive=recursive)
    for level in cuda_weights.LEVELS:
        logs = {name: given[name] for name in ("log_pi", "log_mu")}
        cuda_weights.weigh(ot.TruncatedIS(1.5, 0.9), logs, Weighing(level), torch.zeros(2, 24))
"""


@pytest.mark.parametrize("how", ["once", pytest.param("whole", marks=pytest.mark.whole)])
def test_every_kernel_compiles_for_a_gpu(how: str, pytestconfig: pytest.Config) -> None:
    """No GPU is needed to compile: only the launch is left out. Triton's cache spares what has not changed since the last run."""
    cache = pytestconfig.rootpath / ".pytest_cache" / "triton"
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    subprocess.run([sys.executable, "-c", COMPILE, how], check=True, env=environment)
