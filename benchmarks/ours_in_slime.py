"""A plugin of pytest for peer_suites.py: slime's losses are ours."""

from __future__ import annotations

from typing import Any

import torch
from slime.utils import ppo_utils  # pyright: ignore[reportMissingImports]

from offtrace import policy


def of_tokens(name: str, log_pi: Any, log_prox: Any, advantages: Any, clip: Any, dual: Any = None) -> tuple[Any, Any]:
    """Losses of flat tokens, and which of them are clipped."""
    found = policy.loss(
        name, log_pi=log_pi, log_prox=log_prox, advantage=advantages, clip=clip, dual=dual, mean="seq-mean-token-sum"
    )
    return found.terms["policy"], found.arrays["clipped"]


def compute_policy_loss(
    ppo_kl: Any, advantages: Any, eps_clip: float, eps_clip_high: float, eps_clip_c: float | None = None
) -> tuple[Any, Any]:
    """slime gives log π_prox − log π."""
    return of_tokens("ppo", -ppo_kl, torch.zeros_like(ppo_kl), advantages, (eps_clip, eps_clip_high), eps_clip_c)


def compute_cispo_loss(
    ppo_kl: Any, log_probs: Any, advantages: Any, eps_clip: float, eps_clip_high: float
) -> tuple[Any, Any]:
    """The gradient goes through log_probs alone."""
    log_prox = (log_probs + ppo_kl).detach()
    return of_tokens("cispo", log_probs, log_prox, advantages, (eps_clip, eps_clip_high))


for name in ("compute_policy_loss", "compute_cispo_loss"):
    setattr(ppo_utils, name, globals()[name])


def left_out(item: Any) -> str | None:
    """Why a test does not concern ours."""
    if "cp_invariant" in item.name:
        return "of slime's own scaling of a loss"
    reads = item.name == "test_policy_loss_function_forwards_eps_clip_c"
    return "reads slime's source only" if reads else None
