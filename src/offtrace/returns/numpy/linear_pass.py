"""One compiled pass from the user's arrays to corrections, for any rule without a cap: by the reverse recursion.

    Δ_k = δ_k + c_k Δ_{k+1},   c_k = discount_k decay_{k+1} ratio_{k+1}

What is made at a time, and when the pass gives up, stands in `linear_chain`. Memory: the same few parts for any T.
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
        rule, first, stop, reads_pi, reads_mu, reads_rho, numbers, by_step, add_q,
        reward, q, next_value, terminated, truncated, gamma, gammas, log_pi, log_mu, valid, out,
    ):  # fmt: skip
        """q + Δ, or Δ, of the rows from `first` to before `stop` into `out`."""
        _ = of_kernels  # part of the key on disk
        T, steps = reward.shape[1], reward.size
        at_once, most, wide = layout(stop - first, T)
        reals = reward.ravel(), q.ravel(), next_value.ravel(), log_pi.ravel(), log_mu.ravel()
        ends, cut, read, γs, made = terminated.ravel(), truncated.ravel(), valid.ravel(), gammas.ravel(), out.ravel()
        part, x, m, later = np.empty(SIZE), np.empty(ROWS), np.empty(ROWS), np.zeros(ROWS)
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
                    bad |= probabilities(length, lπ[o:e], lμ[o:e], reads_pi, reads_mu, reads_rho, π, μ, ρ)
                    call(rule, (π, μ, ρ, numbers, by_step[at:], factor, factor, factor, length, steps))
                    factor[length], later[i] = later[i], factor[0]  # of the step after a part
                    found, low = terms(length, r[o:e], v[o:e], ahead[o:e], ends[at : at + length], ended[o:e], here)
                    bad, calm = bad | found, calm & low
                if bad:
                    return BAD
                if t1 == T:
                    end_rows(rows, n, wide, part)
                if not run_back(rows, n, wide, calm, part, x, m):
                    return UNFINISHED
                for i in range(pieces):
                    at, change = (b0 + i) * T + t0, part[X + i * wide :]
                    into, value = made[at : at + length], reals[1][at : at + length]
                    if add_q:
                        for t in range(length):
                            into[t] = np.float64(value[t]) + change[t]
                    else:
                        for t in range(length):
                            into[t] = change[t]
                t1 = t0
        return GOOD

    return linear_rows


@kernel_part
def terms(n, reward, value, next_value, terminated, truncated, part):
    """δ and c of n steps; whether a δ was bad, and whether no factor is above 1."""
    bad, calm = False, True
    for t in range(n):
        γ, factor = part[GAMMA + t], part[FACTOR + 1 + t]
        δ = td_error(reward[t], value[t], next_value[t], terminated[t], γ)
        part[A + t] = δ
        part[C + t] = 0.0 if terminated[t] | truncated[t] else γ * factor
        bad |= not abs(δ) < np.inf
        calm &= factor <= 1.0
    return bad, calm
