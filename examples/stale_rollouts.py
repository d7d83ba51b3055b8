"""What does each weight do to rollouts of an older policy? Its bias and spread on a sum that is known, and what a diagnosis says.

Rows of 24 tokens from 8 are drawn from μ. The weighted sum estimates E_π of the share of tokens that are the first one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import offtrace as ot

ROWS, STEPS, TOKENS, SHIFT = 4096, 24, 8, 0.35
WEIGHTS: list[tuple[str, ot.Trace, dict[str, Any]]] = [
    ("none", ot.QLambda(lam=1.0), {"level": "token"}),
    ("token", ot.ImportanceSampling(), {"level": "token"}),
    ("token, capped at 2", ot.TruncatedIS(bound=2.0), {"level": "token"}),
    ("sequence", ot.ImportanceSampling(), {"level": "sequence"}),
    ("sequence, capped at 2", ot.TruncatedIS(bound=2.0), {"level": "sequence"}),
    ("geometric", ot.ImportanceSampling(), {"level": "geometric"}),
    ("prefix", ot.ImportanceSampling(), {"level": "prefix"}),
    ("prefix, normalised", ot.ImportanceSampling(), {"level": "prefix", "normalize": "batch"}),
    ("prefix, capped at 2", ot.TruncatedIS(bound=2.0), {"level": "prefix"}),
    ("prefix, Non-Markov Retrace", ot.NonMarkovRetrace(lam=1.0), {"level": "prefix"}),
    ("prefix, flattened by ½", ot.FlattenedIS(kappa=0.5, bound=1.0), {"level": "prefix"}),
]


def policies(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """π and μ: the next token's probabilities by the last token, [8, 8]."""
    logits = rng.normal(size=(TOKENS, TOKENS))
    both = np.stack([logits, logits + SHIFT * rng.normal(size=logits.shape)])
    return tuple(np.exp(both) / np.exp(both).sum(axis=2, keepdims=True))


def draw(policy: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows of tokens, [ROWS, STEPS + 1], which begin with token 0."""
    rows = np.zeros((ROWS, STEPS + 1), np.int64)
    for t in range(STEPS):
        chances = policy[rows[:, t]].cumsum(axis=1)
        rows[:, t + 1] = (chances < rng.random((ROWS, 1))).sum(axis=1).clip(max=TOKENS - 1)
    return rows


def main() -> None:
    """Print the table and the diagnosis."""
    rng = np.random.default_rng(0)
    pi, mu = policies(rng)
    at, true = np.eye(TOKENS)[0], 0.0
    for _ in range(STEPS):
        at = at @ pi
        true += at[0] / STEPS
    rows = draw(mu, rng)
    before, after = rows[:, :-1], rows[:, 1:]
    taken: dict[str, Any] = {"log_pi": np.log(pi[before, after]), "log_mu": np.log(mu[before, after])}
    print(f"The share of the first token under π is {true:.4f}; estimates from {ROWS} rows of μ\n")
    print(f"{'weight':<28}{'estimate':>10}{'± error':>10}{'mean':>8}{'largest':>10}")
    for name, trace, options in WEIGHTS:
        w = ot.weights(trace, **taken, **options)
        of_rows = (w * (after == 0)).mean(axis=1)
        error = of_rows.std() / np.sqrt(ROWS)
        print(f"{name:<28}{of_rows.mean():>10.4f}{error:>10.4f}{w.mean():>8.3f}{w.max():>10.2f}")
    print(f"\n{ot.diagnose_weights(ot.TruncatedIS(bound=2.0), **taken)}")


if __name__ == "__main__":
    main()
