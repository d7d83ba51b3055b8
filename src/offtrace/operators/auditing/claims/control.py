"""What the paper says of control, each as a computation."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import numpy as np

import offtrace.traces as ot
from offtrace.mdps import alternating, lemma_2, one_state_two_actions, switch_or_stay
from offtrace.operators.auditing.claims.common import (
    SECOND_LAG,
    Found,
    battery,
    claim,
    operators,
    recursive,
    sizes,
    sizes_of,
)
from offtrace.operators.control_iterates import always_greedy, control_iterates, epsilon, greedy_in_the_limit
from offtrace.operators.operator import Operator
from offtrace.operators.proofs import Proof, cycle, proof

PESSIMISTIC = np.full((2, 2), -10.0)
"""−‖R‖/(1 − γ) of `switch_or_stay`."""


@claim("‖I − C(I − γP_π)‖ ≤ γ for any policy π", "Lemma 2")
def _lemma_two() -> Found:
    mdp, pi, mu, best = lemma_2()
    C = Operator(ot.ImportanceSampling(), mdp, target=pi, behavior=mu).C
    norm, radius = sizes_of(np.eye(2) - C @ (np.eye(2) - mdp.gamma * mdp.P_pi(best).toarray()))
    two, π, μ = alternating()
    same = Operator(SECOND_LAG, two, target=π, behavior=μ)
    numbers = (
        f"for the π of C itself, β = (1, 0, ρ₁ρ₂, 0, …): {sizes(same)}. For any other, as Theorem 2 uses it with C of π_k and "
        f"P of π*: norm {norm:.4g}, spectral radius {round(radius, 9):.4g}, even under β_t ≤ β_{{t-1}}ρ_t"
    )
    refuted = same.contraction > two.gamma + 1e-6 or norm > mdp.gamma + 1e-6
    shown = (partial(proof, SECOND_LAG, two, π, μ),)
    return Found(refuted, numbers, "alternating(gamma=0.9); lemma_2(gamma=0.9)", shown)


@claim("0 ≤ C ≤ (I − γP_π)⁻¹ and ‖C‖ ≤ 1/(1 − γ) where β_t ≤ ∏ρ", "Lemma 2 and Theorem 2, proofs")
def _size_of_C() -> Found:
    traces, norm, above = (*recursive(), ot.TruncatedIS(1.0), ot.ImportanceSampling()), 0.0, -np.inf
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
    run = control_iterates(ot.Retrace(), mdp, behavior=mu, q0=Q0)
    damped = control_iterates(ot.Retrace(), mdp, behavior=mu, q0=Q0, alpha=0.6)
    shown = np.array2string(28 * run.cycle[-1], precision=4, separator=", ").replace("\n", "")
    numbers = (
        f"Retrace(1), greedy π_k: cycle of period {run.period}, 28·Q = {shown}, ‖Q_k − Q*‖ = {run.errors[-1]:.4g}; bound broken "
        f"at {len(run.violations)} of {len(run.epsilons)} steps. With step size 0.6: {damped.errors[-1]:.0e}"
    )
    refuted = not run.converged and (run.period or 0) > 1
    return Found(refuted, numbers, "switch_or_stay(gamma=0.9, stay=0.9)", (partial(proof_of_cycle, ot.Retrace()),))


def proof_of_cycle(trace: ot.Trace) -> Proof:
    """A proof of the cycle in which control ends on `switch_or_stay`."""
    mdp, _, mu, Q0 = switch_or_stay()
    values = control_iterates(trace, mdp, behavior=mu, q0=Q0).cycle
    near = np.vectorize(lambda x: float(Fraction(x).limit_denominator(10_000)))  # the numbers to which it converges
    return cycle(trace, mdp, mu, [near(Q) for Q in values])


def cycling(*traces: ot.Trace) -> tuple[bool, str]:
    """Whether all of these, with greedy π_k, end in a cycle on `switch_or_stay`, and which do."""
    mdp, _, mu, Q0 = switch_or_stay()
    runs = {t.title: control_iterates(t, mdp, behavior=mu, q0=Q0) for t in traces}
    ended = [title for title, run in runs.items() if (run.period or 0) > 1 and not run.converged]
    return len(ended) == len(runs), ", ".join(ended)


@claim("Retrace and all others with per-decision traces need no pessimistic Q_0 (control)", "Section 4.1")
def _no_pessimism() -> Found:
    mdp, _, mu, _ = switch_or_stay()
    low = control_iterates(ot.Retrace(), mdp, behavior=mu, q0=PESSIMISTIC)
    refuted, names = cycling(ot.Retrace(), ot.TreeBackup(), ot.WatkinsQ())
    numbers = f"end in a cycle: {names}. From Q_0 = −‖R‖/(1−γ), Retrace: ‖Q_k − Q*‖ = {low.errors[-1]:.0e}"
    shown = tuple(partial(proof_of_cycle, trace) for trace in (ot.Retrace(), ot.TreeBackup()))
    return Found(refuted and low.converged, numbers, "switch_or_stay(gamma=0.9, stay=0.9), step size 1", shown)


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

    fading = control_iterates(ot.Retrace(), mdp, target=greedy_in_the_limit(lambda k: 0.5**k), behavior=mu, q0=Q0)
    low = control_iterates(ot.Retrace(), mdp, target=detour, behavior=mu, q0=PESSIMISTIC)
    numbers = (
        f"ε-greedy π_k, ε = 2^-k: period {fading.period}. Even from the pessimistic Q_0 = −10: always action 0 twice, action 1 "
        f"once, then greedy for ever: period {low.period}, ‖Q_k − Q*‖ = {low.errors[-1]:.4g}"
    )
    refuted = all((run.period or 0) > 1 and not run.converged for run in (fading, low))
    return Found(refuted, numbers, "switch_or_stay(gamma=0.9, stay=0.9), step size 1")
