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
from offtrace.operators.falsify import falsify
from offtrace.operators.operator import Operator
from offtrace.returns import corrections

SEARCH = 1.5
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
             ot.NonMarkovRetrace(), ot.NonMarkovRetrace(0.9), ot.RBIS(), ot.HistoryBounded(1.0))  # fmt: skip
"""Traces with β_t ≤ β_{t-1}ρ_t."""


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


def by_enumeration(mdp: MDP, trace: ot.Trace, pi: np.ndarray, mu: np.ndarray, Q: np.ndarray, lags: int) -> np.ndarray:
    """(M Q)(s,a) = Q(s,a) + E_μ[Σ γ^t β_t δ_t], from the corrections of all histories of `lags` steps, [S, A]."""
    out = Q.copy()
    steps = list(product(range(mdp.S), range(mdp.A)))
    for s, a in steps:
        paths = np.array([[(s, a), *path] for path in product(steps, repeat=lags - 1)])
        state, action = paths[..., 0], paths[..., 1]
        chance = np.ones(len(paths))
        for t in range(1, lags):
            chance *= mdp.dense_P[state[:, t - 1], action[:, t - 1], state[:, t]] * mu[state[:, t], action[:, t]]
        no = np.zeros(state.shape, bool)
        found = corrections(
            trace,
            reward=mdp.R[state, action] + mdp.gamma * (mdp.dense_P @ (pi * Q).sum(axis=1))[state, action],
            q=Q[state, action],
            next_value=np.zeros(state.shape),  # its mean over s' stands in the reward
            terminated=no,
            truncated=no,
            log_pi=np.log(pi)[state, action],
            log_mu=np.log(mu)[state, action],
            gamma=mdp.gamma,
        )
        out[s, a] += chance @ np.asarray(found)[:, 0]
    return out


@claim("Q^π is a fixed point of M, and MQ − Q^π = Z(Q − Q^π), for any β", "Lemma 1")
def _lemma_1() -> Found:
    rng, worst, tried = np.random.default_rng(1), 0.0, 0
    bounds = (0.0, 1.5, 0.5)
    for trace in (ot.Retrace(horizon=4), ot.NonMarkovRetrace(0.9, horizon=4), ot.TruncatedIS(bounds, horizon=4)):
        for seed in range(3):
            mdp = garnet(2, 2, 2, seed=seed, gamma=0.9)
            pi, mu = (0.98 * random_policy(mdp, rng) + 0.01 for _ in range(2))
            Z, Q_pi = Operator(mdp, trace, pi=pi, mu=mu).Z, mdp.q(pi)
            for Q in (Q_pi, rng.normal(size=(2, 2))):
                MQ = by_enumeration(mdp, trace, pi, mu, Q, 4)
                worst = max(worst, np.abs((MQ - Q_pi).ravel() - Z @ (Q - Q_pi).ravel()).max())
                tried += 1
    numbers = f"{tried} cases, all histories enumerated: largest |MQ − Q^π − Z(Q − Q^π)| = {worst:.1e}"
    return Found(worst > 1e-6, numbers, "garnet(2, 2, 2, seed=0…2)")


@claim("M is Q + Σ γ^t P_μ^t B_t (T_πQ − Q) with fixed diagonal matrices B_t", "equation 4")
def _diagonal_matrices() -> Found:
    mdp, pi, mu = battery()[5]
    K = [np.eye(mdp.pairs)]
    for n in (2, 3):
        short = Operator(mdp, ot.NonMarkovRetrace(horizon=n), pi=pi, mu=mu)
        K.append((short.C - Operator(mdp, ot.NonMarkovRetrace(horizon=n - 1), pi=pi, mu=mu).C) / mdp.gamma ** (n - 1))
    two = np.linalg.matrix_power(mdp.P_pi(mu).toarray(), 2)
    seen = np.where(two > 1e-9, K[2] / np.where(two > 1e-9, two, 1.0), np.nan)
    spread = float(np.nanmax(np.nanmax(seen, axis=0) - np.nanmin(seen, axis=0)))
    numbers = (
        f"Non-Markov Retrace: one entry of B_2 would have to take values that differ by {spread:.3f}, by the start"
    )
    return Found(spread > 1e-6, numbers, "garnet(3, 2, 3, seed=5); K_t of the history stands in for P_μ^t B_t")


