"""A policy learns from rollouts of an older one: what do the weights do to learning? PyTorch; seconds on one core.

The task: go backwards through the alphabet from the prompt's symbol, one symbol a step. The policy is a table of logits, and the
rollouts come from a copy that is refreshed every 48 updates, in groups of eight for each prompt. Each line is one way to weigh
them. What is right depends on the last symbol alone here, so that the past is noise: docs/policy.md says where it is not.

    python examples/stale_policy_gradient.py
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import offtrace as ot
from offtrace import policy

SYMBOLS, STEPS, GROUPS, EACH = 6, 6, 6, 8
UPDATES, REFRESH, SEEDS = 96, 48, 3
WEIGHTS: dict[str, tuple[ot.Trace, dict[str, Any]]] = {
    "none": (ot.QLambda(lam=1.0), {"level": "token"}),
    "token, ≤ 2": (ot.TruncatedIS(bound=2.0), {"level": "token"}),
    "sequence, ≤ 2": (ot.TruncatedIS(bound=2.0), {"level": "sequence"}),
    "geometric": (ot.ImportanceSampling(), {"level": "geometric"}),
    "prefix, not capped": (ot.ImportanceSampling(), {"level": "prefix"}),
    "prefix, capped at 1 (Non-Markov Retrace)": (ot.NonMarkovRetrace(), {"level": "prefix"}),
    "prefix, capped at 2 on the way": (ot.HistoryBounded(bound=2.0), {"level": "prefix"}),
}


def roll_out(logits: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of symbols [B, STEPS + 1], of which the first is the prompt, and log μ of the others, [B, STEPS]."""
    row = torch.arange(GROUPS).repeat_interleave(EACH)[:, None]
    for t in range(STEPS):
        chances = logits[t, row[:, t]].softmax(-1)
        row = torch.cat([row, torch.multinomial(chances, 1, generator=generator)], 1)
    return row, log_probabilities(logits, row)


def log_probabilities(logits: Tensor, row: Tensor) -> Tensor:
    """Log-probabilities of all symbols of the rows but the first, [B, STEPS]."""
    every = logits[torch.arange(STEPS), row[:, :-1]].log_softmax(-1)
    return every.gather(-1, row[:, 1:, None])[..., 0]


def learn(trace: ot.Trace, options: dict[str, Any], seed: int) -> tuple[float, float]:
    """The share of right symbols at the end, and the effective sample size of whole rows before the last refresh."""
    generator = torch.Generator().manual_seed(seed)
    logits = (0.1 * torch.randn(STEPS, SYMBOLS, SYMBOLS, generator=generator)).requires_grad_()
    optimizer = torch.optim.Adam([logits], 0.5)
    older, size = logits.detach().clone(), 1.0
    for update in range(UPDATES):
        if update % REFRESH == 0:
            older = logits.detach().clone()
        row, log_mu = roll_out(older, generator)
        right = (row[:, 1:] == (row[:, :-1] - 1) % SYMBOLS).float().mean(1)
        advantage = policy.group_advantages(right, row[:, 0], std=False)
        log_pi = log_probabilities(logits, row)
        found = policy.weighted(trace, log_pi=log_pi, log_mu=log_mu, advantage=advantage, **options)
        optimizer.zero_grad()
        found.loss.backward()
        optimizer.step()
        if update == UPDATES - 1:
            size = ot.diagnose_weights(ot.ImportanceSampling(), log_pi=log_pi.detach(), log_mu=log_mu)["ess_sequence"]
    row, _ = roll_out(logits.detach(), generator)
    return float((row[:, 1:] == (row[:, :-1] - 1) % SYMBOLS).float().mean()), size


def main() -> None:
    """Print a line for each way to weigh."""
    print(f"{'weights':<42}{'right symbols of each seed':<34}{'mean':>6}{'effective rows at the end':>28}")
    for name, (trace, options) in WEIGHTS.items():
        found = [learn(trace, options, seed) for seed in range(SEEDS)]
        each = " ".join(f"{share:6.2f}" for share, _ in found)
        mean, size = (sum(column) / SEEDS for column in zip(*found, strict=True))
        print(f"{name:<42}{each:<34}{mean:>6.2f}{size:>28.0%}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
