"""Every Triton kernel, compiled for a GPU that is not there: the interpreter takes what the compiler does not."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("triton")

# All in one process: what two tests need is compiled once.
COMPILE = """
from dataclasses import dataclass
from typing import ClassVar

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend, passes
from triton.runtime import driver
from triton.runtime.jit import JITFunction


class NoGPU:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def compile_only(self, *arguments, **named):
    global seen
    seen = any(name == self.fn.__name__ for name, _ in made)
    if self.fn.__name__ == "sweep":
        named["N"] = 2  # of eight equal steps in a loop that is unrolled: half of the time goes into the other six
    made.append((self.fn.__name__, "cubin" in run(self, *arguments, **(named | {"warmup": True})).asm))


made, run, JITFunction.run = [], JITFunction.run, compile_only
# Each kernel goes all the way once. Its variants, which differ in what Triton makes of their lines, go as far as PTX without the
# search for faster loads: these two take half of the time, and neither of them knows what the lines mean.
search, passes.ttgpuir.add_coalesce = passes.ttgpuir.add_coalesce, lambda manager: seen or search(manager)
assemble, CUDABackend.make_cubin = CUDABackend.make_cubin, lambda *given: b"" if seen else assemble(*given)
driver.set_active(NoGPU())

import offtrace as ot
from offtrace.returns.torch import tensor_ops as on_torch, cuda as triton_calls
from offtrace.returns.triton import plans
from offtrace.returns.weight_arrays import Weighing


@dataclass(frozen=True)
class Everything(ot.Trace):
    c: float = 0.5
    reads: ClassVar = ("pi", "mu", "rho")

    @staticmethod
    def factors(xp, pi, mu, rho, c):
        root = xp.sqrt(pi) * mu + abs(pi - mu) ** 0.5 / mu + rho**c + c ** (pi - 0.5) + xp.log(1.0 + rho) + xp.exp(-rho)
        often = ((rho > c) & (pi <= mu)) | ~(pi != mu)
        return c, xp.where(often, 0.5, xp.maximum(xp.minimum(root, c), 0.1)) + (rho < c), xp.inf


triton_calls.SCAN = 128  # fewer steps for each thread: ptxas takes a fifth of the time
B, T = 40, 24
x = {n: torch.zeros(B, T) for n in ("reward", "q", "next_value", "log_pi", "log_mu", "gamma")}
x |= {n: torch.zeros(B, T, dtype=torch.uint8) for n in ("terminated", "truncated", "valid")}
x |= {"pair": torch.zeros(B, T, dtype=torch.int64)}
for trace in (Everything(), ot.RBIS(0.9), ot.TruncatedIS(1.5), ot.NonMarkovRetrace(0.9, horizon=3), ot.replacing(0.9)):
    custom = isinstance(trace, ot.StepTrace)
    lags = None if custom else trace.bounds_by_lag(T)
    rows = B if trace == ot.RBIS(0.9) else 4  # one with as many rows as there are threads; fewer numbers for each are less code
    triton_calls.correct(trace, {n: a[:rows] for n, a in x.items()}, lags, add_q=True)
d = torch.zeros(3, 9, dtype=torch.float64)
triton_calls.given(d, d, d, d, None, per_decision=False, recursive=True)
triton_calls.transpose(d, d, d, d, d[0], True)

# Rows that are long only because the limits are made small.
plans.SWEPT, plans.FAN, plans.SORTED, triton_calls.CHUNK, triton_calls.PART_CHUNKS = 8, 2, 16, 16, 2
x = {n: torch.zeros(2, 70) for n in ("reward", "q", "next_value", "log_pi", "log_mu")}
x |= {n: torch.zeros(2, 70, dtype=torch.uint8) for n in ("terminated", "truncated")} | {"gamma": 0.9, "valid": None}
triton_calls.correct(ot.RBIS(0.9), x, None, add_q=True)
triton_calls.correct(ot.TruncatedIS(1.5), x, None, add_q=True)
triton_calls.correct(ot.Retrace(0.9), x, None, add_q=True)
plans.SWEPT, plans.NEAR = 64, 8
# As many rows as there were parts of rows before: so the kernels that sweep what is left are the same.
x = {n: a.new_zeros(6, 24) if isinstance(a, torch.Tensor) else a for n, a in x.items()}
triton_calls.correct(ot.TruncatedIS(1.5), x, None, add_q=True)
for level in ("token", "prefix", "geometric"):
    given = {"log_pi": x["log_pi"], "log_mu": x["log_mu"].half(), "mask": x["reward"] > 0}
    given |= {"segment": torch.zeros(6, 24, dtype=torch.int64)} if level == "prefix" else {}
    triton_calls.weigh(ot.RBIS(0.9), given, Weighing(level, upper=2.0), torch.zeros(6, 24))
assert all(done for _, done in made), made
names = {"fill", "linear_rows", "prepare", "sweep", "walk_rows", "step_rows", "transpose_rows"}
names |= {"leaf_tables", "group", "starts", "linear_ends", "lifetimes", "running_sums", "sorted_blocks", "level", "weigh_rows"}
assert {name for name, _ in made} == names, made
"""


def test_every_kernel_compiles_for_a_gpu(tmp_path: Any) -> None:
    """No GPU is needed to compile: only the launch is left out."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", COMPILE], check=True, env=environment)
