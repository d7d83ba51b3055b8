"""MDPs whose values are known, and logs of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from offtrace import mdps
from offtrace.logs import Logs, simulate


def layered(layers: int = 6, width: int = 3, seed: int = 0) -> mdps.MDP:
    """States in layers, each of which leads to the next or, with probability 0.1, to the end: at most so many steps."""
    rng, n = np.random.default_rng(seed), layers * width
    P, R = np.zeros((n + 1, 2, n + 1)), rng.normal(size=(n + 1, 2, n + 1))
    for s in range(n):
        following = (s // width + 1) * width
        for a in range(2):
            P[s, a, n] = 0.1 if following < n else 1.0
            if following < n:
                P[s, a, following : following + width] = 0.9 * rng.dirichlet(np.ones(width))
    start = np.zeros(n + 1)
    start[:width] = 1 / width
    R[n] = 0.0
    return mdps.MDP(P, R, 0.95, start, np.arange(n + 1) == n)


def near() -> tuple[mdps.MDP, np.ndarray, np.ndarray, float]:
    """The layered MDP, μ, π and V(π): products of ratios stay below 10."""
    mdp, rng = layered(), np.random.default_rng(3)
    mu, pi = (mdps.random_policy(mdp, rng, 20.0) for _ in range(2))
    assert (pi / mu).max() ** 5 < 10
    return mdp, mu, pi, value(mdp, pi)


def value(mdp: mdps.MDP, pi: np.ndarray) -> float:
    return float(mdp.start @ (pi * mdp.q(pi)).sum(axis=1))


def some_logs(seed: int = 0, episodes: int = 40, limit: int | None = 7) -> tuple[Logs, np.ndarray, Any]:
    """Few short episodes of a Garnet, terminated and truncated ones, and a π with zeros."""
    rng = np.random.default_rng(seed)
    mdp = mdps.garnet(5, 3, 2, seed=seed, gamma=0.9, terminal=1)
    mu = mdps.random_policy(mdp, rng, 2.0)
    pi = mdps.random_policy(mdp, rng, 2.0)
    pi[1] = [0.0, 0.3, 0.7]
    return simulate(mdp, mu, seed=rng, episodes=episodes, limit=limit), pi, mdp


def for_ever() -> Logs:
    """One state, two actions, reward 1 at every step: ten episodes, each cut after three."""
    n = 30
    zeros, last = np.zeros(n, int), np.arange(n) % 3 == 2
    return Logs(
        starts=np.arange(0, n + 1, 3), state=zeros, next_state=zeros, action=np.arange(n) % 2, reward=np.ones(n),
        terminated=np.zeros(n, bool), truncated=last, log_mu=np.log(np.full(n, 0.5)), states=1, actions=2,
    )  # fmt: skip
