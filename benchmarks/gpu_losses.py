"""Losses on a card: forward and backward of each named loss against a PPO loss by hand, [512, 4096] float32.

python benchmarks/gpu_losses.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from triton.testing import do_bench

from offtrace import policy

B, T = 512, 4096


def main() -> None:
    """Print a line for each loss."""
    torch.manual_seed(0)
    log_mu = -torch.rand(B, T, device="cuda")
    log_prox = (log_mu + 0.05 * torch.randn_like(log_mu)).clamp(max=0)
    log_pi = (log_prox + 0.05 * torch.randn_like(log_mu)).clamp(max=0).requires_grad_()
    advantage, mask = torch.randn(B, device="cuda"), torch.rand(B, T, device="cuda") < 0.9

    def by_hand() -> torch.Tensor:
        ratio = (log_pi - log_prox).exp()
        A = advantage[:, None]
        each = -torch.minimum(ratio * A, ratio.clamp(0.8, 1.2) * A)
        return (each * mask).sum() / mask.sum()

    def timed(f: Callable[[], torch.Tensor]) -> float:
        def run() -> None:
            log_pi.grad = None
            f().backward()

        ms: Any = do_bench(run, warmup=50, rep=200, return_mode="median")
        return float(ms)

    hand = timed(by_hand)
    print(f"by hand {hand:.3f} ms")
    given: dict[str, Any] = {
        "log_pi": log_pi,
        "log_prox": log_prox,
        "log_mu": log_mu,
        "advantage": advantage,
        "mask": mask,
    }
    for name in policy.losses():
        ms = timed(lambda name=name: policy.loss(name, **given, check=False).loss)
        print(f"{name:<16} {ms:.3f} ms, {ms / hand:.2f} times by hand")
    compiled = torch.compile(lambda: policy.loss("ppo", **given, check=False).loss)
    try:
        print(f"ppo compiled     {timed(compiled):.3f} ms")
    except Exception as error:
        print(f"ppo compiled: {type(error).__name__}: {str(error)[:300]}")


if __name__ == "__main__":
    main()
