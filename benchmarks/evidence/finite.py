"""Cases on finite MDPs, whose values are exact: what is logged is the state itself, or less than that.

    observed(s)  what the log has of the state s of the MDP; π and μ depend on it alone

Where it is less than the state, the log's state is not Markov: a table of its values is misspecified, however much is logged.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from offtrace import mdps
from offtrace.logs.container import Logs
from offtrace.logs.simulation import simulate
from offtrace.mdps import MDP

GRID, BLOCK, SLIP = 3, 3, 0.2
"""Which Bifurcation, the side of a block of its cells, and how often a move goes anywhere."""
WALK, WIND = 11, 0.35
"""States of the walk, and how often the wind decides in place of the action."""


def value(mdp: MDP, observed: np.ndarray, target: np.ndarray) -> float:
    """V(π), exactly, of a π [O, A] that depends on what is observed [S]."""
    pi = target[observed]
    return float(mdp.start @ (pi * mdp.q(pi)).sum(axis=1))


def logged(mdp: MDP, observed: np.ndarray, behavior: np.ndarray, episodes: int, seed: int) -> Logs:
    """Logs of μ [O, A] that hold only what is observed [S] of each state."""
    logs = simulate(mdp, behavior[observed], episodes=episodes, seed=seed)
    seen = {"state": observed[logs.state], "next_state": observed[logs.next_state]}
    return replace(logs, **seen, states=len(behavior))


def grid() -> MDP:
    """A gridworld with three goals and walls, whose episodes end at a goal with reward 1; moves slip."""
    sure = mdps.bifurcation(GRID, gamma=0.95)
    P = sure.P.toarray().reshape(sure.S, sure.A, sure.S)
    P = (1 - SLIP) * P + SLIP * P.mean(axis=1, keepdims=True)
    return MDP(P, sure.R, sure.gamma, sure.start, sure.terminal, state_names=sure.state_names)


def blocks(mdp: MDP, side: int, *, start_apart: bool) -> np.ndarray:
    """The block of side × side cells in which each cell of a gridworld lies [S].

    The end is a block of its own, and so is the cell in which episodes start, if that is to stand apart.
    """
    names: list[object] = []
    for name, starts in zip(mdp.state_names or (), mdp.start > 0, strict=True):
        own = name == "end" or (starts and start_apart)
        names.append(name if own else (name[0] // side, name[1] // side))
    numbers = {name: i for i, name in enumerate(dict.fromkeys(map(str, names)))}
    return np.array([numbers[str(name)] for name in names])


def windy_walk() -> MDP:
    """A random walk from the middle to reward 1 at the right end, 0 at the left one, with a wind that blows all episode long.

    The wind is drawn when an episode begins, to the left or to the right, each with ½; at each step it decides in place of the
    action with probability `WIND`. States are (wind, place), first all places with wind to the left, then all with wind to the
    right, and the end.
    """
    n = WALK
    size = 2 * n + 1
    P, R, start = np.zeros((size, 2, size)), np.zeros((size, 2)), np.zeros(size)
    for wind in (0, 1):
        start[wind * n + n // 2] = 0.5
        for place in range(n):
            here = wind * n + place
            for action in (0, 1):
                for way, p in ((action, 1 - WIND), (wind, WIND)):
                    there = place + (1 if way else -1)
                    P[here, action, wind * n + there if 0 <= there < n else 2 * n] += p
                    R[here, action] += p * (there == n)
    return MDP(P, R, 0.95, start, np.arange(size) == 2 * n)


def places() -> np.ndarray:
    """The place of each state of the windy walk, without its wind [S]."""
    return np.append(np.tile(np.arange(WALK), 2), WALK)
