"""What state values need beside the passes: the ratio on δ, and targets and advantages from corrections.

    Δ_k = Σ_{t≥k} (γ_k ··· γ_{t-1}) b_{k:t-1} w_t δ_t,      w = min(ρ̄, ρ) of the policy that the rule evaluates

b_{k:t-1} is β of a trace that starts one step before k. An advantage is w_k (δ_k + γ_k λ ahead), where ahead is what v_{k+1} adds
to V(s_{k+1}). next_value is that at the true next state, so it is never the next episode's.
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy import custom
from offtrace.returns.numpy.compiling import kernel
from offtrace.returns.numpy.read_steps import part_of
from offtrace.returns.numpy.whole_arrays import following, preceding, probabilities, td_errors
from offtrace.traces import Trace
from offtrace.trajectory import Trajectory


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
    """Write the results of n steps from flat index `at` on; x has one number more, that of the step after the last."""
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


def of_custom(trace: Trace, x: Trajectory) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Target, advantage and correction of a custom trace by the direct kernel; None where a value is bad."""
    errors, seen = td_errors(x), probabilities(x, ("rho", *trace.reads))
    if errors is None or seen is None:
        return None
    delta, discount = errors
    weight = trace.delta_ratio(np, seen["rho"])
    met = {name: preceding(array) for name, array in seen.items() if name in trace.reads}
    swept = custom.sweep(trace, x, weight * delta, discount, seen=met)
    assert swept is not None, "the log-probabilities were good"
    correction, value = swept[0], x.read("q").astype(np.float64)
    ahead = np.where(discount > 0.0, following(value + correction) - x.read("next_value"), 0.0)
    advantage = weight * np.where(weight == 0.0, 0.0, delta + discount * trace.advantage_lam * ahead)
    return value + correction, advantage, correction
