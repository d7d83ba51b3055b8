"""Logs of a known μ on a finite MDP: to try estimators where the truth is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from offtrace.logs.container import Logs
from offtrace.mdps import MDP
from offtrace.mdps.randomness import Seed


def simulate(
    mdp: MDP,
    behavior: ArrayLike,
    *,
    seed: Seed,
    episodes: int | None = None,
    steps: int | None = None,
    limit: int | None = None,
) -> Logs:
    """The logs of so many episodes, or of so many steps (the last episode is then truncated), by `MDP.rollout`.

    The value to compare with is `mdp.start @ (pi * mdp.q(pi)).sum(axis=1)`.

    >>> import numpy as np
    >>> from offtrace import mdps
    >>> walk = mdps.random_walk(5, gamma=0.9)
    >>> logs = simulate(walk, mdps.uniform(walk), episodes=100, seed=0)
    >>> logs.episodes, len(logs), logs.states
    (100, 922, 6)
    """
    row = mdp.rollout(behavior, seed=seed, episodes=episodes, steps=steps, limit=limit)
    row["truncated"][-1] |= not row["terminated"][-1]
    return Logs(
        starts=np.append(0, np.flatnonzero(row["terminated"] | row["truncated"]) + 1),
        state=row["state"],
        next_state=row["next_state"],
        action=row["action"],
        reward=row["reward"],
        terminated=row["terminated"],
        truncated=row["truncated"],
        log_mu=row["log_mu"],
        states=mdp.S,
        actions=mdp.A,
    )
