"""A linear system with Gaussian noise and quadratic costs, in which the value of a linear policy is known in closed form.

s' = A s + B a + noise,   r = −(sᵀs + aᵀa / 10),   a ~ N(K s, σ² I)
"""

from __future__ import annotations

import numpy as np

from offtrace.logs import Density, Logs

A, B = np.array([[0.9, 0.2], [-0.1, 0.8]]), np.array([[0.3, 0.0], [0.0, 0.4]])
COST, NOISE, GAMMA = 0.1, 0.05, 0.9
BEHAVIOR, TARGET = np.array([[-0.1, -0.2], [0.1, -0.3]]), np.array([[-0.2, -0.1], [0.0, -0.4]])


def value(K: np.ndarray, sigma: float, steps: int = 2000) -> float:
    """V of N(K s, σ²) for s_0 ~ N(0, I) over so many steps, backward: V_t(s) = −(sᵀ P_t s + c_t)."""
    P, c, M = np.zeros((2, 2)), 0.0, A + B @ K
    for _ in range(steps):
        c = 2 * COST * sigma**2 + GAMMA * (np.trace(P @ (sigma**2 * B @ B.T + NOISE * np.eye(2))) + c)
        P = np.eye(2) + COST * K.T @ K + GAMMA * M.T @ P @ M
    return -float(np.trace(P) + c)


def log_density(K: np.ndarray, sigma: float, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    return -0.5 * (((actions - states @ K.T) / sigma) ** 2).sum(axis=1) - 2 * np.log(sigma) - np.log(2 * np.pi)


def density(K: np.ndarray, sigma: float) -> Density:
    return Density(
        lambda s, a: log_density(K, sigma, s, a), lambda s, rng: s @ K.T + sigma * rng.normal(size=(len(s), 2))
    )


def quadratic(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Features that hold Q of every linear policy."""
    x = np.column_stack([np.ones(len(states)), states, actions])
    i, j = np.triu_indices(x.shape[1])
    return x[:, i] * x[:, j]


def logs(episodes: int, steps: int, sigma: float, *, seed: int = 0, cut: bool = False) -> Logs:
    """Episodes of so many steps by N(BEHAVIOR s, σ²), which then terminate, or were cut."""
    rng = np.random.default_rng(seed)
    s, rows = rng.normal(size=(episodes, 2)), []
    for _ in range(steps):
        a = s @ BEHAVIOR.T + sigma * rng.normal(size=(episodes, 2))
        following = s @ A.T + a @ B.T + np.sqrt(NOISE) * rng.normal(size=(episodes, 2))
        rows.append((s, a, following, -((s**2).sum(axis=1) + COST * (a**2).sum(axis=1))))
        s = following
    state, action, following, reward = (
        np.stack(each, axis=1).reshape(episodes * steps, *each[0].shape[1:]) for each in zip(*rows, strict=True)
    )
    last = np.tile(np.arange(steps) == steps - 1, episodes)
    return Logs(
        starts=np.arange(0, episodes * steps + 1, steps), state=state, next_state=following, action=action, reward=reward,
        terminated=last & (not cut), truncated=last & cut, states=0, actions=0,
        log_mu=log_density(BEHAVIOR, sigma, state, action),
    )  # fmt: skip
