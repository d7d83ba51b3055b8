"""A rule that keeps β_t ≤ ∏ρ and diverges: the condition of the paper's Theorem 1 is not enough. Draws `docs/audit.png`."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import offtrace as ot
from offtrace import mdps, operators

OUT = Path(__file__).resolve().parent.parent / "out"
TRACES: dict[str, ot.Trace] = {
    "β = (1, 0, ρ₁ρ₂, 0, …)": ot.TruncatedIS(bound=(0, np.inf, 0)),
    "One-step": ot.OneStep(),
    "Retrace": ot.Retrace(lam=1.0),
    "Non-Markov Retrace": ot.NonMarkovRetrace(lam=1.0),
}
ITERATIONS = 12


def main() -> None:
    """Iterate M from a random Q on the MDP `alternating`, with four traces."""
    mdp, π, μ = mdps.alternating()
    start = np.random.default_rng(0).normal(size=(mdp.S, mdp.A))
    figure, axes = plt.subplots(figsize=(4.6, 2.9), layout="constrained")
    for i, (label, trace) in enumerate(TRACES.items()):
        M, Q, error = operators.Operator(trace, mdp, target=π, behavior=μ), start, []
        for _ in range(ITERATIONS):
            error.append(np.abs(Q - mdp.q(π)).max())
            Q = M.apply(Q)
        axes.semilogy(error, color="#c2410c" if i == 0 else f"C{i - 1}", lw=2.2 if i == 0 else 1.3, label=label)
    axes.set(xlabel="iterations of M", ylabel="error of Q", title="Two states, off-policy, γ = 0.9")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    OUT.mkdir(exist_ok=True)
    figure.savefig(OUT / "audit.png", dpi=150)
    print(f"The picture: {OUT / 'audit.png'}")


if __name__ == "__main__":
    main()
