"""Weights, rejection, diagnosis and losses on a card, each beside plain PyTorch, in float32.

python benchmarks/gpu_losses.py [weights] [reject] [diagnose] [packed] [losses] [compiled] [capture]

The peers: for weights `(log π − log μ).cumsum().exp().clamp()`, for losses PPO's by hand, for packed rows the same tokens in rows
that are padded. Times are medians of a call, in µs. "capture" shows which calls can be recorded in a CUDA graph or compiled.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from triton.testing import do_bench

import offtrace as ot
from offtrace import policy

LEVELS = ("token", "prefix", "suffix", "sequence", "geometric")
CRITERIA = ("token k1", "sequence mean k3", "sequence sum k1", "prefix mean k1", "sequence max k2")
SHAPES = ((512, 4096), (512, 16384))
Arrays = dict[str, Any]


def decisions(B: int, T: int) -> Arrays:
    """log π, log μ and a mask."""
    torch.manual_seed(0)
    log_mu = -torch.rand(B, T, device="cuda")
    log_pi = log_mu + 0.05 * torch.randn_like(log_mu) - 0.00125  # so that the mean of ρ is 1
    return {"log_pi": log_pi, "log_mu": log_mu, "mask": torch.rand(B, T, device="cuda") < 0.9}


def timed(call: Callable[[], object]) -> float:
    """The median time of a call, in µs."""
    ms: Any = do_bench(call, warmup=30, rep=100, return_mode="median")
    return 1000 * float(ms)


def by_wall_clock(call: Callable[[], object]) -> float:
    """The median time of a call that waits for the device, in µs."""
    times: list[float] = []
    for _ in range(8):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        times.append(1e6 * (time.perf_counter() - begun))
    return sorted(times[1:])[3]


def by_cumsum(log_pi: Any, log_mu: Any, mask: Any) -> Any:
    """Truncated prefix weights by hand; the mask is not read."""
    return (log_pi - log_mu).cumsum(1).exp().clamp(max=2.0)


def weights() -> None:
    """Each level beside plain PyTorch."""
    for shape in SHAPES:
        x = decisions(*shape)
        plain = timed(partial(by_cumsum, **x))
        print(f"weights {shape}: plain PyTorch {plain:.0f} µs")
        for trace in (ot.ImportanceSampling(), ot.TruncatedIS(bound=2.0), ot.NonMarkovRetrace()):
            times = [timed(partial(ot.weights, trace, **x, level=level)) for level in LEVELS]
            print(f"  {trace!r:<60}", *(f"{level} {t:.0f}" for level, t in zip(LEVELS, times, strict=True)))


def reject() -> None:
    """Each criterion."""
    for shape in SHAPES:
        x = decisions(*shape)
        times = [timed(partial(ot.reject, **x, by=by, upper=0.1)) for by in CRITERIA]
        print(f"reject {shape}:", *(f"{by} {t:.0f}" for by, t in zip(CRITERIA, times, strict=True)))


def diagnose() -> None:
    """The diagnosis, which brings its numbers to the host."""
    for shape in SHAPES:
        x = decisions(*shape)
        wrong = {**x, "log_pi": x["log_pi"] + 0.1}
        right, far = (by_wall_clock(partial(ot.diagnose_weights, ot.TruncatedIS(bound=2.0), **a)) for a in (x, wrong))
        print(f"diagnose_weights {shape}: {right:.0f} µs, with a finding {far:.0f}")


def packed() -> None:
    """Two million tokens in rows of unequal length, packed and padded."""
    torch.manual_seed(1)
    lengths = torch.randint(512, 7681, (512,))
    cu = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).cuda()
    longest, there = int(lengths.max()), torch.arange(int(lengths.max()))[None] < lengths[:, None]
    x = decisions(512, longest)
    x["mask"] = there.cuda()
    flat = {name: a[x["mask"]] for name, a in x.items() if name != "mask"}
    print(f"packed: {int(lengths.sum())} tokens in 512 rows of 512 to 7680")
    for level in LEVELS:
        rows = timed(partial(ot.weights, ot.ImportanceSampling(), **x, level=level))
        ours = timed(
            partial(ot.weights, ot.ImportanceSampling(), **flat, level=level, cu_seqlens=cu, max_seqlen=longest)
        )
        print(f"  {level}: padded {rows:.0f} µs, packed {ours:.0f}, {ours / rows:.2f} times")
    advantage = torch.randn(512, device="cuda")
    for name in ("ppo", "ctpo", "gspo"):
        rows = gradient_time(partial(number_of, policy.loss, name=name, advantage=advantage, check=False), x)
        ours = gradient_time(
            partial(
                number_of, policy.loss, name=name, advantage=advantage, cu_seqlens=cu, max_seqlen=longest, check=False
            ),
            flat,
        )
        print(f"  loss {name}: padded {rows:.0f} µs, packed {ours:.0f}, {ours / rows:.2f} times")


def number_of(loss: Callable[..., Any], **given: Any) -> Any:
    """The number to be differentiated."""
    return loss(**given).loss


def gradient_time(call: Callable[..., Any], x: Arrays) -> float:
    """Forward and backward of a loss."""
    log_pi = x["log_pi"].clone().requires_grad_()
    given = {**x, "log_pi": log_pi}

    def run() -> None:
        log_pi.grad = None
        call(**given).backward()

    return timed(run)


def losses(wrap: Callable[..., Any] = lambda call: call) -> None:
    """Each named loss beside PPO by hand."""
    x = decisions(512, 4096)
    log_prox = x["log_mu"] + 0.02 * torch.randn_like(x["log_mu"])
    advantage = torch.randn(512, device="cuda")

    def by_hand(log_pi: Any, mask: Any, **_: Any) -> Any:
        ratio, A = (log_pi - log_prox).exp(), advantage[:, None]
        each = -torch.minimum(ratio * A, ratio.clamp(0.8, 1.2) * A)
        return (each * mask).sum() / mask.sum()

    hand = gradient_time(wrap(by_hand), x)
    print(f"losses (512, 4096), forward and backward: by hand {hand:.0f} µs")
    rest: Arrays = {"advantage": advantage, "check": False}
    calls: dict[str, Callable[..., Any]] = {
        name: partial(policy.loss, name, log_prox=log_prox, **rest) for name in policy.losses()
    }
    calls["weighted"] = partial(policy.weighted, ot.TruncatedIS(bound=2.0), **rest)
    calls["clipped"] = partial(policy.clipped, log_prox=log_prox, **rest)
    for name, call in calls.items():
        torch.compiler.reset()  # or so many functions reach the limit of compilations
        us = gradient_time(wrap(partial(number_of, call)), x)
        print(f"  {name:<16} {us:.0f} µs, {us / hand:.2f} times by hand")


def compiled() -> None:
    """The same under torch.compile."""
    losses(partial(torch.compile, fullgraph=True))


def capture() -> None:
    """Whether calls go into a CUDA graph of the user's own, and through torch.compile."""
    x = decisions(64, 512)
    advantage = torch.randn(64, device="cuda")
    calls: dict[str, Callable[[], Any]] = {
        "weights": lambda: ot.weights(ot.TruncatedIS(bound=2.0), **x),
        "reject": lambda: ot.reject(**x, by="sequence mean k3", upper=0.1),
        **{
            name: lambda name=name: policy.loss(name, **x, advantage=advantage, check=False).loss
            for name in ("ppo", "gspo", "ctpo", "tis", "mis")
        },
        "weighted": lambda: policy.weighted(ot.TruncatedIS(bound=2.0), **x, advantage=advantage, check=False).loss,
    }
    for name, call in calls.items():
        wanted = call()
        print(f"capture {name}: {_recorded(call, wanted)}; compiled: {_compiled(call, wanted)}")


def _recorded(call: Callable[[], Any], wanted: Any) -> str:
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = call()
        graph.replay()
        torch.cuda.synchronize()
        return "right" if torch.equal(got, wanted) or torch.allclose(got, wanted) else "WRONG"
    except Exception as error:
        torch.cuda.synchronize()
        return f"{type(error).__name__}: {str(error)[:200]}"


def _compiled(call: Callable[[], Any], wanted: Any) -> str:
    try:
        got = torch.compile(call, fullgraph=True)()
        return "right" if torch.equal(got, wanted) or torch.allclose(got, wanted) else "WRONG"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"


PARTS = {f.__name__: f for f in (weights, reject, diagnose, packed, losses, compiled, capture)}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
