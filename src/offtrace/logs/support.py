"""How much of the target's way leaves the data, and what it could be worth.

With τ the first time that π takes a pair (s, a) that was never logged, and the transitions and rewards of logged pairs as the
logs have them,

    V(π) = (what comes before τ) + E[γ^τ Q^π(s_τ, a_τ)],     share = E[γ^τ]

Of Q^π(s_τ, a_τ) the logs say nothing, but it lies in [least, most], as rewards and horizon allow. A table takes it to be worth
V̂(s_τ), so that V(π) may be off by −E[γ^τ V̂(s_τ)] + share · [least, most] (Manski 1990).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from offtrace.logs.linear_systems import solve

if TYPE_CHECKING:
    from offtrace.logs.evidence import Evidence
    from offtrace.logs.fit import Fit, Regressed


def way_out(evidence: Evidence, fitted: Fit | Regressed | None = None) -> tuple[float, float]:
    """E[γ^τ], and E[γ^τ V̂(s_τ)] where a fit was given. Of features only how much of the first steps never was logged."""
    logs, policy, gamma, starts = evidence.logs, evidence.policy, evidence.gamma, evidence.starts
    if policy.table is None:
        return float(starts.weight @ policy.outside(starts.state, logs)), 0.0
    logged = logs.counts
    outside = np.where(logged == 0, policy.table, 0.0).sum(axis=1)
    if not outside.any():
        return 0.0, 0.0
    pair = logs.pairs
    on = ~logs.terminated
    pair, following = pair[on], logs.next_state[on]
    known = np.where(logged > 0, policy.table, 0.0) / np.maximum(logged, 1)

    def onward(x: np.ndarray) -> np.ndarray:
        """γ Σ_a π(a|s) Ê[x(s')] over logged pairs [S]."""
        return gamma * (known * np.bincount(pair, x[following], known.size).reshape(known.shape)).sum(axis=1)

    def at_first_states(right: np.ndarray) -> float:
        reached, _, _ = solve(lambda x: x - onward(x), right)
        return float(starts.weight @ reached[starts.state])

    share = at_first_states(outside)
    if share < 1e-9:  # the way there does not begin in any first state
        return 0.0, 0.0
    if fitted is None:
        return min(share, 1.0), 0.0
    return min(share, 1.0), at_first_states(outside * evidence.values(fitted, np.arange(logs.states)))
