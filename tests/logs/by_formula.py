"""The oracles: every estimator as it is printed, in plain Python, one episode and one step after the other. Slow and obvious.

They share no line with the estimators. An episode is a dict of lists, made by `episodes_of`; `q` and `v` are Q̂(s_t, a_t) and
V̂(s_{t+1}) of its steps, `v0` is V̂(s_0).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from offtrace.logs import Logs
from offtrace.returns import by_definition

Episode = dict[str, Any]


def episodes_of(logs: Logs, log_pi: Any, q: Any = None, v: Any = None, v0: Any = None) -> list[Episode]:
    found = []
    for e in range(len(logs.starts) - 1):
        steps = range(logs.starts[e], logs.starts[e + 1])
        assert logs.log_mu is not None
        found.append(
            {
                "rho": [math.exp(log_pi[i] - logs.log_mu[i]) for i in steps],
                "reward": [float(logs.reward[i]) for i in steps],
                "terminated": bool(logs.terminated[steps[-1]]),
                "q": None if q is None else [float(q[i]) for i in steps],
                "v": None if v is None else [float(v[i]) for i in steps],
                "v0": None if v0 is None else float(v0[e]),
            }
        )
    return found


def weight(episode: Episode, t: int) -> float:
    """ρ_0 ··· ρ_t; after the end the episode is at rest, with ρ = 1."""
    return math.prod(episode["rho"][: t + 1])


def reward(episode: Episode, t: int, γ: float) -> float:
    """r_t; the last one of a truncated episode also has γ V̂(s_T); after the end 0."""
    T = len(episode["reward"])
    if t >= T:
        return 0.0
    cut = t == T - 1 and not episode["terminated"]
    return episode["reward"][t] + (γ * episode["v"][t] if cut else 0.0)


def discounted(episode: Episode, γ: float) -> float:
    return sum(γ**t * reward(episode, t, γ) for t in range(len(episode["reward"])))


def ordinary(episodes: list[Episode], γ: float) -> float:
    """(1/n) Σ_i ρ_{0:T-1} Σ_t γ^t r_t."""
    return sum(weight(e, 10**9) * discounted(e, γ) for e in episodes) / len(episodes)


def weighted(episodes: list[Episode], γ: float) -> float:
    """Σ_i ρ_{0:T-1} Σ_t γ^t r_t / Σ_i ρ_{0:T-1}."""
    return sum(weight(e, 10**9) * discounted(e, γ) for e in episodes) / sum(weight(e, 10**9) for e in episodes)


def per_decision(episodes: list[Episode], γ: float) -> float:
    """(1/n) Σ_i Σ_t γ^t ρ_{0:t} r_t."""
    total = 0.0
    for e in episodes:
        for t in range(len(e["reward"])):
            total += γ**t * weight(e, t) * reward(e, t, γ)
    return total / len(episodes)


def weighted_per_decision(episodes: list[Episode], γ: float) -> float:
    """Σ_t γ^t (Σ_i ρ_{0:t} r_t) / (Σ_i ρ_{0:t})."""
    total = 0.0
    for t in range(max(len(e["reward"]) for e in episodes)):
        above, below = sum(weight(e, t) * reward(e, t, γ) for e in episodes), sum(weight(e, t) for e in episodes)
        total += γ**t * above / below
    return total


def doubly_robust(episodes: list[Episode], γ: float) -> float:
    """Jiang & Li (2016), equation 10: V_DR = V̂(s) + ρ (r + γ V_DR' − Q̂(s, a)), from the last step to the first."""
    total = 0.0
    for e in episodes:
        T = len(e["reward"])
        found = 0.0 if e["terminated"] else e["v"][T - 1]
        for t in reversed(range(T)):
            value = e["v0"] if t == 0 else e["v"][t - 1]
            found = value + e["rho"][t] * (e["reward"][t] + γ * found - e["q"][t])
        total += found
    return total / len(episodes)


def weighted_doubly_robust(episodes: list[Episode], γ: float) -> float:
    """Thomas & Brunskill (2016), equation 8: Σ_i Σ_t γ^t w_t r_t − Σ_i Σ_t γ^t (w_t Q̂(s_t, a_t) − w_{t−1} V̂(s_t))."""
    n, total = len(episodes), 0.0

    def share(e: Episode, t: int) -> float:
        return 1 / n if t < 0 else weight(e, t) / sum(weight(other, t) for other in episodes)

    for e in episodes:
        T = len(e["reward"])
        for t in range(T):
            value = e["v0"] if t == 0 else e["v"][t - 1]
            total += γ**t * (share(e, t) * (e["reward"][t] - e["q"][t]) + share(e, t - 1) * value)
        if not e["terminated"]:
            total += γ**T * share(e, T - 1) * e["v"][T - 1]
    return total


def partial_return(episodes: list[Episode], γ: float, j: int) -> float:
    """Thomas & Brunskill (2016), equation 9: j + 1 steps weighted, V̂ from there, and the control variate of both.

    Σ_i Σ_{t≤j} γ^t w_t r_t + Σ_i γ^{j+1} w_j V̂(s_{j+1}) − Σ_i Σ_{t≤j} γ^t (w_t Q̂(s_t, a_t) − w_{t−1} V̂(s_t)); after its end an
    episode is at rest, where all of these are 0.
    """
    n, total = len(episodes), 0.0

    def share(e: Episode, t: int) -> float:
        return 1 / n if t < 0 else weight(e, t) / sum(weight(other, t) for other in episodes)

    def value(e: Episode, t: int) -> float:
        T = len(e["reward"])
        if t > T or (t == T and e["terminated"]):
            return 0.0
        return e["v0"] if t == 0 else e["v"][t - 1]

    for e in episodes:
        T = len(e["reward"])
        for t in range(min(j + 1, T)):
            total += γ**t * (share(e, t) * (e["reward"][t] - e["q"][t]) + share(e, t - 1) * value(e, t))
        last = min(j, T - 1)  # a truncated episode has V̂ where it was cut, and nothing after
        total += γ ** (last + 1) * share(e, last) * value(e, last + 1)
    return total


def least_error(M: np.ndarray) -> np.ndarray:
    """x ≥ 0 with Σ x = 1 at the least xᵀMx: of all sets of numbers that are not 0, the best whose solution is not negative."""
    m = len(M)
    best, least = np.eye(m)[0], M[0, 0]
    for chosen in range(1, 2**m):
        at = [i for i in range(m) if chosen >> i & 1]
        x = np.zeros(m)
        x[at] = np.linalg.lstsq(M[np.ix_(at, at)], np.ones(len(at)), rcond=None)[0]
        if x.sum() > 0 and (x >= 0).all():
            x /= x.sum()
            if x @ M @ x < least:
                best, least = x, x @ M @ x
    return best


def among_logged(logs: Logs, pi: np.ndarray) -> np.ndarray:
    """π(a|s) over the actions that were logged in s, all alike where none of π's was; 0 where there is none."""
    found = np.zeros(pi.shape)
    for s in range(len(pi)):
        logged = [a for a in range(pi.shape[1]) if any((logs.state == s) & (logs.action == a))]
        total = sum(pi[s, a] for a in logged)
        for a in logged:
            found[s, a] = pi[s, a] / total if total else 1 / len(logged)
    return found


def systems(trace: Any, logs: Logs, pi: np.ndarray, γ: float) -> tuple[np.ndarray, np.ndarray]:
    """A [E, n, n] and b [E, n] of each episode; the fixed point over pairs (s, a) is that of their sums, Aq = b."""
    E, n, A, valued = logs.episodes, logs.states * logs.actions, logs.actions, among_logged(logs, pi)
    matrices, right = np.zeros((E, n, n)), np.zeros((E, n))
    for e in range(E):
        first, last = int(logs.starts[e]), int(logs.starts[e + 1])
        here = slice(first, last)
        with np.errstate(divide="ignore"):
            log_pi = np.log(pi[logs.state[here], logs.action[here]])
        pair = logs.state[here] * A + logs.action[here]
        log_mu = None if logs.log_mu is None else logs.log_mu[here]
        β = by_definition.coefficients(
            trace,
            terminated=logs.terminated[here],
            truncated=logs.truncated[here],
            log_pi=log_pi,
            log_mu=log_mu,
            pair=pair,
        )
        for k in range(last - first):
            for t in range(k, last - first):
                w = γ ** (t - k) * β[k, t]
                matrices[e, pair[k], pair[t]] += w
                right[e, pair[k]] += w * logs.reward[first + t]
                if not logs.terminated[first + t]:
                    after = int(logs.next_state[first + t])
                    for a in range(A):
                        matrices[e, pair[k], after * A + a] -= w * γ * valued[after, a]
    return matrices, right


def fixed_point(
    trace: Any, logs: Logs, pi: np.ndarray, γ: float, weights: Any = None, of_episodes: Any = None
) -> np.ndarray:
    """Q [S, A] of the sampled operator, each episode counted `weights` times; V(s) where a pair does not occur."""
    matrices, rights = systems(trace, logs, pi, γ) if of_episodes is None else of_episodes
    counted = np.ones(logs.episodes) if weights is None else weights
    matrix, right = np.tensordot(counted, matrices, 1), counted @ rights
    seen = np.bincount(logs.state * logs.actions + logs.action, minlength=len(right)) > 0
    q = np.zeros(len(right))
    q[seen] = np.linalg.solve(matrix[np.ix_(seen, seen)], right[seen])
    q = q.reshape(pi.shape)
    v = (among_logged(logs, pi) * q).sum(axis=1)
    return np.where(seen.reshape(pi.shape), q, v[:, None])
