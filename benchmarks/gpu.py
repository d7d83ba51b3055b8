"""The Triton kernels on a real GPU: checked on fresh random inputs against float64, then timed. `python benchmarks/gpu.py`.

Times are medians of device events around replays of a CUDA graph that holds one call, after warm-up; beside them the same for a
graph of twenty calls, divided by twenty, and for copying one input array with clone().
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))


import offtrace as ot
from offtrace.returns import triton_calls

CUDA = torch.device("cuda")
TRACES = [
    ot.Retrace(lam=0.9), ot.ImportanceSampling(lam=0.9), ot.QLambda(lam=0.7), ot.TreeBackup(lam=1.0),
    ot.NonMarkovRetrace(lam=0.9), ot.NonMarkovRetrace(lam=1.0), ot.RBIS(lam=0.9), ot.HistoryBounded(bound=3.0),
    ot.TruncatedIS(bound=1.0, lam=0.95), ot.TruncatedIS(bound=2.5, lam=1.0), ot.TruncatedIS(bound=(0.5, 2.0), lam=0.9),
    ot.Retrace(lam=0.9, horizon=5), ot.NonMarkovRetrace(lam=0.9, horizon=5),
]  # fmt: skip


def example(B: int, T: int, dtype: Any, seed: int, ends: float = 0.01, spread: float = 0.8) -> dict[str, Any]:
    g = torch.Generator(CUDA).manual_seed(seed)
    r, q, v = (torch.randn(B, T, generator=g, device=CUDA).to(dtype) for _ in range(3))
    lm, lp = ((1 - spread * torch.rand(B, T, generator=g, device=CUDA)).log().to(dtype) for _ in range(2))
    end, cut = (torch.rand(B, T, generator=g, device=CUDA) < ends for _ in range(2))
    return {
        "reward": r, "q": q, "next_value": v, "log_mu": lm, "log_pi": lp, "terminated": end, "truncated": cut, "gamma": 0.99
    }  # fmt: skip


def reference(trace: Any, x: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Δ and Σ|γβδ| by the recursion of every start, in float64, written apart from the package."""
    f = {n: a.double() for n, a in x.items() if isinstance(a, torch.Tensor)}
    pi, rho, lam = f["log_pi"].exp(), (f["log_pi"] - f["log_mu"]).exp(), getattr(trace, "lam", 1.0)
    one = torch.ones_like(rho)
    name, infinite = type(trace).__name__, torch.inf * one
    decay, ratio, cap, recursive = {
        "Retrace": (lam, rho.clamp(max=1), infinite, False), "ImportanceSampling": (lam, rho, infinite, False),
        "QLambda": (lam, one, infinite, False), "TreeBackup": (lam, pi, infinite, False),
        "NonMarkovRetrace": (1.0, lam * rho, lam * one, True), "RBIS": (lam, rho / lam, one, True),
        "HistoryBounded": (1.0, rho, (trace.bound if name == "HistoryBounded" else 1.0) * one, True),
        "TruncatedIS": (lam, rho, infinite, False),
    }[name]  # fmt: skip
    delta = f["reward"] + x["gamma"] * torch.where(x["terminated"], 0.0, f["next_value"]) - f["q"]
    T = delta.shape[1]
    total, scale = delta.clone(), delta.abs()
    w, y = torch.ones_like(delta), torch.ones_like(delta)
    k = torch.arange(T, device=CUDA)
    for t in range(1, T):
        old = k < t
        h = x["gamma"] * decay * (~(x["terminated"] | x["truncated"])[:, t - 1 : t]).double()
        w = torch.where(old, w * h, w)
        y = torch.where(old, y * ratio[:, t : t + 1], y)
        if recursive:
            y = torch.where(old, y.minimum(cap[:, t : t + 1]), y)
        read = y.minimum(cap[:, t : t + 1])
        if name == "TruncatedIS":
            bound = trace.bound
            bound = bound if isinstance(bound, tuple) else (bound,)
            by_lag = torch.tensor(
                [bound[min(max(t - int(s), 1), len(bound)) - 1] for s in range(T)], device=CUDA
            ).double()
            read = y.minimum(by_lag)
        if trace.horizon is not None:
            read = torch.where(t - k < trace.horizon, read, 0.0)
        term = torch.where(old & (w != 0), w * read * delta[:, t : t + 1], 0.0)
        total, scale = total + term, scale + term.abs()
    return total, scale


