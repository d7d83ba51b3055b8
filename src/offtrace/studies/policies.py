"""Policies by name, as a declaration writes them: "softmax:temperature=0.5"; and the policies of earlier updates."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from offtrace import mdps
from offtrace._shared.suggestions import did_you_mean
from offtrace._shared.type_guards import is_list
from offtrace.mdps import MDP
from offtrace.studies import named_environments
from offtrace.studies.declaration_checks import DeclarationError
from offtrace.trajectory import ROW_TOLERANCE

POLICIES = {
    "uniform": (),
    "epsilon-greedy": ("epsilon",),
    "softmax": ("temperature",),
    "random": ("concentration", "seed"),
}

Declared = str | tuple[float, ...]
"""A policy: a name with arguments, or one probability for each action, the same in every state."""


def declared_policy(key: str, given: object) -> Declared:
    """Check a policy, and return its one spelling.

    >>> declared_policy("target", "softmax: temperature=0.5")
    'softmax:temperature=0.5'
    >>> declared_policy("behavior", [0.25, 0.75])
    (0.25, 0.75)
    """
    allowed = (
        '"uniform"; "epsilon-greedy:epsilon=0.1" or "softmax:temperature=0.5" in the optimal values; '
        '"random:concentration=1.0,seed=0"; or a list of one probability for each action'
    )
    if is_list(given):
        chances = [p for p in given if isinstance(p, int | float) and not isinstance(p, bool) and not p < 0]
        if not given or len(chances) < len(given):
            raise DeclarationError(key, given, allowed)
        if abs(sum(chances) - 1.0) > ROW_TOLERANCE:
            raise DeclarationError(key, given, f"probabilities that sum to one: these sum to {sum(chances):g}")
        return tuple(float(p) for p in chances)
    if not isinstance(given, str):
        raise DeclarationError(key, given, allowed)
    name, arguments = named_environments.split(key, given)
    if name not in POLICIES or any(a not in POLICIES[name] for a in arguments):
        raise DeclarationError(key, given, allowed + did_you_mean(name, POLICIES))
    return named_environments.join(name, arguments)


def policy(declared: Declared, where: MDP, rng: np.random.Generator | None = None) -> np.ndarray:
    """Return the probabilities π [S, A] of a declared policy. A random one without a seed is drawn from `rng`.

    >>> policy((0.25, 0.75), named_environments.mdp("random-walk:states=1"))
    array([[0.25, 0.75],
           [0.25, 0.75]])
    """
    if isinstance(declared, tuple):
        if len(declared) != where.A:
            raise ValueError(f"there are {where.A} actions, and {len(declared)} probabilities")
        return np.tile(np.array(declared), (where.S, 1))
    name, arguments = named_environments.split("", declared)
    if name == "uniform":
        return mdps.uniform(where)
    if name == "random":
        if "seed" in arguments:
            rng = np.random.default_rng(arguments["seed"])
        if rng is None:
            raise ValueError("a random policy needs a seed here: random:seed=0")
        return mdps.random_policy(where, rng, float(arguments.get("concentration", 1.0)))
    best = where.optimal_q()
    if name == "softmax":
        return mdps.softmax(best, float(arguments.get("temperature", 1.0)))
    return mdps.epsilon_greedy(best, float(arguments.get("epsilon", 0.1)))


def visits(where: MDP, pi: np.ndarray) -> np.ndarray:
    """Return how often π [S, A] visits each pair, [S, A], discounted, from the start on; they sum to one.

    >>> visits(named_environments.mdp("random-walk:states=1"), np.array([[0.3, 0.7], [0.5, 0.5]]))
    array([[0.3, 0.7],
           [0. , 0. ]])
    """
    moves: np.ndarray = np.einsum("sa,sat->st", pi, where.P.toarray().reshape(where.S, where.A, where.S))
    start: np.ndarray = where.start
    often = np.linalg.solve(np.eye(where.S) - where.gamma * moves.T, start)
    pairs = np.where(where.terminal[:, None], 0.0, often[:, None] * pi)
    return pairs / pairs.sum()


@lru_cache(maxsize=64)
def ageing(label: str, updates: int, rate: float, temperature: float, age: int) -> np.ndarray:
    """Return the policy [S, A] of `age` updates ago: softmax in Q_{updates − age}.

    Q_0 = 0 and Q_{n+1} = Q_n + rate (T* Q_n − Q_n), where T* is Bellman's optimality operator. So age 0 is the policy of now,
    and age `updates` is the uniform one.
    """
    where = named_environments.mdp(label)
    values = np.zeros((where.S, where.A))
    for _ in range(updates - age):
        backed_up = np.asarray(where.R) + where.gamma * (where.P @ values.max(axis=1)).reshape(values.shape)
        values = values + rate * (backed_up - values)
    return mdps.softmax(values, temperature)
