"""TD errors of a stretch of steps, into scratch: what of the compiled passes does not depend on the rule.

    δ_t = r_t + γ_t (1 − terminated_t) next_value_t − value_t                  (0 at invalid steps)
    discount_t = γ_t, or 0 where no trace goes on from t to t+1: at an end and at padding

Everything is float64 inside, whatever comes in: a float32 δ that cancels would lose what the sum needs.
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.by_address import kernel_part


@kernel_part
def td_errors(
    at, n, reward, value, next_value, terminated, truncated, gammas, valid, γ, ok, delta, discount
):  # fmt: skip
    """Fill delta and discount for the n steps from `at` on, counted through all rows, and γ and ok where these are given.

    The arrays of the batch are flat, and those to fill begin with the first of the n steps; ok goes one step further, and ok[n]
    must be known. The last step of a row must be looked after by the caller. Returns whether a value was bad.
    """
    bad, end = False, at + n
    r, v, ahead = reward[at:end], value[at:end], next_value[at:end]
    ends, cut = terminated[at:end], truncated[at:end]
    # Short loops of one kind each: these vectorise, one long loop would not.
    if len(gammas):
        given = gammas[at:end]
        for t in range(n):
            γ[t] = given[t]
    for t in range(n):
        delta[t] = np.float64(r[t]) + γ[t] * (0.0 if ends[t] else np.float64(ahead[t])) - np.float64(v[t])
    for t in range(n):
        discount[t] = 0.0 if ends[t] | cut[t] else γ[t]
    if len(valid):
        read = valid[at:end]
        for t in range(n):
            ok[t] = read[t]
        for t in range(n):
            delta[t] = delta[t] if ok[t] else 0.0
        for t in range(n):
            discount[t] = discount[t] if ok[t] & ok[t + 1] else 0.0
    for t in range(n):
        bad |= not abs(delta[t]) < np.inf
    if len(gammas):
        for t in range(n):
            bad |= ok[t] & ((γ[t] < 0.0) | (not γ[t] <= 1.0))
    return bad