def check() -> float:
    worst = 0.0
    shapes = [(4, 1), (3, 17), (64, 256), (16, 1000), (5, 1300)]
    for i, trace in enumerate(TRACES):
        for j, (B, T) in enumerate(shapes):
            for dtype, bound in ((torch.float32, 2e-6), (torch.float64, 1e-12)):
                x = example(B, T, dtype, 1000 * i + j, ends=(0.0, 0.02)[i % 2], spread=(0.8, 0.9999)[j % 2])
                x["log_pi"][0, T // 2] = -torch.inf
                torch.full((B, T), torch.nan, device=CUDA, dtype=dtype)  # poisons what the allocator hands out next
                found = ot.corrections(trace, **x)
                wanted, scale = reference(trace, x)
                error = ((found.double() - wanted).abs() / scale.clamp(min=1e-300)).max().item() / bound
                worst = max(worst, error)
                if not error <= 1:
                    print(f"BAD {trace} {(B, T)} {dtype}: error {error:.3g} times what is allowed")
    x = {n: a.requires_grad_() if n == "q" else a for n, a in example(3, 40, torch.float64, 7).items()}
    host = {n: a.detach().cpu() if isinstance(a, torch.Tensor) else a for n, a in x.items()}
    for trace in (ot.Retrace(lam=0.9), ot.RBIS(lam=0.9), ot.TruncatedIS(bound=1.5), ot.Retrace(lam=0.9, horizon=5)):
        out = ot.targets(trace, **x, differentiable=True)
        (gradient,) = torch.autograd.grad(out.square().sum(), x["q"])
        assert torch.isfinite(gradient).all()
        nudge = 1e-6 * torch.randn_like(x["q"])
        near = ot.targets(trace, **(x | {"q": x["q"].detach() + nudge})) - ot.targets(
            trace, **(x | {"q": x["q"].detach() - nudge})
        )
        slope = (near * out.detach()).sum().item()  # d(out²)/2 along the nudge, by differences
        assert abs((gradient * nudge).sum().item() - slope) < 1e-6 * abs(slope) + 1e-12, trace
    pair = torch.randint(0, 3, (3, 40), device=CUDA)
    for trace in (ot.replacing(lam=0.9), ot.count_dependent(lam=0.9)):
        custom = ot.targets(
            trace, **{n: a.detach() if isinstance(a, torch.Tensor) else a for n, a in x.items()}, pair=pair
        )
        torch.testing.assert_close(custom.cpu(), ot.targets(trace, **host, pair=pair.cpu()))
        assert torch.isfinite(custom).all()
    return worst


def timed(call: Any, repeats: int = 1) -> float:
    """Microseconds of one call inside a graph of so many."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()
    times = []
    for _ in range(60):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / repeats)
    return statistics.median(times[10:])


def eager(call: Any) -> float:
    times = []
    for _ in range(50):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times[10:])


def main() -> None:
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    print(f"worst error: {check():.3g} of what is allowed (2e-6 in float32, 1e-12 in float64, of Σ|γβδ|)")
    tune = "--tune" in sys.argv
    for B, T in ((4096, 256), (1024, 1024)):
        for spread in (0.8, 0.99):
            x = example(B, T, torch.float32, 0, spread=spread)
            copy, copies = (timed(lambda x=x: x["reward"].clone(), n) for n in (1, 20))
            print(f"[{B}, {T}] spread {spread}: clone {copy:.2f} µs, in twenty {copies:.2f} µs")
            for trace in (ot.Retrace(lam=0.9), ot.NonMarkovRetrace(lam=0.9), ot.RBIS(lam=0.9), ot.TruncatedIS(lam=0.9)):
                one = timed(lambda trace=trace, x=x: ot.targets(trace, **x))
                whole = eager(lambda trace=trace, x=x: ot.targets(trace, **x))
                many = timed(lambda trace=trace, x=x: ot.targets(trace, **x), 20)
                ratios = f"{one:7.1f} µs {one / copy:5.1f}×   in twenty {many:7.1f} µs {many / copies:5.1f}×"
                print(f"  {type(trace).__name__:18} {ratios}   eager {whole:6.0f} µs")
        if not tune:
            continue
        x = example(B, T, torch.float32, 0)
        for block in (32, 64):
            for warps in (1, 2):
                triton_calls.BLOCK, triton_calls.SWEEP_WARPS = block, warps
                traces = (ot.NonMarkovRetrace(lam=0.9), ot.RBIS(lam=0.9), ot.TruncatedIS(lam=0.9))
                found = [timed(lambda t=t, x=x: ot.targets(t, **x)) for t in traces]
                print(f"  block {block:4} warps {warps}:", *(f"{f:7.1f}" for f in found), flush=True)
        triton_calls.BLOCK, triton_calls.SWEEP_WARPS = 64, 1
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for t in traces:
                for _ in range(5):
                    ot.targets(t, **x)
            torch.cuda.synchronize()
        for event in (profile.events() or [])[::5]:
            print("   ", event.name[:30], f"{event.device_time:.1f} µs")


if __name__ == "__main__":
    main()
