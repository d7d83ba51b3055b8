"""Acrobot, compiled: a double pendulum that must swing up, by torque at its middle joint (Sutton 1996, Gymnasium's Acrobot-v1).

    policy ε:  the torque pushes along the speed of the second joint with probability 1 − ε, and is uniform otherwise

Made here so that many thousand episodes take a second: the truth is the mean of them. The dynamics are those of Gymnasium's
environment (a test steps both), without its limit of 500 steps unless one is given.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from offtrace._shared.compile_cache import cached_njit
from offtrace.logs.container import Logs

ACTIONS = 3
DT, GRAVITY = 0.2, 9.8
SPEEDS = 4 * np.pi, 9 * np.pi
"""The largest speeds of the two joints."""


def pumping(epsilon: float) -> Callable[[np.ndarray], np.ndarray]:
    """The policy of this ε: observations [n, 6] → probabilities [n, 3] of the torques −1, 0 and 1."""

    def probabilities(x: np.ndarray) -> np.ndarray:
        p = np.full((len(x), ACTIONS), epsilon / ACTIONS)
        p[np.arange(len(x)), np.where(x[:, 5] >= 0, 2, 0)] += 1 - epsilon
        return p

    return probabilities


def logged(epsilon: float, episodes: int, limit: int, seed: int) -> Logs:
    """Logs of the policy of this ε; an episode that takes longer than `limit` is cut there."""
    rng = np.random.default_rng(seed)
    first, draws = rng.uniform(-0.1, 0.1, (episodes, 4)), rng.random((episodes, limit))
    size = episodes * limit
    observation, action = np.empty((size + episodes, 6)), np.empty(size, np.int64)
    lengths, done = np.empty(episodes, np.int64), np.empty(episodes, np.bool_)
    n = _episodes(first, draws, epsilon, observation, action, lengths, done)
    at = np.arange(n) + np.repeat(np.arange(episodes), lengths)  # after each episode stands where it ended
    starts = np.append(0, np.cumsum(lengths))
    last, terminated, truncated = starts[1:] - 1, np.zeros(n, bool), np.zeros(n, bool)
    terminated[last], truncated[last] = done, ~done
    state = observation[at]
    taken = pumping(epsilon)(state)[np.arange(n), action[:n]]
    return Logs(
        starts=starts,
        state=state,
        next_state=observation[at + 1],
        action=action[:n].copy(),
        reward=np.where(terminated, 0.0, -1.0),
        terminated=terminated,
        truncated=truncated,
        log_mu=np.log(taken),
        states=0,
        actions=ACTIONS,
    )


def value(epsilon: float, gamma: float, episodes: int, seed: int) -> tuple[float, float]:
    """V of the policy of this ε, by so many episodes of its own, and the standard error of that."""
    rng = np.random.default_rng(seed)
    first = rng.uniform(-0.1, 0.1, (episodes, 4))
    steps = int(np.ceil(np.log(1e-5) / np.log(gamma)))  # what follows is worth less than 1e-5 of the whole
    returns = np.concatenate([_returns(part, epsilon, gamma, rng, steps) for part in np.array_split(first, 100)])
    return float(returns.mean()), float(returns.std() / np.sqrt(episodes))


def _returns(first: np.ndarray, epsilon: float, gamma: float, rng: np.random.Generator, steps: int) -> np.ndarray:
    """Σ_t γ^t r_t of one episode from each of the first positions [n]: −1 for each step but the last."""
    lengths, done = np.empty(len(first), np.int64), np.empty(len(first), np.bool_)
    nowhere = np.empty((0, 6)), np.empty(0, np.int64)
    _episodes(first, rng.random((len(first), steps)), epsilon, *nowhere, lengths, done)
    return -(1 - gamma ** (lengths - done)) / (1 - gamma)


@cached_njit(nogil=True)
def _derivative(s, torque):
    """d/dt of (θ1, θ2, θ1', θ2'): unit masses, lengths and moments, centres of mass in the middle of the links."""
    cosine, sine = np.cos(s[1]), np.sin(s[1])
    d1 = 0.25 + 1.25 + cosine + 2.0
    d2 = 0.25 + 0.5 * cosine + 1.0
    phi2 = 0.5 * GRAVITY * np.sin(s[0] + s[1])
    phi1 = -0.5 * s[3] ** 2 * sine - s[3] * s[2] * sine + 1.5 * GRAVITY * np.sin(s[0]) + phi2
    second = (torque + d2 / d1 * phi1 - 0.5 * s[2] ** 2 * sine - phi2) / (1.25 - d2**2 / d1)
    return np.array([s[2], s[3], -(d2 * second + phi1) / d1, second])


@cached_njit(nogil=True)
def step(s, torque):
    """The position DT later: one step of Runge and Kutta's, angles in [−π, π], speeds up to their limits."""
    k1 = _derivative(s, torque)
    k2 = _derivative(s + DT / 2 * k1, torque)
    k3 = _derivative(s + DT / 2 * k2, torque)
    k4 = _derivative(s + DT * k3, torque)
    after = s + DT / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    for i in range(2):
        after[i] = (after[i] + np.pi) % (2 * np.pi) - np.pi
        after[2 + i] = min(max(after[2 + i], -SPEEDS[i]), SPEEDS[i])
    return after


@cached_njit(nogil=True)
def _episodes(first, draws, epsilon, observation, action, lengths, done):
    """One episode from each of the first positions; steps are written only where there is room for them. The number of steps."""
    n = row = 0
    for e in range(len(first)):
        s, t, over = first[e].copy(), 0, False
        while True:
            if row < len(observation):
                observation[row, 0], observation[row, 1] = np.cos(s[0]), np.sin(s[0])
                observation[row, 2], observation[row, 3] = np.cos(s[1]), np.sin(s[1])
                observation[row, 4], observation[row, 5] = s[2], s[3]
            row += 1
            if over or t == draws.shape[1]:
                break
            u = draws[e, t]
            if u >= epsilon:
                a = 2 if s[3] >= 0 else 0
            else:
                a = min(int(u / epsilon * 3), 2)
            if n < len(action):
                action[n] = a
            s = step(s, a - 1.0)
            over = -np.cos(s[0]) - np.cos(s[1] + s[0]) > 1.0
            n, t = n + 1, t + 1
        lengths[e], done[e] = t, over
    return n
