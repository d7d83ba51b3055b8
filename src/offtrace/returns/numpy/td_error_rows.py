"""TD errors of one row, into scratch: the part of the compiled passes that does not depend on the rule.

    δ_t = r_t + γ_t (1 − terminated_t) next_value_t − value_t                  (0 at invalid steps)
    discount_t = γ_t, or 0 where no trace goes on from t to t+1: at an end, at padding, at the row's end

Everything is float64 inside, whatever comes in: a float32 δ that cancels would lose what the sum needs.
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.by_address import kernel_part


@kernel_part
def td_errors(b0, n, reward, value, next_value, terminated, truncated, gammas, valid, γ, ok, delta, discount):
    """Fill delta, discount of rows b0 … b0+n−1, and γ, ok where they change with the row. Whether a value was bad.

    γ, ok, delta, discount are [rows, T or wider].
    """
    T = reward.shape[1]
    bad = False
    for i in range(n):
        b = b0 + i
        # Short loops of one kind each: these vectorise, one long loop would not.
        if len(valid):
            for t in range(T):
                ok[i, t] = valid[b, t]
        if len(gammas):
            for t in range(T):
                γ[i, t] = gammas[b, t]
            for t in range(T):
                bad |= ok[i, t] & ~((γ[i, t] >= 0.0) & (γ[i, t] <= 1.0))
        for t in range(T):
            v = 0.0 if terminated[b, t] else np.float64(next_value[b, t])
            delta[i, t] = np.float64(reward[b, t]) + γ[i, t] * v - np.float64(value[b, t])
        for t in range(T):
            discount[i, t] = 0.0 if terminated[b, t] | truncated[b, t] else γ[i, t]
        discount[i, T - 1] = 0.0
        if len(valid):
            for t in range(T):
                if not ok[i, t]:
                    delta[i, t] = discount[i, t] = discount[i, max(t - 1, 0)] = 0.0
        for t in range(T):
            bad |= not abs(delta[i, t]) < np.inf
    return bad
