"""Values by linear solvers: v = (I − γP_π)⁻¹ r_π over states, then q = R + γPv. Exact up to rounding.

One solve over S states gives what a solve over S·A pairs would: q(s, a) = R(s, a) + γ Σ P(s'|s, a) v(s').
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order
from scipy.sparse.linalg import gmres, splu

if TYPE_CHECKING:
    from offtrace.mdps.mdp import MDP

DENSE = 500  # up to so many states a dense solve is at least as fast as any other
SMALL, SWEEPS = 50, 2000  # with more states than SMALL, policy iteration starts from SWEEPS of value iteration at most
STALLED = 0.05  # forty iterations of GMRES must shrink the residual by so much, or sparse LU takes over
BACKWARD_ERROR = 8 * np.finfo(np.float64).eps  # what an LU decomposition reaches, too


def over_pairs(pi: np.ndarray, states: np.ndarray) -> sp.csr_array:
    """Π [S, S·A] with Π(s, (s, a)) = π(a|s), rows of states that are not among `states` (a mask) left empty."""
    S, A = pi.shape
    weights = np.where(states[:, None], pi, 0.0).ravel()
    table = sp.csr_array((weights, np.arange(S * A), np.arange(0, S * A + 1, A)), shape=(S, S * A))
    table.eliminate_zeros()
    return table


def state_values(mdp: MDP, pi: np.ndarray) -> np.ndarray:
    """v^π [S]: the solution of v = r_π + γP_π v, 0 at terminal states."""
    P = over_pairs(pi, ~mdp.terminal) @ mdp.P
    if mdp.gamma == 1.0:
        stuck = ~reaches(P, mdp.terminal)
        if stuck.any():
            raise ValueError(
                f"gamma is 1 but the episode never ends from state {int(np.argmax(stuck))} under this policy: its values are "
                "not defined; use gamma < 1 or a policy that reaches a terminal state from everywhere"
            )
    r = (pi * mdp.R).sum(axis=1)
    return _solve(sp.csr_array(sp.eye_array(mdp.S) - mdp.gamma * P), r)


def _solve(matrix: sp.csr_array, r: np.ndarray) -> np.ndarray:
    """matrix⁻¹ r to rounding. Dense LU if small; else GMRES with iterative refinement, which is fast where states mix fast
    and sparse LU would fill in (Garnet); else sparse LU, which is fast where GMRES stalls (grids, long chains).
    """
    if len(r) <= DENSE:
        return scipy.linalg.solve(matrix.toarray(), r, check_finite=False)
    v, rest, before = np.zeros_like(r), r, np.inf
    while (size := np.abs(rest).max()) < STALLED * before:
        if size <= BACKWARD_ERROR * (np.abs(r).max() + 2.0 * np.abs(v).max()):
            return v
        v += gmres(matrix, rest, rtol=1e-10, restart=40, maxiter=1)[0]
        rest, before = r - matrix @ v, size
    return splu(sp.csc_array(matrix)).solve(r)


def action_values(mdp: MDP, v: np.ndarray) -> np.ndarray:
    """R + γPv as [S, A]; v must be 0 at terminal states."""
    return mdp.R + mdp.gamma * (mdp.P @ v).reshape(mdp.S, mdp.A)


def reaches(P: sp.csr_array, goal: np.ndarray) -> np.ndarray:
    """The states [S] from which the chain P [S, S], which stores no zeros, can come to those of the mask `goal`."""
    return visited(sp.csr_array(P.T), goal)


def visited(P: sp.csr_array, start: np.ndarray) -> np.ndarray:
    """The states [S] that the chain P [S, S] can reach from those of the mask `start`, themselves included."""
    S = len(start)
    first = sp.csr_array(start[None, :].astype(np.float64))  # one more node leads to all of them
    graph = sp.block_array([[P, None], [first, sp.csr_array((1, 1))]], format="csr")
    is_reached = np.zeros(S + 1, dtype=bool)
    is_reached[breadth_first_order(graph, S, return_predecessors=False)] = True
    return is_reached[:S]


def optimal_action_values(mdp: MDP, tolerance: float) -> np.ndarray:
    """Q* by policy iteration: evaluate exactly, then change an action only where another is better by `tolerance`.

    `tolerance` is relative to the largest value, or to 1 if that is smaller. Actions that tie are never exchanged, so
    rounding cannot make the iteration cycle; and at γ = 1 a proper policy is then only replaced by a proper one, unless
    some cycle earns reward for ever (Bertsekas & Tsitsiklis 1991, "An analysis of stochastic shortest path problems").
    """
    states = np.arange(mdp.S)
    action = _actions_that_end(mdp) if mdp.gamma == 1.0 else _first_actions(mdp)
    for sweep in range(10_000):
        pi = np.zeros((mdp.S, mdp.A))
        pi[states, action] = 1.0
        try:
            q = action_values(mdp, state_values(mdp, pi))
        except ValueError:
            if sweep == 0:
                raise
            raise ValueError(
                "gamma is 1 and some cycle earns positive reward for ever: optimal values are infinite; use gamma < 1"
            ) from None
        gain = q.max(axis=1) - q[states, action]
        better = gain > tolerance * max(1.0, float(np.abs(q).max()))
        if not better.any():
            return q
        action = np.where(better, q.argmax(axis=1), action)
    raise RuntimeError(f"policy iteration did not settle within tolerance {tolerance!r}: ask for a larger one")


def _first_actions(mdp: MDP) -> np.ndarray:
    """Where to start: greedy in the rewards, or after some value iteration where it is cheaper than to solve."""
    v = np.zeros(mdp.S)
    for _ in range(SWEEPS if mdp.S > SMALL else 0):
        before, v = v, action_values(mdp, v).max(axis=1)
        if np.abs(v - before).max() <= 1e-6 * (1.0 - mdp.gamma) * np.abs(v).max():
            break
    return action_values(mdp, v).argmax(axis=1)


def _actions_that_end(mdp: MDP) -> np.ndarray:
    """For each state an action that leads nearer to an end with positive probability, so that the policy is proper."""
    near = mdp.terminal.copy()
    action = np.zeros(mdp.S, dtype=np.intp)
    while not near.all():
        leads = (mdp.P @ near.astype(np.float64) > 0).reshape(mdp.S, mdp.A)
        new = leads.any(axis=1) & ~near
        if not new.any():
            raise ValueError(
                f"gamma is 1 but no policy ever ends the episode from state {int(np.argmin(near))}: its values are not "
                "defined; use gamma < 1"
            )
        action[new] = leads.argmax(axis=1)[new]
        near |= new
    return action
