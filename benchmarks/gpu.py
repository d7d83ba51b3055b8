"""The kernels on a real GPU, through PyTorch and through JAX: checked against float64, then timed.

    python benchmarks/gpu.py > benchmarks/gpu.jsonl     on a machine with a GPU: one record a line (`torch` or `jax`: one part)
    python benchmarks/gpu_report.py                     anywhere: those records into RESULTS.md

PyTorch: medians of device events around replays of a CUDA graph that holds one call, or twenty (the time is then divided by
twenty), after warm-up; beside them the same for copying one input array with clone(), and the time of a plain call as the host
sees it. JAX: as the host sees it, of a jitted call to its end; and of a hundred calls in a row, divided by a hundred.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))
SHAPES = ((4096, 256), (1024, 1024))
EASY = {"λ": 0.9, "γ": 0.99, "lowest π, μ": 0.2, "episode": 50}
WIDE = {"λ": 1.0, "γ": 0.999, "lowest π, μ": 0.001, "episode": None}
NEAR = {"λ": 1.0, "γ": 1.0, "lowest π, μ": 0.5, "episode": None}
LONG = (
    *(((B, T), data) for data in (EASY, WIDE) for B, T in SHAPES),
    ((256, 4096), WIDE), ((64, 16384), NEAR), ((16, 65536), NEAR), ((16, 65536), WIDE), ((1, 1 << 20), NEAR),
)  # fmt: skip
"""A million steps each, in rows of any length. π and μ are uniform between the lowest and 1, independently."""
JAX_LONG = tuple(LONG[i] for i in (0, 3, 4, 5, 8))
"""Compiling takes most of the time here."""
DEVICE = "cuda"


def traces() -> list[Any]:
    import offtrace as ot

    listed = [rule for rule in ot.rules() if issubclass(rule, ot.Trace) and not rule.needs_greedy]
    corners = [ot.RBIS(lam=0.1), ot.TruncatedIS(bound=1.0, lam=0.05)]
    horizons = [ot.Retrace(lam=0.9, horizon=5), ot.NonMarkovRetrace(lam=0.9, horizon=5)]
    return [example for rule in listed for example in rule.examples()] + corners + horizons


def timed_traces() -> list[Any]:
    import offtrace as ot

    aware = [rule for rule in ot.rules() if issubclass(rule, ot.Trace) and not rule.per_decision]
    with_lam = [rule for rule in (ot.Retrace, *aware) if "lam" in {f.name for f in fields(rule)}]
    return [replace(rule.typical()[0], lam=0.9) for rule in with_lam]


def example(B: int, T: int, dtype: Any, seed: int, ends: float = 0.01, spread: float = 0.8) -> dict[str, Any]:
    """π and μ of the actions taken are uniform on [1 − spread, 1], independently: harder than sampled data."""
    import torch

    g = torch.Generator(DEVICE).manual_seed(seed)
    r, q, v = (torch.randn(B, T, generator=g, device=DEVICE).to(dtype) for _ in range(3))
    lm, lp = ((1 - spread * torch.rand(B, T, generator=g, device=DEVICE)).log().to(dtype) for _ in range(2))
    end, cut = (torch.rand(B, T, generator=g, device=DEVICE) < ends for _ in range(2))
    return {
        "reward": r, "q": q, "next_value": v, "log_mu": lm, "log_pi": lp, "terminated": end, "truncated": cut, "gamma": 0.99
    }  # fmt: skip


def reference(trace: Any, x: dict[str, Any]) -> tuple[Any, Any]:
    """Δ and Σ|γβδ| by the recursion of every start, in float64, written apart from the package."""
    import numpy as np
    import torch

    f = {n: a.double() for n, a in x.items() if isinstance(a, torch.Tensor)}
    pi, mu = (f[name].exp().cpu().numpy() for name in ("log_pi", "log_mu"))
    factors = trace.factors(np, pi, mu, pi / mu, *trace.parameters)  # the rule's own lines, on NumPy
    decay, ratio, cap = (torch.as_tensor(np.array(np.broadcast_to(a, pi.shape), float)).to(DEVICE) for a in factors)
    delta = f["reward"] + x["gamma"] * torch.where(x["terminated"], 0.0, f["next_value"]) - f["q"]
    T = delta.shape[1]
    rounded = (
        f["reward"].abs() + (x["gamma"] * f["next_value"]).abs() + f["q"].abs()
    )  # δ may be the difference of large numbers
    total, scale = delta.clone(), delta.abs() + 1e-3 * rounded
    w, y = torch.ones_like(delta), torch.ones_like(delta)
    k = torch.arange(T, device=DEVICE)
    bounds = torch.tensor(trace.lag_bound or [torch.inf], device=DEVICE, dtype=torch.float64)
    for t in range(1, T):
        old = k < t
        h = x["gamma"] * decay[:, t : t + 1] * (~(x["terminated"] | x["truncated"])[:, t - 1 : t]).double()
        w = torch.where(old, w * h, w)
        y = torch.where(old, y * ratio[:, t : t + 1], y)
        if trace.recursive:
            y = torch.where(old, y.minimum(cap[:, t : t + 1]), y)
        read = y.minimum(cap[:, t : t + 1]).minimum(bounds[(t - k - 1).clamp(0, len(bounds) - 1)])
        if trace.horizon is not None:
            read = torch.where(t - k < trace.horizon, read, 0.0)
        term = torch.where(old & (w != 0), w * read * delta[:, t : t + 1], 0.0)
        total, scale = total + term, scale + term.abs()
    return total, scale


class Poisoned:
    """torch, but fresh memory is full of NaN, or of −1: what no kernel writes, or reads before it is written, shows."""

    def __init__(self) -> None:
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        import torch

        if name not in ("empty", "empty_like"):
            return getattr(torch, name)

        def make(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            fresh = getattr(torch, name)(*arguments, **named)
            return fresh.fill_(torch.nan if fresh.is_floating_point() else 255)

        return make


def as_jax(x: dict[str, Any]) -> dict[str, Any]:
    """The same arrays, in the same memory."""
    import jax
    import torch

    def one(a: Any) -> Any:
        if not isinstance(a, torch.Tensor):
            return a
        return jax.dlpack.from_dlpack(a.view(torch.uint8)) != 0 if a.dtype is torch.bool else jax.dlpack.from_dlpack(a)

    return {n: one(a) for n, a in x.items()}


def worst_of(job: tuple[str, int]) -> float:
    """The worst error of a trace on fresh random inputs, of what is allowed. Compiling takes most of it: a process each."""
    import torch

    library, which = job
    trace = traces()[which]
    call, cases = (by_jax, CASES[1:2]) if library == "JAX" else (by_torch, CASES)
    worst = 0.0
    for j, (B, T, kinds) in enumerate(cases):
        for dtype, bound in ((torch.float32, 2e-6), (torch.float64, 1e-12))[:kinds]:
            x = example(B, T, dtype, 1000 * which + j, ends=(0.0, 0.02)[(which + j) % 2], spread=(0.8, 0.9999)[j % 2])
            x["log_pi"][0, T // 2] = -torch.inf
            if B > 2 and not trace.per_decision:
                x["log_pi"][1, :: max(1, T // 7)] -= 80.0  # products that float32 does not hold
                x["log_pi"][2, :: max(1, T // 5)] += 30.0
            if B > 3 and not trace.per_decision:
                x["terminated"][3, T // 3] = True  # and such products where no trace is left
                x["log_pi"][3, T // 2 : T // 2 + 4] += 70.0
            wanted, scale = reference(trace, x)
            off = ((call(trace, x).double() - wanted).abs() / scale.clamp(min=1e-300)).nan_to_num(nan=float("inf"))
            worst = max(worst, off.max().item() / bound)
            if not worst <= 1:
                print(f"BAD {library} {trace} {(B, T)} {dtype}: {worst:.3g} times what is allowed", file=sys.stderr)
    return worst


CASES = ((64, 256, 2), (70, 333, 1), (3, 17, 1))
"""Rows, steps, and how many of float32 and float64."""


def by_torch(trace: Any, x: dict[str, Any]) -> Any:
    import torch

    import offtrace as ot
    from offtrace.returns.torch import cuda

    poisoned: Any = Poisoned()
    cuda.torch = poisoned  # pyright: ignore[reportAttributeAccessIssue]
    found = ot.corrections(trace, **x)
    cuda.torch = torch
    if not poisoned.count:
        raise AssertionError("no fresh memory was seen: what was to be poisoned is made elsewhere")
    return found


def by_jax(trace: Any, x: dict[str, Any]) -> Any:
    import jax
    import torch

    import offtrace as ot

    arrays = as_jax(x)
    gamma = arrays.pop(
        "gamma"
    )  # a number: as an argument of jit it would be float32, and so would be every power of it
    return torch.from_dlpack(jax.jit(lambda arrays: ot.corrections(trace, **arrays, gamma=gamma))(arrays))


def check(library: str) -> list[dict[str, Any]]:
    """Every trace against the reference, side by side, and what else is promised."""
    jobs = [(library, i) for i in range(len(traces()))]
    with ProcessPoolExecutor(12, get_context("spawn")) as pool:
        worst = list(pool.map(worst_of, jobs))
    (check_torch if library == "PyTorch" else check_jax)()
    return [{"table": "gpu check", "library": library, "worst": max(worst), "traces": len(worst)}]


def check_torch() -> None:
    """Gradients against slopes, custom traces against the host."""
    import torch

    import offtrace as ot

    x = {n: a.requires_grad_() if n == "q" else a for n, a in example(3, 40, torch.float64, 7).items()}
    plain = {n: a.detach() if isinstance(a, torch.Tensor) else a for n, a in x.items()}
    host = {n: a.cpu() if isinstance(a, torch.Tensor) else a for n, a in plain.items()}
    for trace in (ot.Retrace(lam=0.9), ot.RBIS(lam=0.9), ot.TruncatedIS(bound=1.5), ot.Retrace(lam=0.9, horizon=5)):
        out = ot.targets(trace, **x, differentiable=True)
        (gradient,) = torch.autograd.grad(out.square().sum(), x["q"])
        nudge = 1e-6 * torch.randn_like(plain["q"])
        near = ot.targets(trace, **(plain | {"q": plain["q"] + nudge})) - ot.targets(
            trace, **(plain | {"q": plain["q"] - nudge})
        )
        slope = (near * out.detach()).sum().item()  # d(out²)/2 along the nudge, by differences
        if not abs((gradient * nudge).sum().item() - slope) < 1e-6 * abs(slope) + 1e-12:
            raise AssertionError(f"the gradient of {trace} is not its slope")
    pair = torch.randint(0, 3, (3, 40), device=DEVICE)
    for trace in (ot.replacing(lam=0.9), ot.count_dependent(lam=0.9)):
        custom = ot.targets(trace, **plain, pair=pair)
        torch.testing.assert_close(custom.cpu(), ot.targets(trace, **host, pair=pair.cpu()))


def check_jax() -> None:
    """Gradients, mapped and not, against those on the CPU; float64."""
    import jax
    import torch

    import offtrace as ot
    from offtrace.returns.jax.kernels import in_float64

    with in_float64():
        x = example(33, 300, torch.float64, 5)
        trace = ot.RBIS(lam=0.9)
        wanted, scale = reference(trace, x)
        if not ((by_jax(trace, x) - wanted).abs() <= 1e-12 * scale).all():
            raise AssertionError("float64 under JAX is not what it should be")
    arrays = as_jax(example(6, 50, torch.float32, 3))
    gamma = arrays.pop("gamma")
    host = {n: jax.device_put(a, jax.devices("cpu")[0]) for n, a in arrays.items()}
    for trace in (ot.RBIS(0.9), ot.TruncatedIS(1.5, 0.9)):

        def loss(reward: Any, arrays: Any, trace: Any = trace) -> Any:
            return (ot.targets(trace, **{**arrays, "reward": reward}, gamma=gamma, differentiable=True) ** 2).sum()

        wanted = jax.device_get(jax.jit(jax.grad(loss))(host["reward"], host))
        ways = jax.jit(jax.grad(loss)), jax.vmap(jax.jit(jax.grad(loss)))
        for found in (jax.device_get(way(arrays["reward"], arrays)) for way in ways):
            if not abs(found - wanted).max() <= 1e-4 * abs(wanted).max():
                raise AssertionError(f"the gradient of {trace} on the GPU is not that on the CPU")


def in_graph(call: Any, repeats: int = 1, times_over: int = 60) -> float:
    """Microseconds of one call inside a graph of so many."""
    import torch

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
    for _ in range(times_over):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / repeats)
    return statistics.median(times[times_over // 6 :])


def long_example(shape: tuple[int, int], data: dict[str, Any], seed: int) -> dict[str, Any]:
    import torch

    x = example(*shape, torch.float32, seed, ends=0.0, spread=1.0 - data["lowest π, μ"]) | {"gamma": data["γ"]}
    if data["episode"]:
        x["terminated"][:, data["episode"] - 1 :: data["episode"]] = True
    return x


def worst_against_host(trace: Any, x: dict[str, Any]) -> float:
    """The largest error, of Σ|γβδ|, beside our own float64 on the host, which the tests hold to the definition."""
    import torch

    import offtrace as ot

    host = {n: a.cpu() if isinstance(a, torch.Tensor) else a for n, a in x.items()}
    host = {n: a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for n, a in host.items()}
    delta = host["reward"] + x["gamma"] * torch.where(host["terminated"], 0.0, host["next_value"]) - host["q"]
    none = torch.zeros_like(delta)
    scale = ot.corrections(trace, **(host | {"reward": delta.abs(), "q": none, "next_value": none}))
    return ((ot.corrections(trace, **x).cpu() - ot.corrections(trace, **host)).abs() / scale).max().item()


def time_long() -> Iterator[dict[str, Any]]:
    """Rows of any length, easy data and hard: error, time in a graph, memory beside the inputs and the result."""
    import torch

    import offtrace as ot

    for i, (shape, data) in enumerate(LONG):
        x = long_example(shape, data, seed=int(time.time()) + i)
        for trace in timed_traces():
            trace = replace(trace, lam=data["λ"])

            def call(trace: Any = trace, x: Any = x) -> Any:
                return ot.corrections(trace, **x)

            worst = worst_against_host(trace, x)
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            out = call()
            torch.cuda.synchronize()
            most = torch.cuda.max_memory_allocated() - before
            yield {
                "table": "gpu long", "rule": type(trace).__name__, "shape": shape, "data": data, "worst": worst,
                "one": in_graph(call), "arrays": most / out.nbytes - 1,
            }  # fmt: skip


WEIGHTS = (512, 16384)


def time_weights() -> list[dict[str, Any]]:
    """Weights of tokens in long rows, a tenth of them masked: error beside float64 on the host, and time in a graph."""
    import torch

    import offtrace as ot

    g = torch.Generator(DEVICE).manual_seed(int(time.time()))
    log_mu = -torch.empty(WEIGHTS, device=DEVICE).exponential_(1.0, generator=g)
    log_pi = log_mu + 0.05 * torch.randn(WEIGHTS, generator=g, device=DEVICE)
    arrays: dict[str, Any] = {
        "log_pi": log_pi.clamp(max=0.0),
        "log_mu": log_mu,
        "mask": torch.rand(WEIGHTS, generator=g, device=DEVICE) > 0.1,
    }
    copy, records = in_graph(log_pi.clone), []
    exact: dict[str, Any] = {n: a.cpu().double() if a.is_floating_point() else a.cpu() for n, a in arrays.items()}
    for trace, level in (
        (ot.TruncatedIS(bound=2.0), "token"), (ot.ImportanceSampling(), "prefix"), (ot.TruncatedIS(bound=2.0), "prefix"),
        (ot.NonMarkovRetrace(), "prefix"), (ot.RBIS(lam=0.95), "prefix"), (ot.Retrace(), "prefix"),
        (ot.FlattenedIS(kappa=0.25, bound=1.0), "prefix"), (ot.TruncatedIS(bound=2.0), "sequence"),
        (ot.ImportanceSampling(), "geometric"), (ot.NonMarkovRetrace(), "suffix"),
    ):  # fmt: skip
        wanted = ot.weights(trace, **exact, level=level)
        found = ot.weights(trace, **arrays, level=level).cpu().double()
        far = ((found - wanted).abs() / wanted.clamp(min=1e-30)).max().item()
        one = in_graph(lambda trace=trace, level=level: ot.weights(trace, **arrays, level=level))
        records.append({
            "table": "gpu weights", "rule": type(trace).__name__, "level": level, "shape": WEIGHTS, "worst": far, "one": one,
            "copy": copy,
        })  # fmt: skip
    return records


def seen_by_host(call: Any, wait: Any, calls: int = 1, repeats: int = 40) -> float:
    """Microseconds of a call, of so many before the host waits."""
    times = []
    for _ in range(repeats + 5):
        start = time.perf_counter()
        for _ in range(calls - 1):
            call()
        wait(call())
        times.append((time.perf_counter() - start) * 1e6 / calls)
    return statistics.median(times[5:])


def time_torch() -> list[dict[str, Any]]:
    import torch

    import offtrace as ot

    records = []
    for B, T in SHAPES:
        for spread in (0.8, 0.99):
            x = example(B, T, torch.float32, 0, spread=spread)
            copy = {"one": in_graph(x["reward"].clone), "twenty": in_graph(x["reward"].clone, 20)}
            for trace in timed_traces():

                def call(trace: Any = trace, x: Any = x) -> Any:
                    return ot.targets(trace, **x)

                records.append({
                    "table": "gpu torch", "rule": type(trace).__name__, "shape": [B, T], "spread": spread,
                    "one": in_graph(call), "twenty": in_graph(call, 20), "copy_one": copy["one"],
                    "copy_twenty": copy["twenty"], "eager": seen_by_host(call, lambda _: torch.cuda.synchronize()),
                })  # fmt: skip
    return records


def scan_of_rlax(lam: float, gamma: float) -> Any:
    """Retrace as rlax 0.1.9 does it (`general_off_policy_returns_from_q_and_v`): a scan over time, mapped over rows."""
    import jax
    import jax.numpy as jnp

    def row(x: dict[str, Any]) -> Any:
        discount = gamma * (1.0 - x["terminated"])
        c = lam * jnp.minimum(1.0, jnp.exp(x["log_pi"] - x["log_mu"]))[1:] * (1.0 - x["truncated"][:-1])
        last = x["reward"][-1] + discount[-1] * x["next_value"][-1]

        def body(acc: Any, xs: Any) -> Any:
            reward, discount, c, v, q = xs
            acc = reward + discount * (v - c * q + c * acc)
            return acc, acc

        xs = x["reward"][:-1], discount[:-1], c, x["next_value"][:-1], x["q"][1:]
        _, returns = jax.lax.scan(body, last, xs, reverse=True)
        return jnp.concatenate([returns, last[None]])

    return jax.jit(jax.vmap(row))


def time_jax() -> list[dict[str, Any]]:
    import jax
    import numpy as np
    import torch

    import offtrace as ot

    records = []
    for B, T in SHAPES:
        x = as_jax(example(B, T, torch.float32, 0))
        gamma = x.pop("gamma")
        scan = scan_of_rlax(0.9, gamma)
        near = np.abs(scan(x) - ot.targets(ot.Retrace(0.9), **x, gamma=gamma)).max()
        if not near < 1e-3:
            raise AssertionError(f"the scan is not Retrace: {near}")
        peer = seen_by_host(lambda x=x, scan=scan: scan(x), jax.block_until_ready)
        many = seen_by_host(lambda x=x, scan=scan: scan(x), jax.block_until_ready, 20, 10)
        for trace in timed_traces():
            ours = jax.jit(lambda x, trace=trace, gamma=gamma: ot.targets(trace, **x, gamma=gamma))
            records.append({
                "table": "gpu jax", "rule": type(trace).__name__, "shape": [B, T], "scan": peer, "scan_many": many,
                "one": seen_by_host(lambda x=x, ours=ours: ours(x), jax.block_until_ready),
                "many": seen_by_host(lambda x=x, ours=ours: ours(x), jax.block_until_ready, 100, 10),
            })  # fmt: skip
    return records


def time_jax_long() -> Iterator[dict[str, Any]]:
    """Rows of any length under jit: a hundred calls in a row, divided by a hundred."""
    import jax

    import offtrace as ot

    for i, (shape, data) in enumerate(JAX_LONG):
        x = as_jax(long_example(shape, data, seed=int(time.time()) + i))
        gamma = x.pop("gamma")
        for trace in timed_traces():
            trace = replace(trace, lam=data["λ"])
            ours = jax.jit(lambda x, trace=trace, gamma=gamma: ot.corrections(trace, **x, gamma=gamma))
            many = seen_by_host(lambda x=x, ours=ours: ours(x), jax.block_until_ready, 100, 5)
            yield {
                "table": "gpu jax long", "rule": type(trace).__name__, "shape": shape, "data": data, "many": many
            }  # fmt: skip


def machine() -> list[dict[str, Any]]:
    import jax
    import torch
    import triton

    return [{
        "table": "gpu machine", "date": datetime.date.today().isoformat(), "card": torch.cuda.get_device_name(),
        "versions": f"PyTorch {torch.__version__}, Triton {triton.__version__}, JAX {jax.__version__}",
    }]  # fmt: skip


def main() -> None:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    parts = {
        "torch": (partial(check, "PyTorch"), time_torch, time_long, time_weights),
        "jax": (partial(check, "JAX"), time_jax, time_jax_long),
    }
    for part in (machine, *(part for name in sys.argv[1:] or parts for part in parts[name])):
        for record in part():
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
