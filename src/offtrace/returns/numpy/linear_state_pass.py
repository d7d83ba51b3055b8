"""State values with a rule without a cap: one compiled pass from the user's arrays to targets, advantages and corrections.

    Δ_k = w_k δ_k + c_k Δ_{k+1},   c_k = discount_k decay_k ratio_k,   w = min(ρ̄, ρ) of the policy that the rule evaluates

Unlike on action values the start's own action acts (`state_rows`). What is made at a time, and when the pass gives up, stands
in `linear_chain`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from offtrace._shared.compile_cache import kept_njit
from offtrace.returns.numpy.by_address import OPTIONS, call, fingerprint, kernel_part
from offtrace.returns.numpy.compiled_pass import BAD, GOOD, UNFINISHED
from offtrace.returns.numpy.linear_chain import (
    FACTOR,
    GAMMA,
    MU,
    PI,
    RHO,
    ROOM,
    ROWS,
    SHORT,
    SIZE,
    STEPS,
    WEIGHT,
    A,
    C,
    X,
    begin,
    end_rows,
    layout,
    run_back,
)  # fmt: skip
from offtrace.returns.numpy.probability_rows import probabilities
from offtrace.returns.numpy.td_error_rows import REALS, discounts, harmless, td_error


@cache
def linear_rows() -> Callable[..., int]:
    """The pass, compiled for arrays of the dtype that it is called with."""
    of_kernels = fingerprint()

    @kept_njit(nogil=True, no_cfunc_wrapper=True, **OPTIONS)
    def linear_rows(
        rule, first, stop, reads_pi, reads_mu, numbers, by_step, share, rho_bar, lam,
        reward, value, next_value, terminated, truncated, gamma, gammas, log_pi, log_mu, valid,
        target, advantage, correction,
    ):  # fmt: skip
        """Fill target, advantage and correction of the rows from `first` to before `stop`; returns what the pass found."""
        _ = of_kernels  # part of the key on disk
        T, steps = reward.shape[1], reward.size
        at_once, most, wide = layout(stop - first, T)
        reals = reward.ravel(), value.ravel(), next_value.ravel(), log_pi.ravel(), log_mu.ravel()
        ends, cut, read, γs = terminated.ravel(), truncated.ravel(), valid.ravel(), gammas.ravel()
        known, following, made = reals[1], reals[2], (target.ravel(), advantage.ravel(), correction.ravel())
        part, x, m, later = np.empty(SIZE), np.empty(ROWS), np.empty(ROWS), np.empty(ROWS)
        room, cuts = np.empty((REALS, STEPS if len(read) else 0), reward.dtype), np.empty(STEPS, np.bool_)
        r, v, ahead, lπ, lμ, ended = *reals, cut
        if len(read):
            r, v, ahead, lπ, lμ, ended = room[0], room[1], room[2], room[3], room[4], cuts
        for t in range(ROOM):
            part[GAMMA + t] = gamma
        for b0 in range(first, stop, at_once):
            rows = min(at_once, stop - b0)
            begin(rows, x, m)
            t1 = T
            while t1 > 0:
                t0, bad, calm = max(0, t1 - most), False, True
                n = t1 - t0
                pieces, length = (1, rows * n) if T <= SHORT else (rows, n)
                for i in range(pieces):
                    at, here = (b0 + i) * T + t0, part[i * wide :]
                    o = at
                    if len(read):
                        harmless(at, length, reals, cut, read, room, cuts)
                        o = 0
                    e = o + length
                    bad |= discounts(at, length, γs, read, here[GAMMA:])
                    π, μ, ρ, factor = here[PI:], here[MU:], here[RHO:], here[FACTOR:]
                    bad |= probabilities(length, lπ[o:e], lμ[o:e], reads_pi, reads_mu, True, π, μ, ρ)
                    call(rule, (π, μ, ρ, numbers, by_step[at:], factor, factor, factor, length, steps))
                    found, low = terms(
                        length, share, rho_bar, r[o:e], v[o:e], ahead[o:e], ends[at : at + length], ended[o:e], here
                    )
                    bad, calm = bad | found, calm & low
                if bad:
                    return BAD
                if t1 == T:
                    end_rows(rows, n, wide, part)
                    for i in range(rows):
                        part[WEIGHT + i * wide + n - 1] = 0.0
                for i in range(pieces):
                    later[i] = x[i]
                if not run_back(rows, n, wide, calm, part, x, m):
                    return UNFINISHED
                for i in range(pieces):
                    results((b0 + i) * T + t0, length, lam, known, following, part[i * wide :], later[i], made)
                t1 = t0
        return GOOD

    return linear_rows


@kernel_part
def terms(n, share, rho_bar, reward, value, next_value, terminated, truncated, part):
    """w δ, c and w discount of n steps; whether a w δ was bad, and whether no factor is above 1."""
    bad, calm = False, True
    for t in range(n):
        γ, factor = part[GAMMA + t], part[FACTOR + t]
        discount = 0.0 if terminated[t] | truncated[t] else γ
        w = min(share * part[RHO + t] + (1.0 - share), rho_bar)
        a = w * td_error(reward[t], value[t], next_value[t], terminated[t], γ)
        part[A + t] = a
        part[C + t] = discount * factor
        part[WEIGHT + t] = w * discount
        bad |= not abs(a) < np.inf
        calm &= factor <= 1.0
    return bad, calm


@kernel_part
def results(at, n, lam, value, next_value, part, later, made):
    """Target, advantage w_k (δ_k + γ_k λ ahead) and correction of n steps. ahead is what v_{k+1} adds to V(s_{k+1}): next_value
    is the true one, so that it is never the next episode's. `later` is the correction of the step after the last."""
    end = at + n
    v, then, target, advantage, correction = (
        value[at:end],
        next_value[at:end],
        made[0][at:end],
        made[1][at:end],
        made[2][at:end],
    )
    for t in range(n):
        correction[t] = part[X + t]
        target[t] = np.float64(v[t]) + part[X + t]
    for t in range(n - 1):
        ahead = np.float64(v[t + 1]) + part[X + t + 1] - np.float64(then[t])
        advantage[t] = part[A + t] + (lam * ahead * part[WEIGHT + t] if part[WEIGHT + t] > 0.0 else 0.0)
    last, more = n - 1, 0.0
    if part[WEIGHT + last] > 0.0:
        more = lam * (np.float64(value[end]) + later - np.float64(then[last])) * part[WEIGHT + last]
    advantage[last] = part[A + last] + more
