"""What of the compiled passes does not depend on the rule: the arrays of a stretch of steps, and its TD errors, into scratch.

    δ_t = r_t + γ_t (1 − terminated_t) next_value_t − value_t                  (0 at invalid steps)
    discount_t = γ_t, or 0 where no trace goes on from t to t+1: at an end and at padding

Everything is float64 inside, whatever comes in: a float32 δ that cancels would lose what the sum needs.
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.by_address import kernel_part

REALS = 5
"""reward, value, next_value, log_pi and log_mu, in this order."""


@kernel_part
def harmless(at, n, reals, truncated, valid, room, cuts):
    """Copies of the n steps from `at` on of five real arrays and of the truncations, all flat, into `room` and `cuts`.

    They hold 0 where a step is invalid, and a truncation wherever no trace goes on for it: so what comes after need not know of
    invalid steps. Log-probabilities may be empty. What holds for the last step of a row is left open.
    """
    read, cut = valid[at : at + n], truncated[at : at + n]
    copy(at, n, reals[0], read, room[0])
    copy(at, n, reals[1], read, room[1])
    copy(at, n, reals[2], read, room[2])
    copy(at, n, reals[3], read, room[3])
    copy(at, n, reals[4], read, room[4])
    for t in range(n - 1):
        cuts[t] = cut[t] | (not read[t]) | (not read[t + 1])
    cuts[n - 1] = cut[n - 1] | (not read[n - 1]) | (not valid[min(at + n, len(valid) - 1)])


@kernel_part
def copy(at, n, given, read, into):
    """n steps of an array, with 0 where they are not read."""
    if len(given):
        part = given[at : at + n]
        for t in range(n):
            into[t] = part[t] if read[t] else 0.0


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
