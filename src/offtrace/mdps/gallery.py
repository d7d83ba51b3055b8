"""MDPs that the literature knows: Bifurcation gridworlds, cliff walking, the random walk, Garnet, Collision."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse as sp  # pyright: ignore[reportMissingTypeStubs]

from offtrace.mdps.mdp import MDP
from offtrace.mdps.randomness import Seed, generator

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}

BIFURCATIONS = {
    1: ("XX...", "XX.X.", "XX.XG", "XX.X.", "S...."),
    2: ("..G....", *(5 * (".X.X.X.",)), "...S..."),
    3: ("G.....", "G.....", "GXX...", ".X....", "..S...", "XX...."),
    4: (".......", ".......", "..XXX..", "...G...", "..XXX..", ".......", "S......"),
}
"""Rows from top to bottom: G goal, S start, X blocked, `.` free."""

Cell = tuple[int, int]


def bifurcation(number: int, gamma: float = 0.9) -> MDP:
    """A gridworld where the way to the goal forks (cf. Daley et al. 2023, "Bifurcated Gridworld"), by number from 1 to 4.

    A move that is blocked or leads outside stays. In a goal cell any action ends the episode with reward 1; all other
    rewards are 0. So V*(cell) = γ^distance to the nearest goal. States are the free cells, named (row, column), and
    the end.

    >>> bifurcation(1)
    MDP(S=15, A=4, gamma=0.9, terminal=1, nonzeros=56)
    """
    if number not in BIFURCATIONS:
        raise ValueError(f"there is no Bifurcation {number!r}: choose from {sorted(BIFURCATIONS)}")
    layout = BIFURCATIONS[number]
    cells = {(i, j): mark for i, row in enumerate(layout) for j, mark in enumerate(row) if mark != "X"}

    def move(cell: Cell, step: Cell) -> tuple[Cell | None, float]:
        if cells[cell] == "G":
            return None, 1.0
        there = (cell[0] + step[0], cell[1] + step[1])
        return (there if there in cells else cell), 0.0

    return _grid(list(cells), move, [cell for cell, mark in cells.items() if mark == "S"], gamma)


def cliff(rows: int = 4, columns: int = 12, gamma: float = 1.0) -> MDP:
    """Cliff walking (Sutton & Barto 2018, Example 6.6).

    From the lower left corner to the lower right one; reward −1 a step. All cells between the two are a cliff: −100, and
    back to the start. States are the cells that one can stand on, named (row, column); reaching the goal ends the episode,
    so that it has no state but the end. Always going round the cliff costs columns + 1 steps.

    >>> float(cliff().optimal_q().max(axis=1)[-2])  # at the start
    -13.0
    """
    if rows < 2 or columns < 2:
        raise ValueError(f"the cliff needs two rows and two columns at least, got {rows} × {columns}")
    start, goal = (rows - 1, 0), (rows - 1, columns - 1)
    cells = [(i, j) for i in range(rows - 1) for j in range(columns)] + [start]

    def move(cell: Cell, step: Cell) -> tuple[Cell | None, float]:
        i, j = min(max(cell[0] + step[0], 0), rows - 1), min(max(cell[1] + step[1], 0), columns - 1)
        if (i, j) == goal:
            return None, -1.0
        return (start, -100.0) if i == rows - 1 and j > 0 else ((i, j), -1.0)

    return _grid(cells, move, [start], gamma)


def random_walk(states: int = 19, left: float = -1.0, right: float = 1.0, gamma: float = 1.0) -> MDP:
    """The random walk (Sutton & Barto 2018, Example 6.2 with 5 states and left = 0, section 7.1 with 19).

    States 0 … n − 1 in a line, then the end; actions left and right; start in the middle. Stepping off the line ends the
    episode with reward `left` or `right`. Under the uniform policy its values are `random_walk_values`.

    >>> random_walk(5, left=0.0)
    MDP(S=6, A=2, gamma=1.0, terminal=1, nonzeros=10)
    """
    if states < 1:
        raise ValueError(f"the walk needs at least one state, got {states}")
    n = states
    before = [n, *range(n - 1)]
    R = np.zeros((n + 1, 2))
    R[0, 0], R[n - 1, 1] = left, right
    return _line([before, range(1, n + 1)], R, gamma, np.eye(n + 1)[n // 2], ("left", "right"))


def random_walk_values(states: int = 19, left: float = -1.0, right: float = 1.0) -> np.ndarray:
    """v [states + 1] of `random_walk` under the uniform policy, γ = 1: linear between the two ends; 0 at the end itself.

    >>> random_walk_values(3, left=0.0)
    array([0.25, 0.5 , 0.75, 0.  ])
    """
    to_the_right = np.arange(1, states + 1) / (states + 1)
    return np.append(left + (right - left) * to_the_right, 0.0)


def garnet(states: int, actions: int, branching: int, seed: Seed, gamma: float = 0.99, terminal: int = 0) -> MDP:
    """A Garnet: "generic average reward non-stationary environment test-bed" (Archibald et al. 1995; Bhatnagar et al. 2009).

    Each pair (s, a) leads to `branching` different states, uniformly chosen, with the probabilities that as many pieces of
    a randomly broken stick have; R(s, a) is standard normal. The last `terminal` of the states end the episode.

    >>> garnet(10, 2, 3, seed=0, terminal=1)
    MDP(S=10, A=2, gamma=0.99, terminal=1, nonzeros=54)
    """
    if min(states, actions, branching) < 1 or branching > states:
        raise ValueError(
            f"states, actions and branching must be at least 1, and branching at most states: got "
            f"{states}, {actions}, {branching}"
        )
    if not 0 <= terminal < states:
        raise ValueError(f"terminal must lie in [0, {states - 1}], the number of states that end, got {terminal}")
    rng = generator(seed)
    pairs, acting = states * actions, (states - terminal) * actions
    into = np.stack([rng.choice(states, branching, replace=False, shuffle=False) for _ in range(acting)])
    cuts = np.sort(rng.random((acting, branching - 1)), axis=1)
    pieces = np.diff(cuts, prepend=0.0, append=1.0, axis=1)
    indptr = np.minimum(np.arange(pairs + 1), acting) * branching
    P = sp.csr_array((pieces.ravel(), into.ravel(), indptr), shape=(pairs, states))
    R = np.zeros((states, actions))
    R[: states - terminal] = rng.standard_normal((states - terminal, actions))
    return MDP(P, R, gamma, terminal=np.arange(states) >= states - terminal)


def collision(gamma: float = 0.9) -> tuple[MDP, np.ndarray, np.ndarray]:
    """The Collision task (Ghiassian, Sutton 2021, "An empirical comparison of off-policy prediction learning algorithms").

    States 0 … 7 in a line, then the end; actions right and retreat; start uniform in the first four. Leaving state 7 to the right
    ends the episode with reward 1, retreating ends it with 0. Returned with the MDP: π, which goes right, and μ, which goes right
    in states 0 to 3 and takes either action with ½ in states 4 to 7. So V^π(s) = γ^(7 − s), and ρ is 2 or 0 where μ has a choice.

    >>> mdp, target, behavior = collision()
    >>> (target * mdp.q(target)).sum(axis=1)[5:]
    array([0.81, 0.9 , 1.  , 0.  ])
    """
    n = 8
    R = np.zeros((n + 1, 2))
    R[n - 1, 0] = 1.0
    start = np.where(np.arange(n + 1) < n // 2, 2.0 / n, 0.0)
    mdp = _line([range(1, n + 1), [n] * n], R, gamma, start, ("right", "retreat"))
    target, behavior = np.tile([1.0, 0.0], (n + 1, 1)), np.tile([1.0, 0.0], (n + 1, 1))
    behavior[n // 2 : n] = 0.5
    return mdp, target, behavior


def collision_features(seed: Seed) -> np.ndarray:
    """Features [9, 6] of the Collision task: in each state three of six are 1, drawn anew for each run; 0 at the end.

    >>> collision_features(0).sum(axis=1)
    array([3., 3., 3., 3., 3., 3., 3., 3., 0.])
    """
    rng, x = generator(seed), np.zeros((9, 6))
    for s in range(8):
        x[s, rng.choice(6, 3, replace=False)] = 1.0
    return x


def _line(to: Sequence[Sequence[int]], R: np.ndarray, gamma: float, start: np.ndarray, actions: tuple[str, ...]) -> MDP:
    """States 0 … n − 1 in a line, then the end; `to[a]` are the n states that an action leads to."""
    n = len(R) - 1
    P = np.zeros((n + 1, len(to), n + 1))
    for a, after in enumerate(to):
        P[np.arange(n), a, after] = 1.0
    return MDP(P, R, gamma, start, np.arange(n + 1) == n, state_names=(*range(n), "end"), action_names=actions)


def _grid(
    cells: list[Cell], move: Callable[[Cell, Cell], tuple[Cell | None, float]], starts: list[Cell], gamma: float
) -> MDP:
    """The MDP of deterministic moves: move(cell, step) → (the next cell or None for the end, reward)."""
    index = {cell: s for s, cell in enumerate(cells)}
    n = len(cells)
    P, R, start = np.zeros((n + 1, len(MOVES), n + 1)), np.zeros((n + 1, len(MOVES))), np.zeros(n + 1)
    for cell, s in index.items():
        for a, step in enumerate(MOVES.values()):
            there, R[s, a] = move(cell, step)
            P[s, a, n if there is None else index[there]] = 1.0
    for cell in starts:
        start[index[cell]] = 1.0 / len(starts)
    names = (*cells, "end")
    return MDP(P, R, gamma, start, np.arange(n + 1) == n, state_names=names, action_names=tuple(MOVES))
