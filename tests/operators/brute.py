"""The operator by enumeration of all histories: slow, obvious, and without a line of what it checks."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

import offtrace as ot
from offtrace.mdps import MDP
from offtrace.returns import by_definition


def tiny(
    seed: int, gamma: float, branching: int = 2, terminal: bool = False, trace: Any = None
) -> tuple[MDP, np.ndarray, np.ndarray]:
    """Two states (and perhaps a terminal one), two actions, policies with a zero or a tie now and then.

    π is greedy if the trace needs that.
    """
    rng = np.random.default_rng(seed)
    S = 3 if terminal else 2
    P = np.zeros((S, 2, S))
    for s in range(2):
        for a in range(2):
            to = rng.choice(S, size=min(branching, S), replace=False)
            P[s, a, to] = rng.dirichlet(np.ones(len(to)))
    if terminal:
        P[0, 0] = [0.3, 0.3, 0.4]
    R = rng.normal(size=(S, 2))
    R[2:] = 0.0
    end = np.arange(S) == 2
    mdp = MDP(P, R, gamma, terminal=end)
    pi, mu = rng.dirichlet([1.0, 1.0], size=S), rng.dirichlet([2.0, 2.0], size=S)
    if seed % 3 == 1:
        pi[0] = [1.0, 0.0]
    if seed % 3 == 2:
        pi[:, :], mu[:, :] = [0.75, 0.25], [0.5, 0.5]
    if trace is not None and trace.needs_greedy:
        pi = np.eye(2)[pi.argmax(axis=1)]
    return mdp, pi, mu


def enumerated(trace: Any, mdp: MDP, pi: np.ndarray, mu: np.ndarray, depth: int) -> Any:
    """Every history of up to `depth` pairs: (start, pairs, probability, β)."""
    A, P = mdp.A, mdp.dense_P
    rho = np.divide(pi, mu, out=np.zeros_like(pi), where=mu > 0)
    of_pair = [a.ravel().tolist() for a in (pi, mu, rho)]

    def grow(pairs: list[int], p: float) -> Any:
        past = [[a[z] for z in pairs] for a in of_pair]
        β = by_definition.beta(trace, past[0], past[1], past[2], pairs)
        yield pairs, p, β
        if len(pairs) == depth:
            return
        for s in range(mdp.S):
            if mdp.terminal[s]:
                continue
            for a in range(A):
                step = P[pairs[-1] // A, pairs[-1] % A, s] * mu[s, a]
                if step > 0:
                    yield from grow([*pairs, s * A + a], p * step)

    for z in range(mdp.pairs):
        yield from grow([z], 1.0)


def C_by_enumeration(trace: Any, mdp: MDP, pi: np.ndarray, mu: np.ndarray, depth: int) -> np.ndarray:
    """Σ_{t<depth} γ^t E[β_t 1{(s_t,a_t) = y}]."""
    C = np.zeros((mdp.pairs, mdp.pairs))
    for pairs, p, β in enumerated(trace, mdp, pi, mu, depth):
        C[pairs[0], pairs[-1]] += mdp.gamma ** (len(pairs) - 1) * p * β
    return C


def variance_by_enumeration(
    trace: Any, mdp: MDP, pi: np.ndarray, mu: np.ndarray, Q: np.ndarray, depth: int
) -> np.ndarray:
    """Var Σ_{t<depth} γ^tβ_tδ_t over all trajectories of `depth` steps, [S·A]."""
    A, P, γ = mdp.A, mdp.dense_P, mdp.gamma
    rho = np.divide(pi, mu, out=np.zeros_like(pi), where=mu > 0)
    value = np.where(mdp.terminal, 0.0, (pi * Q).sum(axis=1))
    first, second = np.zeros(mdp.pairs), np.zeros(mdp.pairs)
    reward = np.broadcast_to(mdp.R.reshape(-1, 1), mdp.P.shape)
    if mdp.transition_rewards is not None:
        reward = csr_array((mdp.transition_rewards, mdp.P.indices, mdp.P.indptr), shape=mdp.P.shape).toarray()

    of_pair = [a.ravel().tolist() for a in (pi, mu, rho)]

    def grow(pairs: list[int], p: float, total: float) -> None:
        z, t = pairs[-1], len(pairs) - 1
        past = [[a[z] for z in pairs] for a in of_pair]
        β = by_definition.beta(trace, past[0], past[1], past[2], pairs)
        for s in range(mdp.S):
            step = P[z // A, z % A, s]
            if step == 0:
                continue
            δ = reward[z, s] + γ * value[s] - Q.ravel()[z]
            now = total + γ**t * β * δ
            if mdp.terminal[s] or len(pairs) == depth:
                first[pairs[0]] += p * step * now
                second[pairs[0]] += p * step * now**2
            else:
                for a in range(A):
                    if mu[s, a] > 0:
                        grow([*pairs, s * A + a], p * step * mu[s, a], now)

    for z in range(mdp.pairs):
        if not mdp.terminal[z // A]:
            grow([z], 1.0, 0.0)
    return second - first**2


def corrected(
    trace: Any, mdp: MDP, pi: np.ndarray, mu: np.ndarray, Q: np.ndarray, steps: dict[str, np.ndarray]
) -> np.ndarray:
    """Δ of the first step of each of `every_trajectory`, by `offtrace.corrections`."""
    target = trace.target_share * pi + (1 - trace.target_share) * mu
    value = np.where(mdp.terminal, 0.0, (target * Q).sum(axis=1))
    state, action, after = steps["state"], steps["action"], steps["after"]
    with np.errstate(divide="ignore"):
        log_pi, log_mu = np.log(pi[state, action]), np.log(mu[state, action])
    return ot.corrections(
        trace, reward=mdp.R[state, action], q=Q[state, action], next_value=value[after], terminated=mdp.terminal[after],
        truncated=np.zeros(state.shape, bool), log_pi=log_pi, log_mu=log_mu, gamma=mdp.gamma, valid=steps["valid"],
        pair=state * mdp.A + action,
    )[:, 0]  # fmt: skip


def every_trajectory(mdp: MDP, mu: np.ndarray, start: int, depth: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The probability of each trajectory of `depth` steps from a pair; its states, actions, next states and what is valid."""
    P, A, found = mdp.dense_P, mdp.A, []

    def grow(p: float, s: int, a: int, before: list[tuple[int, int, int, bool]]) -> None:
        for t in np.flatnonzero(P[s, a]):
            path, reached = [*before, (s, a, int(t), True)], p * P[s, a, t]
            if mdp.terminal[t] or len(path) == depth:
                found.append((reached, [*path, *[(0, 0, 0, False)] * (depth - len(path))]))
            else:
                for b in np.flatnonzero(mu[t]):
                    grow(reached * mu[t, b], int(t), int(b), path)

    grow(1.0, start // A, start % A, [])
    columns = np.moveaxis(np.array([path for _, path in found]), 2, 0)
    names = ("state", "action", "after")
    return np.array([p for p, _ in found]), {**dict(zip(names, columns, strict=False)), "valid": columns[3] == 1}
