"""The MDPs of the page: small ones of the gallery and those that refute, as lists of numbers.

The page's policies are π and μ that take a marked action with probabilities p and m, and the others alike: then ρ has two
values, products of ratios merge, and everything is exact. An MDP that comes with tables of π and μ uses those.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from offtrace import mdps
from offtrace.mdps import MDP
from offtrace.mdps.policy_tables import TIE


def gallery() -> list[dict[str, object]]:
    """All of them, smallest first."""
    one, _, _ = mdps.one_state_two_actions()
    two, _, _ = mdps.alternating()
    switch, _, _, q0 = mdps.switch_or_stay()
    powers, pi, mu = mdps.powers_of_two()
    garnet, walk, cliff = mdps.garnet(3, 2, 2, seed=0), mdps.random_walk(5, left=0.0), mdps.cliff(2, 3)
    return [
        described("one", "One state, two actions", one, [0], "Either action stays. The marked action is the first."),
        described("alternating", "Two states that alternate", two, [0, 0], "Whatever is done, the other state follows."),
        described(
            "switch", "Switch or stay", switch, [0, 1],
            "Two states; the marked action switches, at no cost; staying costs 1. Control starts from "
            "Q₀ = [[0, −2], [0, −2]].", q0=q0,
        ),
        described(
            "powers", "Powers of two", powers, None,
            "Three states. All ratios are powers of two, so that products merge; these policies are fixed.",
            policies=(pi, mu),
        ),
        described(
            "garnet", "Garnet", garnet, greedy(garnet),
            "Three states, two actions, random transitions and rewards. The marked actions are the optimal ones at γ = 0.9.",
        ),
        described(
            "walk", "Random walk", walk, [1] * 5,
            "Five states in a line, reward 1 at the right end. The marked action goes right.",
        ),
        described(
            "cliff", "Small cliff", cliff, greedy(cliff),
            "Four cells, −1 a step, −100 for the cliff. The marked actions are the optimal ones.",
        ),
    ]  # fmt: skip


def greedy(mdp: MDP) -> list[int]:
    """The action that is optimal at γ = 0.9 in each state that is not terminal."""
    live = ~np.asarray(mdp.terminal, bool)
    best = MDP(mdp.P, mdp.R, 0.9, terminal=mdp.terminal).optimal_q()
    return np.argmax(best[live], axis=1).tolist()


def described(
    key: str,
    title: str,
    mdp: MDP,
    marked: Sequence[int] | None,
    text: str,
    policies: tuple[np.ndarray, np.ndarray] | None = None,
    q0: np.ndarray | None = None,
) -> dict[str, object]:
    """States that are not terminal, and what leads on from them; the rest of each row of P ends the episode."""
    live = np.flatnonzero(~np.asarray(mdp.terminal, bool))
    place = {int(s): i for i, s in enumerate(live)}
    P, R = mdp.dense_P[live], np.asarray(mdp.R)[live]
    rows = [
        [[place[int(t)], float(row[t])] for t in np.flatnonzero(row) if int(t) in place] for row in P.reshape(-1, mdp.S)
    ]
    # Without rewards the error is Q itself, and Q = 0 would have no variance.
    still = not R.any()
    Q = np.zeros(R.shape)
    if still:
        Q[:, 0] = 1.0
    return {
        "key": key, "title": title, "text": text, "S": len(live), "A": mdp.A, "gamma": float(mdp.gamma),
        "P": rows, "ends": P[:, :, np.setdiff1d(np.arange(mdp.S), live)].sum(axis=2).ravel().tolist(),
        "R": R.ravel().tolist(), "Q": Q.ravel().tolist(), "still": still,
        "q0": (np.zeros(R.shape) if q0 is None else q0).ravel().tolist(),
        "states": [str(mdp.state_names[s]) if mdp.state_names else str(s) for s in live],
        "actions": [str(a) for a in mdp.action_names] if mdp.action_names else [str(a) for a in range(mdp.A)],
        "tie": TIE, "marked": marked, "tables": policies and [p[live].ravel().tolist() for p in policies],
    }  # fmt: skip
