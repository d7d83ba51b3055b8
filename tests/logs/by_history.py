"""The test of the Markov property by its definition: loops over steps, and nothing shared with what it checks."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from offtrace.logs import Logs


def chance(logs: Logs, gamma: float) -> float:
    """P(χ² ≥ gᵀC⁻¹g) of g = Σ_t z_t e_t, C = Σ_t z_t z_tᵀ e_t² n/(n − 1), both summed over even and odd episodes."""
    parts = [_sums(logs, gamma, half) for half in (0, 1)]
    g, C = (sum(each) for each in zip(*parts, strict=True))
    kept = np.diag(C) > 1e-20
    g, C = g[kept], C[np.ix_(kept, kept)]  # pyright: ignore
    return float(stats.chi2.sf(g @ np.linalg.solve(C, g), len(g)))  # pyright: ignore


def _sums(logs: Logs, gamma: float, half: int) -> tuple[np.ndarray, np.ndarray]:
    episodes = [range(int(a), int(b)) for a, b in zip(logs.starts[:-1], logs.starts[1:], strict=True)]
    returns: dict[int, list[float]] = {}
    for episode in episodes[1 - half :: 2]:
        total = 0.0
        for t in reversed(episode):
            total = float(logs.reward[t]) + gamma * total
            returns.setdefault(int(logs.state[t]), []).append(total)

    def V(state: int) -> float:
        return float(np.mean(returns[state])) if state in returns else 0.0

    steps = [t for episode in episodes[half::2] for t in episode]
    pair = {t: (int(logs.state[t]), int(logs.action[t])) for t in steps}

    def less_mean(x: dict[int, float]) -> dict[int, float]:
        return {t: x[t] - float(np.mean([x[u] for u in steps if pair[u] == pair[t]])) for t in steps}

    e = less_mean(
        {t: float(logs.reward[t]) + (0.0 if logs.terminated[t] else gamma * V(int(logs.next_state[t]))) for t in steps}
    )
    past: list[dict[int, float]] = [{} for _ in range(6)]
    for episode in episodes[half::2]:
        for age, t in enumerate(episode):
            past[0][t] = float(age == 0)
            past[1][t] = math.log(1 + age)
            past[2][t] = V(int(logs.state[t - 1 if age else t]))
            past[3][t] = V(int(logs.state[episode[0]]))
            past[4][t] = e[t - 1] if age else 0.0
            past[5][t] = sum(e[u] for u in range(episode[0], t)) / math.sqrt(max(age, 1))
    z = np.array([list(less_mean(x).values()) for x in past]).T
    z[np.abs(z) < 1e-10] = 0.0
    error = np.array([e[t] for t in steps])
    n = np.array([sum(pair[u] == pair[t] for u in steps) for t in steps])
    squares = error**2 * n / np.maximum(n - 1, 1)
    return z.T @ error, (z * squares[:, None]).T @ z
