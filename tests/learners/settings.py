"""What the tests of learners share: the traces they take, and small MDPs in which everything happens."""

from __future__ import annotations

import numpy as np

import offtrace as ot
from helpers import TRACES
from offtrace.mdps import MDP, random_policy

S, A = 5, 3
LEARNERS: list[ot.Trace] = [
    *TRACES,
    ot.VariableLambda(lam=np.linspace(0.0, 1.0, S * A).reshape(S, A)),
]


def world(seed: int = 0, gamma: float = 0.95, ends: float = 0.02) -> MDP:
    """Stochastic, with rewards [S, A, S], several starts, and one terminal state that is seldom reached."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(S, 0.4), size=(S, A))
    P[..., -1] = ends
    P[..., :-1] *= (1 - ends) / P[..., :-1].sum(axis=-1, keepdims=True)
    P[0, 0] = np.eye(S)[1]  # one row without a choice
    P[-1] = 0.0
    start = np.array([0.5, 0.3, 0.2, 0.0, 0.0])
    return MDP(P, rng.normal(size=(S, A, S)), gamma, start, np.arange(S) == S - 1)


def policies(mdp: MDP, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """π with a zero, μ without."""
    rng = np.random.default_rng(seed)
    pi, mu = random_policy(mdp, rng), 0.3 / mdp.A + 0.7 * random_policy(mdp, rng)
    pi[1] = np.arange(mdp.A) / np.arange(mdp.A).sum()
    return pi, mu
