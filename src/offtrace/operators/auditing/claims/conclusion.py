"""What the paper says in its conclusion, each as a computation."""

from __future__ import annotations

from typing import Any

import numpy as np

import offtrace.traces as ot
from offtrace.mdps import MDP, alternating
from offtrace.operators.auditing.claims.common import SECOND_LAG, Found, battery, claim, on_battery, sizes_of
from offtrace.operators.operator import Operator


@claim(
    "M with β = ∏ γ(F_k)λ(F_k)ρ_k, history-dependent γ(F_k) and λ(F_k) in [0, 1], converges (evaluation)", "Conclusion"
)
def _history_dependent_lambda() -> Found:
    def forgetful(xp: Any, carry: Any, now: ot.Step) -> tuple[Any, Any]:
        carry = carry * now.rho * xp.where(carry > 1.0, 0.2, xp.where(now.lag > 3.0, 0.5, 1.0))
        return carry, carry

    rng, worst, tried = np.random.default_rng(3), -np.inf, 0
    custom = ot.StepTrace(forgetful, title="λ of the past", horizon=8)
    for i, (mdp, pi, mu) in enumerate(battery()):
        variable = Operator(ot.VariableLambda(rng.random((mdp.S, mdp.A))), mdp, target=pi, behavior=mu)
        for op in (variable, *(on_battery(i, t) for t in (ot.HistoryBounded(0.5), ot.HistoryBounded(2.0), custom))):
            worst, tried = max(worst, op.contraction.lower - mdp.gamma), tried + 1
    return Found(worst > 1e-9, f"{tried} operators: largest ‖Z‖ − γ = {worst:.1e}", f"{len(battery())} random MDPs")


@claim(
    "methods with variable discounts γ(F_k) can be expressed by β = ∏ γ(F_k)λ(F_k)ρ_k, so these methods converge",
    "Conclusion",
)
def _variable_discount() -> Found:
    γ, inner = 0.9, 0.5
    mdp = MDP(np.ones((1, 1, 1)), np.ones((1, 1)), γ, terminal=np.zeros(1, bool))
    op = Operator(
        ot.QLambda(inner), mdp, target=np.ones((1, 1)), behavior=np.ones((1, 1))
    )  # ρ = 1, so β_t = γ(F_1) ··· γ(F_t)
    limit, meant = float(op.iterate(np.zeros((1, 1)), 200)[0, 0]), [1 / (1 - γ * inner), 1 / (1 - inner)]
    numbers = (
        f"reward 1 for ever, γ = {γ}, γ(F_k) = ½: M converges, but to {limit:.4g}, the value of γ alone, as its δ does not "
        f"know γ(F_k); discounted by γ·γ(F_k) it is {meant[0]:.4g}, by γ(F_k) {meant[1]:.4g}. "
        "Read as a claim on M alone it holds: the row above"
    )
    return Found(min(abs(limit - m) for m in meant) > 1e-3, numbers, "one state, one action")


@claim("β may vary with time, if β_t ≤ ∏ρ at all times", "Conclusion")
def _time_varying() -> Found:
    mdp, pi, mu = alternating()
    Z = [Operator(trace, mdp, target=pi, behavior=mu).Z for trace in (SECOND_LAG, ot.OneStep())]
    norm, radius = sizes_of(Z[0] @ Z[1])
    worst, rng = -np.inf, np.random.default_rng(4)
    for i, (m, _, _) in enumerate(battery()):
        ops = [on_battery(i, t).Z for t in (ot.Retrace(), ot.NonMarkovRetrace(0.9), ot.TreeBackup())]
        product = np.eye(m.pairs)
        for k in rng.integers(3, size=10):
            product = ops[k] @ product
        worst = max(worst, float(np.abs(product).sum(axis=1).max()) / m.gamma**10)
    numbers = (
        f"β = (1, 0, ρ₁ρ₂, 0, …) and one-step in turn, off-policy: norm {norm:.3f}, spectral radius {radius:.3f} per pair of "
        f"steps. Under β_t ≤ β_{{t-1}}ρ_t at all times: ‖Z_10 ··· Z_1‖ ≤ {worst:.2g} γ^10 on everything tried"
    )
    return Found(radius > 1, numbers, "alternating(gamma=0.9); random MDPs")
