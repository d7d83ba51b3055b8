"""What state values need beside the passes: the ratio on δ, and targets and advantages from corrections.

    Δ_k = Σ_{t≥k} (γ_k ··· γ_{t-1}) b_{k:t-1} w_t δ_t,      w = min(ρ̄, ρ) of the policy that the rule evaluates

b_{k:t-1} is β of a trace that starts one step before k. An advantage is w_k (δ_k + γ_k λ ahead), where ahead is what v_{k+1} adds
to V(s_{k+1}). next_value is that at the true next state, so it is never the next episode's.
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.compiling import kernel
from offtrace.returns.numpy.read_steps import are_finite, part_of


@kernel
def weigh_errors(at, n, share, bound, lam, lams, rho, delta, passed, weight):
    """δ becomes w δ, and weight λ w passed, of n steps from flat index `at` on; returns whether a w δ is bad."""
    bad = False
    for t in range(n):
        w = share * rho[t] + (1.0 - share)
        w = w if w < bound else bound
        delta[t] *= w
        weight[t] = w * passed[t]
        bad |= not abs(delta[t]) < np.inf
    of_steps = lams[at : at + n]
    if len(of_steps):
        for t in range(n):
            weight[t] *= of_steps[t]
    else:
        for t in range(n):
            weight[t] *= lam
    return bad


@kernel
def write_states(at, n, delta, weight, x, value, next_value, target, advantage, correction):
    """Write the results of n steps from flat index `at` on; x has one number more, that of the step after the last.

    Returns whether all are finite.
    """
    v, then = part_of(value, at, n), part_of(next_value, at, n)
    goal, gain, change = part_of(target, at, n), part_of(advantage, at, n), part_of(correction, at, n)
    for t in range(n):
        change[t] = x[t]
        goal[t] = np.float64(v[t]) + x[t]
    v, later = part_of(value, at + 1, n), x[1:]
    for t in range(len(v)):
        ahead = np.float64(v[t]) + later[t] - np.float64(then[t])
        gain[t] = delta[t] + (weight[t] * ahead if weight[t] > 0.0 else 0.0)
    if len(v) < n:  # the batch ends here, and no trace goes on
        gain[n - 1] = delta[n - 1]
    return are_finite(goal) & are_finite(gain) & are_finite(change)
