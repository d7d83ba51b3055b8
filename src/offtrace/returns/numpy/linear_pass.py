"""One compiled pass from the user's arrays to corrections, for any rule without a cap: by the reverse recursion.

    Δ_k = δ_k + c_k Δ_{k+1},   c_k = discount_k decay_{k+1} ratio_{k+1}

What is made at a time, and when the pass gives up, stands in `linear_chain`. Memory: the same few parts for any T.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from offtrace._shared.compile_cache import kept_njit
from offtrace.returns.numpy.by_address import OPTIONS, call, fingerprint
from offtrace.returns.numpy.compiled_pass import BAD, GOOD, UNFINISHED
from offtrace.returns.numpy.linear_chain import ROOM, ROWS, SHORT, STEPS, apart, run_back, stretches
from offtrace.returns.numpy.probability_rows import probabilities
from offtrace.returns.numpy.scaled_numbers import FLOOR
from offtrace.returns.numpy.td_error_rows import td_errors


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
        wide = apart(T)
        r, v, ahead, made = reward.ravel(), q.ravel(), next_value.ravel(), out.ravel()
        ends, cut, read, γs = terminated.ravel(), truncated.ravel(), valid.ravel(), gammas.ravel()
        lπ, lμ = log_pi.ravel(), log_mu.ravel()
        delta, c, decay, ratio, cap = np.empty(ROOM), np.empty(ROOM), np.empty(ROOM), np.empty(ROOM), np.empty(ROOM)
        π, μ, ρ, γ, ok = np.empty(ROOM), np.empty(ROOM), np.empty(ROOM), np.full(ROOM, gamma), np.ones(ROOM, np.bool_)
        x, m = np.empty(ROWS), np.empty(ROWS)
        later = np.empty((3, ROWS))  # decay, ratio and whether it is read, of the step after a part
        for b0 in range(first, stop, ROWS):
            rows = min(ROWS, stop - b0)
            x[:], m[:], later[:] = 0.0, FLOOR, 0.0
            t1 = T
            while t1 > 0:
                t0 = 0 if T <= SHORT else (t1 - 1) // STEPS * STEPS
                n = t1 - t0
                pieces, length = stretches(rows, n, T)
                bad = False
                for i in range(pieces):
                    at, o = (b0 + i) * T + t0, i * wide
                    stop_o = o + length
                    ok[stop_o] = later[2, i] > 0.0
                    δ, g, now = delta[o:stop_o], c[o:stop_o], ok[o : stop_o + 1]
                    bad |= td_errors(at, length, r, v, ahead, ends, cut, γs, read, γ[o:stop_o], now, δ, g)
                    bad |= probabilities(at, length, lπ, lμ, reads_pi, reads_mu, reads_rho, now, π, μ, ρ)
                    call(rule, (π, μ, ρ, numbers, by_step[at:], decay, ratio, cap, length, steps))
                    decay[length], ratio[length] = later[0, i], later[1, i]
                    later[0, i], later[1, i], later[2, i] = decay[0], ratio[0], 1.0 if now[0] else 0.0
                    ok[stop_o] = True
                    for t in range(length):
                        g[t] = g[t] * decay[t + 1] * ratio[t + 1]
                if bad:
                    return BAD
                if t1 == T:
                    for i in range(rows):
                        c[i * wide + n - 1] = 0.0
                if not run_back(rows, n, wide, delta, c, x, m):
                    return UNFINISHED
                for i in range(pieces):
                    at, o = (b0 + i) * T + t0, i * wide
                    δ, into, value = delta[o : o + length], made[at : at + length], v[at : at + length]
                    if add_q:
                        for t in range(length):
                            into[t] = np.float64(value[t]) + δ[t]
                    else:
                        for t in range(length):
                            into[t] = δ[t]
                t1 = t0
        return GOOD

    return linear_rows
