"""Policies as arrays [S, A]: π(a|s) in row s. Every state has a row, terminal ones too, though nobody reads those.

Where a policy is made from action values, ties are split evenly: two values tie when they differ by less than
`tolerance` times the largest magnitude of their row, so that a solver's rounding does not decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from offtrace.mdps.randomness import Seed, generator
from offtrace.trajectory import distributions

if TYPE_CHECKING:
    from offtrace.mdps.mdp import MDP

TIE = 1e-12


def greedy(q: ArrayLike, tolerance: float = TIE) -> np.ndarray:
    """π(a|s) = 1{a ∈ argmax q(s, ·)} / |argmax q(s, ·)|.

    >>> greedy([[0.0, 1.0, 1.0]])
    array([[0. , 0.5, 0.5]])
    """
    q = _action_values(q)
    if not tolerance >= 0:
        raise ValueError(f"tolerance must not be negative, got {tolerance!r}")
    best = q >= q.max(axis=1, keepdims=True) - tolerance * np.abs(q).max(axis=1, keepdims=True)
    return best / best.sum(axis=1, keepdims=True)


def epsilon_greedy(q: ArrayLike, epsilon: float, tolerance: float = TIE) -> np.ndarray:
    """π = (1 − ε) greedy(q) + ε uniform.

    >>> epsilon_greedy([[0.0, 1.0]], 0.2)
    array([[0.1, 0.9]])
    """
    epsilon = _fraction("epsilon", epsilon)
    best = greedy(q, tolerance)
    return (1.0 - epsilon) * best + epsilon / best.shape[1]


def softmax(q: ArrayLike, temperature: float = 1.0) -> np.ndarray:
    """π(a|s) ∝ exp(q(s, a) / temperature) for action values [S, A].

    >>> softmax([[0.0, 0.0]])
    array([[0.5, 0.5]])
    """
    q = _action_values(q)
    if not 0 < temperature < np.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature!r}; `greedy` is the limit 0")
    above = np.exp((q - q.max(axis=1, keepdims=True)) / temperature)
    return above / above.sum(axis=1, keepdims=True)


def mixture(target: ArrayLike, behavior: ArrayLike, weight: float) -> np.ndarray:
    """weight · target + (1 − weight) · behavior, state by state: `AlphaRetrace(mix=weight)` evaluates this policy.

    >>> mixture([[1.0, 0.0]], [[0.5, 0.5]], 0.5)
    array([[0.75, 0.25]])
    """
    weight = _fraction("weight", weight)
    π, μ = np.asarray(target, dtype=np.float64), np.asarray(behavior, dtype=np.float64)
    if π.ndim != 2 or π.shape != μ.shape:
        raise ValueError(f"target has shape {π.shape} and behavior {μ.shape}: both must be [S, A]")
    return weight * distributions(π, "target") + (1.0 - weight) * distributions(μ, "behavior")


def uniform(mdp: MDP) -> np.ndarray:
    """The policy [S, A] with π(a|s) = 1/A.

    >>> from offtrace.mdps import alternating
    >>> uniform(alternating()[0])
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    return np.full((mdp.S, mdp.A), 1.0 / mdp.A)


def random_policy(mdp: MDP, seed: Seed, concentration: float = 1.0) -> np.ndarray:
    """A policy [S, A] whose rows are drawn from a symmetric Dirichlet distribution.

    A `concentration` of 1 is uniform over the simplex; near 0 policies are nearly deterministic.

    >>> from offtrace.mdps import alternating
    >>> random_policy(alternating()[0], seed=0).shape
    (2, 2)
    """
    if not 0 < concentration < np.inf:
        raise ValueError(f"concentration must be positive and finite, got {concentration!r}")
    return generator(seed).dirichlet(np.full(mdp.A, float(concentration)), size=mdp.S)


def check_policy(policy: ArrayLike, mdp: MDP, name: str = "policy") -> np.ndarray:
    """`policy` as `trajectory.distributions` [S, A], if it is one of this MDP; else an error that names the first bad state.

    >>> from offtrace import mdps
    >>> check_policy([[0.25, 0.75]] * 3, mdps.garnet(3, 2, 2, seed=0)).shape
    (3, 2)
    """
    array = np.asarray(policy)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} is not an array of numbers, got {type(policy).__name__}: a policy is an array [S, A]")
    if array.shape != (mdp.S, mdp.A):
        raise ValueError(f"{name} has shape {array.shape}: a policy of this MDP is [S, A] = {(mdp.S, mdp.A)}")
    return distributions(array, name)


def _action_values(q: ArrayLike) -> np.ndarray:
    q = np.asarray(q, dtype=np.float64)
    if q.ndim != 2 or 0 in q.shape:
        raise ValueError(f"q has shape {q.shape}: action values must be [S, A]")
    bad = ~np.isfinite(q).all(axis=1)
    if bad.any():
        s = int(np.argmax(bad))
        raise ValueError(f"q in state {s} is {q[s].tolist()}: action values must be finite")
    return q


def _fraction(name: str, value: float) -> float:
    if np.ndim(value) != 0 or not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be one number in [0, 1], got {value!r}")
    return float(value)
