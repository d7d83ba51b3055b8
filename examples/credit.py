"""How does each trace assign credit? One sample trajectory, all traces: a picture and a table. `make run` runs this."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import offtrace as ot

OUT = Path(__file__).resolve().parent.parent / "out"
GAMMA = 0.97
LAM = 0.9
STEPS = 48
TRACES: list[ot.Trace] = [
    ot.QLambda(LAM),
    ot.ImportanceSampling(LAM),
    ot.TreeBackup(LAM),
    ot.Retrace(LAM),
    ot.NonMarkovRetrace(LAM),
    ot.RBIS(LAM),
    ot.TruncatedIS(bound=1.0, lam=LAM),
    ot.HistoryBounded(bound=2.0),
]
ALSO: list[ot.Trace] = [
    ot.OneStep(),
    ot.WatkinsQ(LAM),
    ot.QSigma(sigma=0.5, lam=LAM),
    ot.AlphaRetrace(mix=0.5, lam=LAM),
    ot.CTrace(mix=0.25, lam=LAM, rate=0.8),
    ot.ABQ(zeta=0.5, psi0=1.0, psi_max=2.0),
    ot.VariableLambda(np.where(np.arange(STEPS) % 8, 1.0, 0.0)),
    ot.Retrace(LAM, horizon=5),
]


def sample(steps: int = STEPS, actions: int = 4, seed: int = 4) -> dict[str, Any]:
    """A trajectory of two episodes under μ, where π prefers other actions; the first episode is cut by a limit."""
    rng = np.random.default_rng(seed)
    preference = rng.normal(size=(steps, actions))
    log_mu = preference - np.log(np.exp(preference).sum(axis=1, keepdims=True))
    shifted = preference + 0.9 * rng.normal(size=(steps, actions))
    log_pi = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    action = np.array([rng.choice(actions, p=np.exp(row)) for row in log_mu])
    taken = np.arange(steps), action
    truncated, terminated = np.zeros(steps, bool), np.zeros(steps, bool)
    truncated[2 * steps // 3 - 1] = terminated[-1] = True
    greedy = action == log_pi.argmax(axis=1)
    logs = {"log_pi": log_pi[taken], "log_mu": log_mu[taken]}
    return {**logs, "greedy": greedy, "terminated": terminated, "truncated": truncated}


def main() -> None:
    """Draw the picture and print the comparison."""
    trajectory = sample()
    print(f"One trajectory of {len(trajectory['log_pi'])} steps, two episodes, γ = {GAMMA}; means over all starts\n")
    head = f"{'trace':<24}{'Σγᵗβₜ':>8}{'largest':>9}{'horizon':>9}{'cut':>7}{'max β':>8}{'ESS':>7}  {'recursive condition':<20}"
    print(head + "\n" + "─" * len(head))
    for trace in [*TRACES, *ALSO]:
        s = ot.diagnose(trace, gamma=GAMMA, **trajectory).pooled
        name = trace.title + (f", n = {trace.horizon}" if trace.horizon else "")
        holds = {True: "holds", False: "fails", None: "unknown"}[trace.recursive_condition]
        print(
            f"{name:<24}{s.magnitude:>8.2f}{s.largest_magnitude:>9.2f}{s.horizon:>9.2f}{s.cut:>7.0%}"
            f"{s.largest:>8.2f}{s.effective:>7.1f}  {holds:<20}"
        )
    OUT.mkdir(exist_ok=True)
    path = OUT / "credit.png"
    figure = ot.credit_figure(TRACES, title=f"Credit β from step t back to its start k, λ = {LAM}", **trajectory)
    figure.savefig(path)
    print(f"\nThe picture: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


if __name__ == "__main__":
    main()
