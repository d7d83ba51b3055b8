"""What the paper says of Truncated IS, of control and in its conclusion, each as a computation; see `claims`."""

from __future__ import annotations

from typing import Any

import numpy as np

import offtrace.traces as ot
from offtrace.mdps import MDP, alternating, lemma_2, one_state_two_actions, powers_of_two, switch_or_stay
from offtrace.operators.claims import RECURSIVE, SECOND_LAG, Found, battery, claim, on_battery, operators
from offtrace.operators.control import always_greedy, control_iterates, epsilon, greedy_in_the_limit
from offtrace.operators.operator import Operator

PESSIMISTIC = np.full((2, 2), -10.0)
"""−‖R‖/(1 − γ) of `switch_or_stay`."""


@claim("Truncated IS converges for any choice of d_t", "Section 4.3")
def _truncated_is_by_lag() -> Found:
    mdp, pi, mu = alternating()
    radius = Operator(mdp, ot.TruncatedIS(bound=(0.0, 1.0, 0.0)), pi=pi, mu=mu).spectral_radius
    return Found(radius.lower > 1, f"d = (0, 1, 0, …), on-policy: spectral radius {radius}", "alternating(gamma=0.9)")


@claim("Truncated IS with one bound d = 1 converges", "Section 4.3")
def _truncated_is() -> Found:
    mdp, pi, mu = powers_of_two()
    op = Operator(mdp, ot.TruncatedIS(1.0), pi=pi, mu=mu, tolerance=1e-5)
    numbers = f"spectral radius {op.spectral_radius}, eigenvalue {np.linalg.eigvals(op.Z).real.min():.4f}; ‖Z‖ = {op.contraction}"
    return Found(
        op.spectral_radius.lower > 1,
        numbers,
        "powers_of_two(gamma=0.98)",
    )


@claim("for any d_t ≥ 0 the variance of Truncated IS is finite", "Section 2.2")
def _finite_variance() -> Found:
    mdp, pi, mu = one_state_two_actions(pi=(0.9, 0.1), mu=(0.1, 0.9), gamma=0.9, reward=(1.0, 0.0))
    Q, lags = np.zeros((1, 2)), (5, 10, 20, 40)
    sums = []
    for n in lags:  # the sum up to lag n; d_t = 9^t never truncates
        trace = ot.TruncatedIS(bound=tuple(9.0**t for t in range(1, n + 1)), horizon=n + 1)
        sums.append(float(np.max(Operator(mdp, trace, pi=pi, mu=mu).variance(Q))))
    constant = float(np.max(Operator(mdp, ot.TruncatedIS(1.0), pi=pi, mu=mu).variance(Q)))
    limit = float(np.max(Operator(mdp, ot.ImportanceSampling(), pi=pi, mu=mu).variance(Q)))
    grown = ", ".join(f"{v:.1e}" for v in sums)
    numbers = (
        f"of Σ γ^tβ_tδ_t, d_t = 9^t: to lag {', '.join(map(str, lags))}: {grown}; of all: {limit}. "
        f"With one bound for all t it is finite, as |Δ| ≤ d max|δ|/(1−γ): d = 1: {constant:.3g}"
    )
    return Found(
        not np.isfinite(limit) and sums[-1] > 1e6 * sums[0],
        numbers,
        "one_state_two_actions(pi=(.9, .1), mu=(.1, .9), gamma=.9)",
    )


@claim("‖I − C(I − γP_π)‖ ≤ γ for any policy π", "Lemma 2")
def _lemma_two() -> Found:
    mdp, pi, mu, best = lemma_2()
    C = Operator(mdp, ot.ImportanceSampling(), pi=pi, mu=mu).C
    other = np.abs(np.eye(2) - C @ (np.eye(2) - mdp.gamma * mdp.P_pi(best).toarray())).sum(axis=1).max()
    two, on, _ = alternating()
    same = Operator(two, SECOND_LAG, pi=on, mu=on).contraction
    numbers = (
        f"for the π of C itself, β = (1, 0, 1, 0, …) ≤ ∏ρ: {same}. For any other, as Theorem 2 uses it with C of π_k and P "
        f"of π*: {other:.4g}, even under β_t ≤ β_{{t-1}}ρ_t"
    )
    return Found(
        same > two.gamma + 1e-6 or other > mdp.gamma + 1e-6, numbers, "alternating(gamma=0.9); lemma_2(gamma=0.9)"
    )


