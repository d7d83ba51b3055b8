"""Policies by name, as a declaration writes them: "softmax:temperature=0.5"; and the policies of earlier updates."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from offtrace import mdps
from offtrace._shared.suggestions import did_you_mean
from offtrace._shared.type_guards import is_list
from offtrace.mdps import MDP
from offtrace.studies import environments
from offtrace.trajectory import ROW_TOLERANCE

POLICIES = {
    "uniform": (),
    "epsilon-greedy": ("epsilon",),
    "softmax": ("temperature",),
    "random": ("concentration", "seed"),
}

Declared = str | tuple[float, ...]
"""A policy: a name with arguments, or one probability for each action, the same in every state."""


def declared_policy(given: object) -> Declared:
    """Check a policy, and return its one spelling; a ValueError says what is allowed.

    >>> declared_policy("softmax: temperature=0.5")
    'softmax:temperature=0.5'
    >>> declared_policy([0.25, 0.75])
    (0.25, 0.75)
    """
    allowed = (
        '"uniform"; "epsilon-greedy:epsilon=0.1" or "softmax:temperature=0.5" in the optimal values; '
        '"random:concentration=1.0,seed=0"; or a list of one probability for each action'
    )
    if is_list(given):
        chances = [p for p in given if isinstance(p, int | float) and not isinstance(p, bool) and 0 <= p <= 2]
        if not given or len(chances) < len(given):
            raise ValueError(allowed)
        if abs(sum(chances) - 1.0) > ROW_TOLERANCE:
            raise ValueError(f"probabilities that sum to one: these sum to {sum(chances):g}")
        return tuple(float(p) for p in chances)
    name, arguments = environments.split(given)
    if name not in POLICIES or any(a not in POLICIES[name] for a in arguments):
        raise ValueError(allowed + did_you_mean(name, POLICIES))
    return environments.join(name, arguments)


def policy(declared: Declared, mdp: MDP, rng: np.random.Generator | None = None) -> np.ndarray:
    """Return the probabilities π [S, A] of a declared policy. A random one without a seed is drawn from `rng`.

    >>> policy((0.25, 0.75), environments.mdp("random-walk:states=1"))
    array([[0.25, 0.75],
           [0.25, 0.75]])
    """
    if isinstance(declared, tuple):
        if len(declared) != mdp.A:
            raise ValueError(f"there are {mdp.A} actions, and {len(declared)} probabilities")
        return np.tile(np.array(declared), (mdp.S, 1))
    name, arguments = environments.split(declared)
    if name == "uniform":
        return mdps.uniform(mdp)
    if name == "random":
        if "seed" in arguments:
            rng = np.random.default_rng(arguments["seed"])
        if rng is None:
            raise ValueError("a random policy needs a seed here: random:seed=0")
        return mdps.random_policy(mdp, rng, float(arguments.get("concentration", 1.0)))
    best = mdp.optimal_q()
    if name == "softmax":
        return mdps.softmax(best, float(arguments.get("temperature", 1.0)))
    return mdps.epsilon_greedy(best, float(arguments.get("epsilon", 0.1)))


def visits(mdp: MDP, pi: np.ndarray) -> np.ndarray:
    """Return how often π [S, A] visits each pair, [S, A], discounted, from the start on; they sum to one.

    >>> visits(environments.mdp("random-walk:states=1"), np.array([[0.3, 0.7], [0.5, 0.5]]))
    array([[0.3, 0.7],
           [0. , 0. ]])
    """
    moves: np.ndarray = np.einsum("sa,sat->st", pi, mdp.P.toarray().reshape(mdp.S, mdp.A, mdp.S))
    start: np.ndarray = mdp.start
    often = np.linalg.solve(np.eye(mdp.S) - mdp.gamma * moves.T, start)
    pairs = np.where(mdp.terminal[:, None], 0.0, often[:, None] * pi)
    return pairs / pairs.sum()


@lru_cache(maxsize=64)
def ageing(label: str, updates: int, rate: float, temperature: float, age: int) -> np.ndarray:
    """Return the policy [S, A] of `age` updates ago: softmax in Q_{updates − age}.

    Q_0 = 0 and Q_{n+1} = Q_n + rate (T* Q_n − Q_n), where T* is Bellman's optimality operator. So age 0 is the current policy,
    and age `updates` is the uniform one.
    """
    mdp = environments.mdp(label)
    values = np.zeros((mdp.S, mdp.A))
    for _ in range(updates - age):
        backed_up = np.asarray(mdp.R) + mdp.gamma * (mdp.P @ values.max(axis=1)).reshape(values.shape)
        values = values + rate * (backed_up - values)
    return mdps.softmax(values, temperature)
