"""What of the compiled passes does not depend on the rule: the arrays of a stretch of steps, and its TD errors, into scratch.

    δ_t = r_t + γ_t (1 − terminated_t) next_value_t − value_t                  (0 at invalid steps)
    discount_t = γ_t, or 0 where no trace goes on from t to t+1: at an end and at padding

Everything is float64 inside, whatever comes in: a float32 δ that cancels would lose what the sum needs.
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.by_address import kernel_part

REALS = 5
"""reward, value, next_value, log_pi and log_mu, which the arrays of a stretch are, in this order."""


@kernel_part
def stretch(at, n, reals, truncated, valid, room, cuts):
    """The n steps from `at` on of five real arrays and of the truncations, all flat. Log-probabilities may be empty.

    Where steps are invalid these are copies, in `room` [5, n] and `cuts` [n], that hold 0 there, and a truncation wherever no
    trace goes on for it: so what comes after need not know of them. What holds for the last step of a row is left open.
    """
    end = at + n
    if len(valid) == 0:
        return (
            reals[0][at:end],
            reals[1][at:end],
            reals[2][at:end],
            reals[3][at:end],
            reals[4][at:end],
            truncated[at:end],
        )
    read, cut = valid[at:end], truncated[at:end]
    for i in range(REALS):
        given, into = reals[i][at:end], room[i, :n]
        for t in range(len(given)):
            into[t] = given[t] if read[t] else 0.0
    for t in range(n - 1):
        cuts[t] = cut[t] | (not read[t]) | (not read[t + 1])
    cuts[n - 1] = cut[n - 1] | (not read[n - 1]) | (not valid[min(end, len(valid) - 1)])
    return room[0, :n], room[1, :n], room[2, :n], room[3, :n], room[4, :n], cuts[:n]


@kernel_part
def discounts(at, n, gammas, valid, γ):
    """γ of the n steps from `at` on, where it is given by step, 0 where that is not read; whether one was bad."""
    if len(gammas) == 0:
        return False
    bad, given = False, gammas[at : at + n]
    for t in range(n):
        g = np.float64(given[t]) if len(valid) == 0 or valid[at + t] else 0.0
        γ[t] = g
        bad |= not (0.0 <= g <= 1.0)
    return bad


@kernel_part
def td_error(reward, value, next_value, terminated, γ):
    """δ of one step."""
    return np.float64(reward) + γ * (0.0 if terminated else np.float64(next_value)) - np.float64(value)


@kernel_part
def td_errors(n, reward, value, next_value, terminated, truncated, γ, delta, discount):
    """Fill delta and discount for n steps. The last step of a row must be looked after by the caller. Whether a δ was bad."""
    bad = False
    # Short loops of one kind each: these vectorise, one long loop would not.
    for t in range(n):
        delta[t] = td_error(reward[t], value[t], next_value[t], terminated[t], γ[t])
    for t in range(n):
        discount[t] = 0.0 if terminated[t] | truncated[t] else γ[t]
    for t in range(n):
        bad |= not abs(delta[t]) < np.inf
    return bad