@claim("0 ≤ C ≤ (I − γP_π)⁻¹ and ‖C‖ ≤ 1/(1 − γ) where β_t ≤ ∏ρ", "Lemma 2 and Theorem 2, proofs")
def _size_of_C() -> Found:
    traces, norm, above = (*RECURSIVE, ot.TruncatedIS(1.0), ot.ImportanceSampling()), 0.0, -np.inf
    for op in operators(*traces):
        least, γ = np.clip(op.C - op.C_error, 0, None), op.mdp.gamma
        norm = max(norm, least.sum(axis=1).max() * (1 - γ))
        above = max(above, (least - np.linalg.inv(np.eye(len(least)) - γ * op.mdp.P_pi(op.setting.pi).toarray())).max())
    numbers = f"largest (1 − γ)‖C‖ = {norm:.9f}; largest entry of C − (I − γP_π)⁻¹ = {above:.1e}"
    return Found(norm > 1 + 1e-6 or above > 1e-6, numbers, f"{len(battery())} random MDPs × {len(traces)} traces")


@claim("some ε_k in [0, 1] has T_{π_k}Q_k ≥ TQ_k − ε_k‖Q_k‖e", "Theorem 2")
def _epsilon_at_most_one() -> Found:
    mdp, _, _ = one_state_two_actions(gamma=0.9)
    needed = epsilon(mdp, np.array([[0.0, 1.0]]), np.array([[1.0, -1.0]]))
    return Found(
        needed > 1,
        f"Q = (1, −1), π takes the second action: ε = {needed:.3g} = 2γ is needed",
        "one_state_two_actions(gamma=0.9)",
    )


@claim("control: Q_k → Q* from any Q_0, with ‖Q_{k+1} − Q*‖ ≤ γ‖Q_k − Q*‖ + ε_k‖Q_k‖/(1 − γ)", "Theorem 2")
def _theorem_2() -> Found:
    mdp, _, mu, Q0 = switch_or_stay()
    run = control_iterates(mdp, ot.Retrace(), behaviors=mu, Q0=Q0)
    damped = control_iterates(mdp, ot.Retrace(), behaviors=mu, Q0=Q0, step_size=0.6)
    shown = np.array2string(28 * run.cycle[-1], precision=4, separator=", ").replace("\n", "")
    numbers = (
        f"Retrace(1), greedy π_k: cycle of period {run.period}, 28·Q = {shown}, ‖Q_k − Q*‖ = {run.errors[-1]:.4g}; bound broken "
        f"at {len(run.violations)} of {len(run.epsilons)} steps. With step size 0.6: {damped.errors[-1]:.0e}"
    )
    return Found(not run.converged and (run.period or 0) > 1, numbers, "switch_or_stay(gamma=0.9, stay=0.9)")


def cycling(*traces: ot.Trace) -> tuple[bool, str]:
    """Whether all of these, with greedy π_k, end in a cycle on `switch_or_stay`, and which do."""
    mdp, _, mu, Q0 = switch_or_stay()
    runs = {t.title: control_iterates(mdp, t, behaviors=mu, Q0=Q0) for t in traces}
    ended = [title for title, run in runs.items() if (run.period or 0) > 1 and not run.converged]
    return len(ended) == len(runs), ", ".join(ended)


@claim("Retrace and all others with per-decision traces need no pessimistic Q_0 (control)", "Section 4.1")
def _no_pessimism() -> Found:
    mdp, _, mu, _ = switch_or_stay()
    low = control_iterates(mdp, ot.Retrace(), behaviors=mu, Q0=PESSIMISTIC)
    refuted, names = cycling(ot.Retrace(), ot.TreeBackup(), ot.WatkinsQ())
    numbers = f"end in a cycle: {names}. From Q_0 = −‖R‖/(1−γ), Retrace: ‖Q_k − Q*‖ = {low.errors[-1]:.0e}"
    return Found(refuted and low.converged, numbers, "switch_or_stay(gamma=0.9, stay=0.9), step size 1")


@claim("Truncated IS and Non-Markov Retrace converge according to Theorem 2 too (control)", "Section 4.3")
def _specific_control() -> Found:
    refuted, names = cycling(ot.TruncatedIS(1.0), ot.NonMarkovRetrace(), ot.RBIS())
    return Found(refuted, f"end in a cycle: {names}", "switch_or_stay(gamma=0.9, stay=0.9), step size 1")


