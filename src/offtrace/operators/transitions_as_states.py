"""State values as action values: an MDP whose states are the transitions of another one, with one action in each.

On state values a trace that comes to s_t has met the actions a_0 … a_{t-1}, and δ_t carries the ratio of a_t. Let the states be
the starts s and the transitions (s, a, s'). After each follow all transitions out of s', with probability μ(a'|s') P(s''|s', a').
A trace from a start s comes at time t to the transition (s_{t-1}, a_{t-1}, s_t): there decay, ratio and cap are those of a_{t-1},
what is read stands for s_t, and what is gained on the way to the next transition, ρ_t δ_t, is a number of that transition. So all
that holds for traces on the pairs of this MDP, its chains, bounds and moments, holds for traces of state values on the first one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse  # pyright: ignore[reportMissingTypeStubs]

from offtrace.mdps.mdp import MDP
from offtrace.operators.moments.variance import TemporalDifferences
from offtrace.operators.setting import Setting


@dataclass(frozen=True, eq=False)
class Transitions:
    """The first S states are the starts, in their order; the others the transitions that μ can make."""

    setting: Setting
    """The same trace on the MDP of transitions. P lacks μ, which `mu` holds, as everywhere in a Setting."""
    entry: np.ndarray
    """Which entry of the first MDP's P each transition is; −1 for starts."""
    pair: np.ndarray
    """Its pair s·A + a; for a start, of its first action."""
    state: np.ndarray
    """The state that it leads to; a start itself."""

    def differences(self, original: Setting, V: np.ndarray) -> TemporalDifferences:
        """w δ, w = min(ρ̄, ρ), by transition, with its moments."""
        P, mdp = sparse.csr_array(original.mdp.P), original.mdp
        entry, at = self.entry[original.S :], self.pair[original.S :]
        rewards = mdp.transition_rewards
        reward = np.asarray(mdp.R).ravel()[at] if rewards is None else rewards[entry]
        after = np.where(mdp.terminal, 0.0, V)[P.indices[entry]]
        weight, before = original.target_rho.ravel()[at], V[at // original.A]
        gain, size = np.zeros(len(self.entry)), np.zeros(len(self.entry))
        gain[original.S :] = weight * (reward + original.gamma * after - before)
        size[original.S :] = weight * (np.abs(reward) + original.gamma * np.abs(after) + np.abs(before))
        return TemporalDifferences.of_gains(self.setting, gain, float(size.max(initial=0.0)))


def transitions(original: Setting) -> Transitions:
    """The MDP of transitions, for a setting whose `evaluated` is the weight that δ carries: μ min(ρ̄, ρ)."""
    s, P = original, sparse.csr_array(original.mdp.P)
    every = np.repeat(np.arange(s.pairs), np.diff(P.indptr))
    entry = np.flatnonzero(s.mu.ravel()[every] > 0)
    n = s.S + len(entry)
    pair = np.concatenate([np.arange(s.S) * s.A, every[entry]])
    state = np.concatenate([np.arange(s.S), P.indices[entry]])
    terminal = np.asarray(s.mdp.terminal, dtype=bool)[state]
    # From a node all transitions out of its state follow: they stand side by side, in the order of P's entries.
    out_of = every[entry] // s.A
    first, count = np.searchsorted(out_of, state), np.bincount(out_of, minlength=s.S)[state]
    indptr = np.concatenate([[0], np.cumsum(count)])
    follows = np.arange(indptr[-1]) - np.repeat(indptr[:-1] - first, count)
    chance, to = P.data[entry[follows]], follows + s.S
    weighed = sparse.csr_array((chance * s.mu.ravel()[pair[to]], to, indptr), shape=(n, n))
    mdp = MDP(weighed, np.zeros((n, 1)), s.gamma, terminal=terminal)
    unweighed = sparse.csr_array((np.where(terminal[to], 0.0, chance), to, indptr), shape=(n, n), copy=True)
    unweighed.eliminate_zeros()
    met = np.arange(n) >= s.S  # a start has no action of its own

    def of_pairs(array: np.ndarray) -> np.ndarray:
        return np.where(met, array.ravel()[pair], 0.0)[:, None]

    named = ("pi", "mu", "evaluated", "rho", "decay", "ratio", "cap")
    arrays = {name: of_pairs(getattr(s, name)) for name in named}
    places = [(int(z) // s.A, int(z) % s.A) if at else None for z, at in zip(pair, met, strict=True)]
    made = replace(s, mdp=mdp, P=unweighed, ids=state, places=places, **arrays)
    return Transitions(made, np.concatenate([np.full(s.S, -1), entry]), pair, state)
