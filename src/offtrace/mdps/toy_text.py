"""Gymnasium's toy-text environments that publish their table: FrozenLake, CliffWalking, Taxi.

Their `P[s][a]` is a list of (probability, s', reward, terminated). There the end belongs to a transition, here to a state.
So a state that is only ever entered by terminated transitions becomes terminal, under its own number; if some state is
entered both ways (as Taxi's are), one more state, the last, is the end, and terminated transitions to such states lead to
it. Either way the first states are the environment's, number for number, and behave as there.

Gymnasium is imported only here, when it is asked for: the extra `gymnasium`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp  # pyright: ignore[reportMissingTypeStubs]

from offtrace._shared.extras import install
from offtrace.mdps.mdp import MDP
from offtrace.mdps.sparse_matrices import entries_divided

Published = Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]
"""P[s][a]: outcomes (probability, s', reward, terminated)."""


def from_gymnasium(environment: object, gamma: float = 0.99, **kwargs: object) -> MDP:
    """The MDP of a Gymnasium environment, given by its name (with `kwargs` for gymnasium.make) or as an object.

    Time limits are no part of the MDP: give `limit` to `MDP.rollout`. Where two outcomes of (s, a) share s' but not the
    reward, r(s, a, s') is their mean.

    >>> lake = from_gymnasium("FrozenLake-v1", gamma=0.9, is_slippery=False)
    >>> lake.S, lake.A
    (16, 4)
    """
    name, table, start = _published(environment, kwargs)
    S, A = len(table), len(table[0])
    outcomes = np.array(
        [(s * A + a, *outcome) for s in range(S) for a in range(A) for outcome in table[s][a] if outcome[0] > 0],
        dtype=np.float64,
    )
    pair, after, ends = outcomes[:, 0].astype(int), outcomes[:, 2].astype(int), outcomes[:, 4] > 0
    probability, reward = outcomes[:, 1], outcomes[:, 3]

    elsewhere = pair // A != after
    entered_to_end = np.bincount(after[elsewhere & ends], minlength=S) > 0
    entered_to_go_on = np.bincount(after[elsewhere & ~ends], minlength=S) > 0
    terminal = entered_to_end & ~entered_to_go_on & ~(start > 0)
    redirected = ends & ~terminal[after] & ~terminal[pair // A]
    if redirected.any():
        after = np.where(redirected, S, after)
        terminal, start = np.append(terminal, True), np.append(start, 0.0)
    states = len(terminal)
    acts = ~terminal[pair // A]  # what the table says of states after the end is never seen
    where = (pair[acts], after[acts])
    # csr_array adds up outcomes with the same s'.
    P = sp.csr_array(sp.coo_array((probability[acts], where), shape=(states * A, states)))
    total = sp.csr_array(sp.coo_array(((probability * reward)[acts], where), shape=(states * A, states)))
    try:
        return MDP(P, entries_divided(total, P), gamma, start, terminal)
    except ValueError as error:
        raise ValueError(f"the table of {name} is not an MDP: {error}") from error


def _published(environment: Any, kwargs: dict[str, Any]) -> tuple[str, Published, np.ndarray]:
    """(name, table, distribution of the first state) of an environment that has them."""
    if isinstance(environment, str):
        try:
            import gymnasium
        except ImportError:
            raise ImportError(f"from_gymnasium needs Gymnasium: {install('gymnasium')}") from None
        # Gymnasium leaves open what its environments observe and do.
        env = gymnasium.make(environment, **kwargs)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        try:
            return _published(env, {})
        finally:
            env.close()
    if kwargs:
        raise TypeError(f"an environment that is already made takes no further arguments, got {sorted(kwargs)}")
    inner = getattr(environment, "unwrapped", None)
    if inner is None:
        raise TypeError(f"environment must be a name or a Gymnasium environment, got {type(environment).__name__}")
    name = inner.spec.id if getattr(inner, "spec", None) else type(inner).__name__
    table, start = getattr(inner, "P", None), getattr(inner, "initial_state_distrib", None)
    if table is None or start is None:
        raise ValueError(
            f"{name} does not publish its transitions as env.unwrapped.P and env.unwrapped.initial_state_distrib: only tables "
            "can be read (FrozenLake, CliffWalking, Taxi); build others as MDP(P, R, gamma)"
        )
    if getattr(inner, "fickle_passenger", False):
        raise ValueError(
            f"{name} with fickle_passenger=True is no MDP in its state, and its table leaves that out: use False"
        )
    return name, table, np.asarray(start, dtype=np.float64)