@claim("β_t ≤ ∏ρ makes M a contraction with modulus γ, so M^k Q → Q^π", "Theorem 1")
def _theorem_1() -> Found:
    mdp, pi, mu = alternating()
    down = np.linalg.eigvals(Operator(mdp, SECOND_LAG, pi=pi, mu=mu).Z).real.min()
    up = np.linalg.eigvals(Operator(mdp, ALL_BUT_SECOND, pi=pi, mu=mu).Z).real.max()
    radius = Operator(mdp, SECOND_LAG, pi=pi, mu=mu).spectral_radius
    one, π, μ = one_state_two_actions()
    kept = Operator(one, FIRST_ACTION, pi=π, mu=μ)
    norm, inside = kept.contraction.midpoint, kept.spectral_radius.midpoint
    numbers = (
        f"β = (1, 0, 1, 0, …), on-policy: eigenvalue {down:.3f}; β = (1, 1, 0, 1, 0, …): {up:+.3f}, which no step size "
        f"cures. One state, β_t = 1 after the first action only: ‖Z‖ = {norm:.4g}, yet spectral radius {inside:.4g}"
    )
    return Found(radius.lower > 1, numbers, "alternating(gamma=0.9); one_state_two_actions()")


@claim("β_t ≤ β_{t-1}ρ_t (the proof's own step) makes M a contraction with modulus γ", "Theorem 1, its proof")
def _recursive_condition() -> Found:
    excess, least, tried = -np.inf, np.inf, 0
    for op in operators(*RECURSIVE):
        excess = max(excess, op.contraction.lower - op.mdp.gamma)
        least = min(least, float((op.Z + op.Z_error).min()))
        tried += 1
    numbers = f"{tried} operators: largest ‖Z‖ − γ = {excess:.1e}, smallest entry of Z = {least:.1e}"
    return Found(excess > 1e-9 or least < -1e-9, numbers, f"{len(battery())} random MDPs × {len(RECURSIVE)} traces")


@claim("β = 0 has the rate γ (TD(0)); β = ∏ρ has the rate 0 (importance sampling)", "Section 3.1, remarks")
def _extremes() -> Found:
    one = max(abs(op.contraction.midpoint - op.mdp.gamma) for op in operators(ot.OneStep()))
    all_of_it = max(op.contraction.upper for op in operators(ot.ImportanceSampling()))
    numbers = f"one-step: largest |‖Z‖ − γ| = {one:.1e}; importance sampling: largest ‖Z‖ = {all_of_it:.1e}"
    return Found(one > 1e-6 or all_of_it > 1e-6, numbers, f"{len(battery())} random MDPs, μ > 0")


@claim("Q(λ) is not convergent when π and μ differ too much, and is when they are near", "Section 2.2")
def _q_lambda() -> Found:
    excess = -np.inf
    for lam in (0.3, 0.6, 1.0):
        for op in operators(ot.QLambda(lam)):
            γ, ε = op.mdp.gamma, np.abs(op.setting.pi - op.setting.mu).sum(axis=1).max()
            excess = max(excess, op.contraction.lower - γ * (1 - lam + lam * ε) / (1 - lam * γ))
    mdp, pi, mu = q_lambda_tight()
    far = Operator(mdp, ot.QLambda(1.0), pi=pi, mu=mu).spectral_radius
    numbers = f"largest ‖Z‖ − γ(1−λ+λε)/(1−λγ) = {excess:.1e}; far apart, λ = 1: radius {far}"
    return Found(excess > 1e-9 or not far.lower > 1, numbers, "random MDPs; q_lambda_tight(gamma=0.9)")


def searched(trace: ot.Trace) -> tuple[bool, str]:
    """A real search for divergence, in few words."""
    found = falsify(trace, budget=SEARCH, seed=7)
    said = f"diverges, radius {found.radius}" if found.found else f"largest radius {found.radius.upper:.5f}"
    return found.found, f"{trace.title}: {said} in {found.tried:,} MDPs"


@claim("Tree Backup and Retrace converge for arbitrary π and μ (evaluation)", "Section 2.2")
def _per_decision() -> Found:
    results = [searched(trace) for trace in (ot.TreeBackup(), ot.Retrace())]
    return Found(any(r[0] for r in results), "; ".join(r[1] for r in results), "falsify: 3 states, 2 actions, γ = 0.98")


@claim("Retrace does not cut on-policy: at λ = 1 its rate is that of importance sampling, 0", "Section 2.2")
def _retrace_on_policy() -> Found:
    worst = max(Operator(m, ot.Retrace(), pi=mu, mu=mu).contraction.upper for m, _, mu in battery())
    return Found(worst > 1e-6, f"largest ‖Z‖ = {worst:.1e}", f"{len(battery())} random MDPs, π = μ")


@claim("Non-Markov Retrace converges (evaluation)", "Section 4.3")
def _non_markov_retrace() -> Found:
    results = [searched(trace) for trace in (ot.NonMarkovRetrace(), ot.NonMarkovRetrace(0.9))]
    return Found(any(r[0] for r in results), "; ".join(r[1] for r in results), "falsify: 3 states, 2 actions, γ = 0.98")
