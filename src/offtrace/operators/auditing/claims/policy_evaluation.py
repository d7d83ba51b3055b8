"""What the paper says of policy evaluation with any β, each as a computation."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np

import offtrace.traces as ot
from offtrace.mdps import alternating, garnet, one_state_two_actions, powers_of_two, q_lambda_tight, random_policy
from offtrace.operators.auditing.claims.common import (
    ALL_BUT_SECOND,
    FIRST_ACTION,
    SECOND_LAG,
    Found,
    battery,
    claim,
    coefficient,
    enumerated,
    operators,
    recursive,
    sizes,
    summed,
)
from offtrace.operators.conditions import product_condition
from offtrace.operators.operator import Operator
from offtrace.operators.proofs import proof


def _running_minimum(xp: Any, carry: Any, now: ot.Step) -> tuple[Any, Any]:
    whole, least = carry[0] * now.rho, xp.minimum(carry[1], carry[0] * now.rho)
    return (whole, least), least


RUNNING_MINIMUM = ot.StepTrace(_running_minimum, carry=(1.0, 1.0), title="the running minimum of ∏ρ", horizon=100)
"""β_t = min(β_{t-1}, ∏ρ) up to lag 99: the largest β with β_t ≤ ∏ρ and β_t ≥ β_{t+1}."""


@claim("Q^π is a fixed point of M, and MQ − Q^π = Σ γ^t P_μ^{t-1}(B_{t-1}P_π − P_μB_t)(Q − Q^π), for any β", "Lemma 1")
def _lemma_1() -> Found:
    rng, moved, apart, other, tried, n = np.random.default_rng(1), 0.0, 0.0, 0.0, 0, 4
    bounds = (0.0, 1.5, 0.5)
    cut = {"horizon": n}
    traces = (ot.Retrace(**cut), ot.NonMarkovRetrace(0.9, **cut), ot.TruncatedIS(bounds, **cut), ot.QLambda(0.7, **cut))
    for trace, seed in product(traces, range(3)):
        mdp = garnet(2, 2, 2, seed=seed, gamma=0.9)
        pi, mu = (0.98 * random_policy(mdp, rng) + 0.01 for _ in range(2))
        K, P, Q_pi = enumerated(mdp, trace, pi, mu, n + 1), mdp.P_pi(pi).toarray(), mdp.q(pi).ravel()
        A = sum(mdp.gamma**t * (K[t - 1] @ P - K[t]) for t in range(1, n + 1))
        for Q in (Q_pi, rng.normal(size=mdp.pairs)):
            MQ = Q + summed(mdp, K) @ (mdp.R.ravel() + mdp.gamma * P @ Q - Q)
            moved = max(moved, np.abs(MQ - Q).max() if Q is Q_pi else 0.0)
            apart = max(apart, np.abs(MQ - Q_pi - A @ (Q - Q_pi)).max())
            tried += 1
        other = max(other, np.abs(A - Operator(trace, mdp, target=pi, behavior=mu).Z).max())
    numbers = (
        f"{tried} cases, all histories enumerated, P_μ^tB_t = K_t: largest |MQ^π − Q^π| = {moved:.1e}, largest "
        f"difference of the two sides {apart:.1e}, of the sum and Z = I − C(I − γP_π) {other:.1e}"
    )
    return Found(max(moved, apart, other) > 1e-6, numbers, f"garnet(2, 2, 2, seed=0…2) × {len(traces)} traces")


@claim("MQ = Q + Σ γ^t P_μ^t B_t (T_πQ − Q), a product of matrices, B_t diagonal", "equation 4")
def _diagonal_matrices() -> Found:
    mdp, pi, mu = battery()[5]
    trace = ot.NonMarkovRetrace(horizon=3)
    K, two = enumerated(mdp, trace, pi, mu, 3), np.linalg.matrix_power(mdp.P_pi(mu).toarray(), 2)
    entry = np.where(
        two > 1e-9, K[2] / np.where(two > 1e-9, two, 1.0), np.nan
    )  # what B_2(y, y) must be for the start x
    spread = float(np.nanmax(np.nanmax(entry, axis=0) - np.nanmin(entry, axis=0)))
    Q = np.random.default_rng(0).normal(size=(mdp.S, mdp.A))
    op = Operator(trace, mdp, target=pi, behavior=mu)
    apart = np.abs(op.apply(Q) - Q - (summed(mdp, K) @ (op.bellman(Q) - Q).ravel()).reshape(Q.shape)).max()
    numbers = (
        f"read as printed: one entry of Non-Markov Retrace's B_2 would have to differ by {spread:.3f} with the start. "
        f"Read with K_t, the mean over histories, for P_μ^tB_t, it is equation 2 and holds: difference {apart:.0e}"
    )
    return Found(spread > 1e-6, numbers, "garnet(3, 2, 3, seed=5)")


@claim("β_t ≤ ∏ρ makes M a contraction with modulus γ, so M^k Q → Q^π", "Theorem 1")
def _theorem_1() -> Found:
    mdp, pi, mu = alternating()
    skips, but_one = (Operator(trace, mdp, target=pi, behavior=mu) for trace in (SECOND_LAG, ALL_BUT_SECOND))
    down, up = np.linalg.eigvals(skips.Z).real.min(), np.linalg.eigvals(but_one.Z).real.max()
    one, π, μ = one_state_two_actions()
    kept = Operator(FIRST_ACTION, one, target=π, behavior=μ)
    off_policy = float(np.abs(pi - mu).max())
    meant = off_policy > 0 and all(product_condition(op.setting).holds for op in (skips, but_one, kept))
    numbers = (
        f"off-policy, as the paper assumes: β = (1, 0, ρ₁ρ₂, 0, …): eigenvalue {down:.3f}, {sizes(skips)}; "
        f"β = (1, ρ₁, 0, ρ₁ρ₂ρ₃, 0, …): eigenvalue {up:+.3f}, which no step size cures, {sizes(but_one)}. To lose the "
        f"contraction is not to diverge: one state, on-policy, β_t = 1 after the first action only: {sizes(kept)}"
    )
    shown = tuple(partial(proof, trace, mdp, pi, mu) for trace in (SECOND_LAG, ALL_BUT_SECOND))
    return Found(meant and skips.spectral_radius > 1, numbers, "alternating(gamma=0.9); one_state_two_actions()", shown)


@claim("β_t ≤ β_{t-1}ρ_t (the proof's own step) makes M a contraction with modulus γ", "Theorem 1, its proof")
def _recursive_condition() -> Found:
    excess, least, tried, traces = -np.inf, np.inf, 0, recursive()
    for op in operators(*traces):
        assert op.setting.recursive_condition
        least = min(least, float((op.Z + op.Z_error).min()))
        excess = max(excess, op.contraction.lower - op.mdp.gamma)
        tried += 1
    numbers = f"{tried} operators: largest ‖Z‖ − γ = {excess:.1e}, smallest entry of Z = {least:.1e}"
    shown = tuple(partial(proof, trace, *battery()[0]) for trace in (ot.TreeBackup(), ot.Retrace(0.9)))
    return Found(excess > 1e-9 or least < -1e-9, numbers, f"{len(battery())} random MDPs × {len(traces)} traces", shown)


@claim("β = 0 has the rate γ (TD(0)); β = ∏ρ has the rate 0 (importance sampling)", "Section 3.1, remarks")
def _extremes() -> Found:
    one = max(abs(op.contraction.midpoint - op.mdp.gamma) for op in operators(ot.OneStep()))
    all_of_it = max(op.contraction.upper for op in operators(ot.ImportanceSampling()))
    mdp, pi, mu = one_state_two_actions(behavior=(1.0, 0.0), gamma=0.9)
    missed = Operator(ot.ImportanceSampling(), mdp, target=pi, behavior=mu).contraction
    numbers = (
        f"one-step: largest |‖Z‖ − γ| = {one:.1e}; importance sampling: largest ‖Z‖ = {all_of_it:.1e}. It takes μ > 0 where "
        f"π > 0: with π = (½, ½), μ = (1, 0), ‖Z‖ = {missed}"
    )
    shown = partial(proof, ot.OneStep(), *alternating()), partial(proof, ot.ImportanceSampling(), *alternating())
    where = f"{len(battery())} random MDPs; one_state_two_actions(gamma=0.9)"
    return Found(one > 1e-6 or all_of_it > 1e-6, numbers, where, shown)


@claim("the spectrum of convergent algorithms includes the examples of Section 2.2", "Section 3.1, remarks")
def _spectrum_includes_the_examples() -> Found:
    examples = (ot.ImportanceSampling(), ot.QLambda(1.0), ot.TreeBackup(), ot.Retrace(), ot.NonMarkovRetrace(),
                ot.TruncatedIS(1.0))  # fmt: skip
    said, largest = [], 0.0
    for trace in examples:
        ops = [
            Operator(trace, mdp, target=pi, behavior=mu, tolerance=1e-5)
            for mdp, pi, mu in (q_lambda_tight(), powers_of_two())
        ]
        worst = max(ops, key=lambda op: op.spectral_radius.lower)
        if worst.spectral_radius > 1:
            keeps = "keeps" if product_condition(worst.setting).holds else "breaks"
            said.append(f"{trace.title}, which {keeps} β_t ≤ ∏ρ: {sizes(worst)}")
        else:
            largest = max(largest, worst.spectral_radius.upper)
    numbers = (
        f"{len(said)} of {len(examples)} diverge. {'; '.join(said)}. Largest radius of the others: {largest:.4g}. "
        "Section 2.2 itself says that Q(λ) need not converge"
    )
    shown = partial(proof, ot.QLambda(1.0), *q_lambda_tight()), partial(proof, ot.TruncatedIS(1.0), *powers_of_two())
    return Found(bool(said), numbers, "q_lambda_tight(gamma=0.9); powers_of_two(gamma=0.98); λ = 1, d = 1", shown)


@claim("β_t ≤ ∏ρ with the recency heuristic, β_t ≥ β_{t+1}, makes M a contraction", "Section 4.2")
def _recency_heuristic() -> Found:
    mdp, pi, mu = one_state_two_actions(target=(1 / 3, 2 / 3), behavior=(2 / 3, 1 / 3), gamma=0.9)
    op = Operator(RUNNING_MINIMUM, mdp, target=pi, behavior=mu)
    paths = [list(path) for path in product(range(2), repeat=8)]
    β = np.array([[coefficient(RUNNING_MINIMUM, pi, mu, path[: t + 1]) for t in range(8)] for path in paths])
    ρ = (pi / mu).ravel()[np.array(paths)]
    ρ[:, 0] = 1.0
    meant = bool((np.diff(β) <= 1e-12).all() and (β <= np.cumprod(ρ, axis=1) + 1e-12).all())
    numbers = (
        f"β_t = min(β_{{t-1}}, ∏ρ), ρ = (½, 2): {sizes(op)}: no contraction, though iterating it converges here. Read as advice "
        f"on the size of Σ γ^tβ_t alone it holds: at most 1/(1 − γ) = {1 / (1 - mdp.gamma):.3g}, here "
        f"{op.magnitude.largest.midpoint:.3g} on average"
    )
    return Found(
        meant and op.contraction > 1,
        numbers,
        "one_state_two_actions(target=(1/3, 2/3), behavior=(2/3, 1/3), gamma=0.9)",
    )