@claim("target policies need only become greedy in the limit, not increasingly greedy (control)", "Section 4.1")
def _greedy_in_the_limit_suffices() -> Found:
    mdp, _, mu, Q0 = switch_or_stay()
    first = np.array([[1.0, 0.0], [1.0, 0.0]])

    def detour(k: int, Q: np.ndarray) -> np.ndarray:
        return always_greedy(k, Q) if k > 2 else first if k < 2 else 1.0 - first

    fading = control_iterates(mdp, ot.Retrace(), targets=greedy_in_the_limit(lambda k: 0.5**k), behaviors=mu, Q0=Q0)
    low = control_iterates(mdp, ot.Retrace(), targets=detour, behaviors=mu, Q0=PESSIMISTIC)
    numbers = (
        f"ε-greedy π_k, ε = 2^-k: period {fading.period}. Even from the pessimistic Q_0 = −10: always action 0 twice, action 1 "
        f"once, then greedy for ever: period {low.period}, ‖Q_k − Q*‖ = {low.errors[-1]:.4g}"
    )
    refuted = all((run.period or 0) > 1 and not run.converged for run in (fading, low))
    return Found(refuted, numbers, "switch_or_stay(gamma=0.9, stay=0.9), step size 1")


@claim("Algorithm 1 makes the updates of M, with δ = r + γ Σ_a' Q(s', a') − Q(s, a) as printed", "Algorithm 1")
def _algorithm_1() -> Found:
    γ, α, n = 0.9, 0.1, 2
    printed = np.eye(n) + α * (γ * np.ones((n, n)) - np.eye(n))
    meant = np.eye(n) + α * (γ * np.full((n, n), 1 / n) - np.eye(n))
    radii = [float(np.abs(np.linalg.eigvals(A)).max()) for A in (printed, meant)]
    numbers = f"one-step, α = {α}, expected update: radius {radii[0]:.4g} as printed, {radii[1]:.4g} with π(a'|s')"
    return Found(radii[0] > 1, numbers, "one_state_two_actions(gamma=0.9): a misprint for the δ of Section 2.1")


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
        variable = Operator(mdp, ot.VariableLambda(rng.random((mdp.S, mdp.A))), pi=pi, mu=mu)
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
    op = Operator(mdp, ot.QLambda(inner), pi=np.ones((1, 1)), mu=np.ones((1, 1)))  # ρ = 1, so β_t = γ(F_1) ··· γ(F_t)
    found, meant = float(op.iterate(np.zeros((1, 1)), 200)[0, 0]), [1 / (1 - γ * inner), 1 / (1 - inner)]
    numbers = (
        f"reward 1 for ever, γ = {γ}, γ(F_k) = ½: M converges, but to {found:.4g}, the value of γ alone, as its δ does not "
        f"know γ(F_k); discounted by γ·γ(F_k) it is {meant[0]:.4g}, by γ(F_k) {meant[1]:.4g}. "
        "Read as a claim on M alone it holds: the row above"
    )
    return Found(min(abs(found - m) for m in meant) > 1e-3, numbers, "one state, one action")


@claim("β may vary with time, if β_t ≤ ∏ρ at all times", "Conclusion")
def _time_varying() -> Found:
    mdp, on, _ = alternating()
    Z = [Operator(mdp, trace, pi=on, mu=on).Z for trace in (SECOND_LAG, ot.OneStep())]
    radius = float(np.abs(np.linalg.eigvals(Z[0] @ Z[1])).max())
    worst, rng = -np.inf, np.random.default_rng(4)
    for i, (m, _, _) in enumerate(battery()):
        ops = [on_battery(i, t).Z for t in (ot.Retrace(), ot.NonMarkovRetrace(0.9), ot.TreeBackup())]
        product = np.eye(m.pairs)
        for k in rng.integers(3, size=10):
            product = ops[k] @ product
        worst = max(worst, float(np.abs(product).sum(axis=1).max()) / m.gamma**10)
    numbers = (
        f"β = (1, 0, 1, 0, …) and one-step in turn: radius {radius:.3f} per pair of steps. Under β_t ≤ β_{{t-1}}ρ_t at all "
        f"times: ‖Z_10 ··· Z_1‖ ≤ {worst:.2g} γ^10 on everything tried"
    )
    return Found(radius > 1, numbers, "alternating(gamma=0.9); random MDPs")
