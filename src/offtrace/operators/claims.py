"""What the paper says of policy evaluation and of specific algorithms, each as a computation. `audit` runs them.

A claim is a function that returns (refuted, numbers, decided_by). It may look for a counterexample or try a battery of
random MDPs, and it never returns a number that it has not just computed. C = Σ γ^t K_t and Z = I − C(I − γP_π), as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

import offtrace.traces as ot
from offtrace.mdps import MDP, alternating, garnet, one_state_two_actions, q_lambda_tight, random_policy
from offtrace.operators.conditions import product_condition
from offtrace.operators.falsify import falsify
from offtrace.operators.operator import Operator
from offtrace.returns.by_definition import beta

SEARCH = 1.0
"""Seconds that each search of the audit may take."""


class Found(NamedTuple):
    """What a claim comes back with."""

    refuted: bool
    numbers: str
    decided_by: str


class Claim(NamedTuple):
    """A statement, where it stands, and the function that decides it."""

    statement: str
    where: str
    decide: Callable[[], Found]


CLAIMS: list[Claim] = []


def claim(statement: str, where: str) -> Callable[[Callable[[], Found]], Callable[[], Found]]:
    """Put a function into the audit, in the order of definition."""

    def put(decide: Callable[[], Found]) -> Callable[[], Found]:
        CLAIMS.append(Claim(statement, where, decide))
        return decide

    return put


RECURSIVE = (ot.OneStep(), ot.ImportanceSampling(0.9), ot.TreeBackup(), ot.Retrace(), ot.QSigma(), ot.ABQ(),
             ot.NonMarkovRetrace(), ot.NonMarkovRetrace(0.9), ot.RBIS(0.9), ot.HistoryBounded(2.0))  # fmt: skip
"""Traces with β_t ≤ β_{t-1}ρ_t. (At λ = 1, RBIS and a history bound of 1 are Non-Markov Retrace.)"""


@cache
def battery(count: int = 12) -> list[tuple[MDP, np.ndarray, np.ndarray]]:
    """Random MDPs with policies, from nearly deterministic to nearly uniform ones; always the same."""
    rng = np.random.default_rng(2021)
    made = []
    for i in range(count):
        mdp = garnet(3, 2, 1 + i % 3, seed=i, gamma=(0.5, 0.9, 0.97)[i % 3])
        spread = (0.3, 1.0, 3.0)[i // 3 % 3]
        made.append((mdp, random_policy(mdp, rng, spread), 0.98 * random_policy(mdp, rng, spread) + 0.01))
    return made


@cache
def on_battery(i: int, trace: ot.Trace) -> Operator:
    """A trace on the i-th MDP of the battery. Kept while an audit runs, since several claims ask for the same."""
    mdp, pi, mu = battery()[i]
    return Operator(mdp, trace, pi=pi, mu=mu, tolerance=1e-4)


def operators(*traces: ot.Trace) -> Iterator[Operator]:
    """Each trace on each MDP of the battery."""
    return (on_battery(i, trace) for i, trace in product(range(len(battery())), traces))


def second_lag(xp: Any, carry: Any, now: ot.Step) -> tuple[Any, Any]:
    """β = (1, 0, 1, 0, …)."""
    return carry, xp.where(now.lag == 2.0, 1.0, 0.0)


def all_but_second(xp: Any, carry: Any, now: ot.Step) -> tuple[Any, Any]:
    """β = (1, 1, 0, 1, 0, …)."""
    return carry, xp.where(now.lag == 2.0, 0.0, 1.0)


def first_action(xp: Any, carry: Any, now: ot.Step) -> tuple[Any, Any]:
    """β_t = 1 after the first action of the only state, else 0 (Daley et al. 2023)."""
    return carry, xp.where(now.pair == 0, 1.0, 0.0)


SECOND_LAG = ot.StepTrace(second_lag, reads=(), title="β = (1, 0, 1, 0, …)", horizon=3)
ALL_BUT_SECOND = ot.StepTrace(all_but_second, reads=(), title="β = (1, 1, 0, 1, 0, …)", horizon=4)
FIRST_ACTION = ot.StepTrace(first_action, reads=("pair",), title="β_t = 1 after action 0")


def enumerated(mdp: MDP, trace: ot.Trace, pi: np.ndarray, mu: np.ndarray, lags: int) -> np.ndarray:
    """K_t(x, y) = E_μ[β_t 1{(s_t,a_t) = y} | x] for t < lags, [lags, S·A, S·A]: all histories, β by its definition."""
    π, μ, ρ = (policy.ravel().tolist() for policy in (pi, mu, pi / mu))
    step = mdp.P_pi(mu).toarray()
    K = np.zeros((lags, mdp.pairs, mdp.pairs))
    for x in range(mdp.pairs):
        histories = [([x], 1.0)]
        for t in range(lags):
            for f, chance in histories:
                K[t, x, f[-1]] += chance * beta(trace, [π[z] for z in f], [μ[z] for z in f], [ρ[z] for z in f], f)
            histories = [([*f, y], c * step[f[-1], y]) for f, c in histories for y in np.flatnonzero(step[f[-1]])]
    return K


def summed(mdp: MDP, K: np.ndarray) -> np.ndarray:
    """C = Σ γ^t K_t."""
    return np.tensordot(mdp.gamma ** np.arange(len(K)), K, 1)


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
        other = max(other, np.abs(A - Operator(mdp, trace, pi=pi, mu=mu).Z).max())
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
    op = Operator(mdp, trace, pi=pi, mu=mu)
    apart = np.abs(op.apply(Q) - Q - (summed(mdp, K) @ (op.bellman(Q) - Q).ravel()).reshape(Q.shape)).max()
    numbers = (
        f"read as printed: one entry of Non-Markov Retrace's B_2 would have to differ by {spread:.3f} with the start. "
        f"Read with K_t, the mean over histories, for P_μ^tB_t, it is equation 2 and holds: difference {apart:.0e}"
    )
    return Found(spread > 1e-6, numbers, "garnet(3, 2, 3, seed=5)")


@claim("β_t ≤ ∏ρ makes M a contraction with modulus γ, so M^k Q → Q^π", "Theorem 1")
def _theorem_1() -> Found:
    mdp, pi, mu = alternating()
    down = np.linalg.eigvals(Operator(mdp, SECOND_LAG, pi=pi, mu=mu).Z).real.min()
    up = np.linalg.eigvals(Operator(mdp, ALL_BUT_SECOND, pi=pi, mu=mu).Z).real.max()
    skips = Operator(mdp, SECOND_LAG, pi=pi, mu=mu)
    one, π, μ = one_state_two_actions()
    kept = Operator(one, FIRST_ACTION, pi=π, mu=μ)
    meant = all(product_condition(op.setting).holds for op in (skips, kept))
    norm, inside = kept.contraction.midpoint, kept.spectral_radius.midpoint
    numbers = (
        f"β = (1, 0, 1, 0, …), on-policy: eigenvalue {down:.3f}; β = (1, 1, 0, 1, 0, …): {up:+.3f}, which no step size "
        f"cures. One state, β_t = 1 after the first action only: ‖Z‖ = {norm:.4g}, yet spectral radius {inside:.4g}"
    )
    return Found(meant and skips.spectral_radius > 1, numbers, "alternating(gamma=0.9); one_state_two_actions()")


@claim("β_t ≤ β_{t-1}ρ_t (the proof's own step) makes M a contraction with modulus γ", "Theorem 1, its proof")
def _recursive_condition() -> Found:
    excess, least, tried = -np.inf, np.inf, 0
    for op in operators(*RECURSIVE):
        assert op.setting.recursive_condition
        least = min(least, float((op.Z + op.Z_error).min()))
        excess = max(excess, op.contraction.lower - op.mdp.gamma)
        tried += 1
    numbers = f"{tried} operators: largest ‖Z‖ − γ = {excess:.1e}, smallest entry of Z = {least:.1e}"
    return Found(excess > 1e-9 or least < -1e-9, numbers, f"{len(battery())} random MDPs × {len(RECURSIVE)} traces")


@claim("β = 0 has the rate γ (TD(0)); β = ∏ρ has the rate 0 (importance sampling)", "Section 3.1, remarks")
def _extremes() -> Found:
    one = max(abs(op.contraction.midpoint - op.mdp.gamma) for op in operators(ot.OneStep()))
    all_of_it = max(op.contraction.upper for op in operators(ot.ImportanceSampling()))
    mdp, pi, mu = one_state_two_actions(mu=(1.0, 0.0), gamma=0.9)
    missed = Operator(mdp, ot.ImportanceSampling(), pi=pi, mu=mu).contraction
    numbers = (
        f"one-step: largest |‖Z‖ − γ| = {one:.1e}; importance sampling: largest ‖Z‖ = {all_of_it:.1e}. It takes μ > 0 where "
        f"π > 0: with π = (½, ½), μ = (1, 0), ‖Z‖ = {missed}"
    )
    return Found(
        one > 1e-6 or all_of_it > 1e-6, numbers, f"{len(battery())} random MDPs; one_state_two_actions(gamma=0.9)"
    )


@claim("Q(λ) converges when π and μ are near, and not when they differ too much", "Section 2.2")
def _q_lambda() -> Found:
    excess, near = -np.inf, 0
    for lam in (0.3, 0.6, 1.0):
        for op in operators(ot.QLambda(lam)):
            γ, ε = op.mdp.gamma, np.abs(op.setting.pi - op.setting.mu).sum(axis=1).max()
            bound = γ * (1 - lam + lam * ε) / (1 - lam * γ)
            excess, near = max(excess, op.contraction.lower - bound), near + (bound < 1)
    mdp, pi, mu = q_lambda_tight()
    far = Operator(mdp, ot.QLambda(1.0), pi=pi, mu=mu).spectral_radius
    numbers = (
        f"largest ‖Z‖ − γ(1−λ+λε)/(1−λγ), ε = max ‖π − μ‖₁: {excess:.1e}, where {near} of "
        f"{3 * len(battery())} such bounds are below 1. Far apart, λ = 1: spectral radius {far}"
    )
    return Found(excess > 1e-9 or not far > 1, numbers, "random MDPs; q_lambda_tight(gamma=0.9)")


def searched(*traces: ot.Trace) -> Found:
    """Real searches for divergence, in few words."""
    refuted, said = False, []
    for trace in traces:
        found = falsify(trace, budget=SEARCH, seed=7)
        seen = f"diverges, radius {found.radius}" if found.found else f"largest radius {found.radius.upper:.5f}"
        said.append(f"{trace.title}, λ = {getattr(trace, 'lam', 1.0):g}: {seen} in {found.tried:,} MDPs")
        refuted |= found.found
    return Found(refuted, "; ".join(said), "falsify: 3 states, 2 actions, γ = 0.98")


@claim("Tree Backup and Retrace converge for arbitrary π and μ (evaluation)", "Section 2.2")
def _per_decision() -> Found:
    return searched(ot.TreeBackup(), ot.Retrace())


@claim("Retrace does not cut on-policy: at λ = 1 its rate is that of importance sampling, 0", "Section 2.2")
def _retrace_on_policy() -> Found:
    worst = max(Operator(m, ot.Retrace(), pi=mu, mu=mu).contraction.upper for m, _, mu in battery())
    return Found(worst > 1e-6, f"largest ‖Z‖ = {worst:.1e}", f"{len(battery())} random MDPs, π = μ")


@claim("Non-Markov Retrace converges (evaluation)", "Section 4.3")
def _non_markov_retrace() -> Found:
    return searched(ot.NonMarkovRetrace(), ot.NonMarkovRetrace(0.9))
