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
        rule, first, stop, reads_pi, reads_mu, numbers, by_step, share, rho_bar, lam,
        reward, value, next_value, terminated, truncated, gamma, gammas, log_pi, log_mu, valid,
        target, advantage, correction,
    ):  # fmt: skip
        """Fill target, advantage and correction of the rows from `first` to before `stop`; returns what the pass found."""
        _ = of_kernels  # part of the key on disk
        T, steps = reward.shape[1], reward.size
        wide = apart(T)
        r, v, following = reward.ravel(), value.ravel(), next_value.ravel()
        ends, cut, read, γs = terminated.ravel(), truncated.ravel(), valid.ravel(), gammas.ravel()
        lπ, lμ, into, gain, change = (
            log_pi.ravel(),
            log_mu.ravel(),
            target.ravel(),
            advantage.ravel(),
            correction.ravel(),
        )
        delta, excess, c, weight, discount = (
            np.empty(ROOM),
            np.empty(ROOM),
            np.empty(ROOM),
            np.empty(ROOM),
            np.empty(ROOM),
        )
        decay, ratio, cap, π, μ, ρ = (
            np.empty(ROOM),
            np.empty(ROOM),
            np.empty(ROOM),
            np.empty(ROOM),
            np.empty(ROOM),
            np.empty(ROOM),
        )
        γ, ok = np.full(ROOM, gamma), np.ones(ROOM, np.bool_)
        x, m, later, is_read = np.empty(ROWS), np.empty(ROWS), np.empty(ROWS), np.empty(ROWS, np.bool_)
        for b0 in range(first, stop, ROWS):
            rows = min(ROWS, stop - b0)
            x[:], m[:], is_read[:] = 0.0, FLOOR, False
            t1 = T
            while t1 > 0:
                t0 = 0 if T <= SHORT else (t1 - 1) // STEPS * STEPS
                n, bad = t1 - t0, False
                pieces, length = stretches(rows, n, T)
                for i in range(pieces):
                    at, o = (b0 + i) * T + t0, i * wide
                    e = o + length
                    ok[e] = is_read[i]
                    δ, d, now = delta[o:e], discount[o:e], ok[o : e + 1]
                    bad |= td_errors(at, length, r, v, following, ends, cut, γs, read, γ[o:e], now, δ, d)
                    bad |= probabilities(at, length, lπ, lμ, reads_pi, reads_mu, True, now, π, μ, ρ)
                    is_read[i] = now[0]
                    ok[e] = True
                    call(rule, (π, μ, ρ, numbers, by_step[at:], decay, ratio, cap, length, steps))
                    bad |= weigh(length, share, rho_bar, δ, d, decay, ratio, ρ, weight[o:e], excess[o:e], c[o:e])
                if bad:
                    return BAD
                if t1 == T:
                    for i in range(rows):
                        discount[i * wide + n - 1] = c[i * wide + n - 1] = 0.0
                for i in range(rows):
                    later[i] = x[i]
                if not run_back(rows, n, wide, excess, c, x, m):
                    return UNFINISHED
                for i in range(pieces):
                    at, o = (b0 + i) * T + t0, i * wide
                    e = at + length
                    y, known, made, changed = excess[o:], v[at:e], into[at:e], change[at:e]
                    for t in range(length):
                        changed[t] = y[t]
                    for t in range(length):
                        made[t] = np.float64(known[t]) + y[t]
                    gains(length, at, v, following, y, discount[o:], lam, later[i], delta[o:], weight[o:], gain)
                t1 = t0
        return GOOD

    return linear_rows


@kernel_part
def weigh(n, share, rho_bar, delta, discount, decay, ratio, ρ, weight, weighted, c):
    """w, w δ and c of n steps, in loops that write one array each: others would not vectorise. Whether a product was bad."""
    bad = False
    for t in range(n):
        weight[t] = min(share * ρ[t] + (1.0 - share), rho_bar)
    for t in range(n):
        weighted[t] = weight[t] * delta[t]
    for t in range(n):
        c[t] = discount[t] * decay[t] * ratio[t]
    for t in range(n):
        bad |= not abs(weighted[t]) < np.inf
    return bad


@kernel_part
def gains(n, at, value, following, excess, discount, lam, later, delta, weight, gain):
    """w_k (δ_k + γ_k λ ahead) of n steps, where ahead is what v_{k+1} adds to V(s_{k+1}): next_value is the true one, so that it
    is never the next episode's. `later` is the excess of the step after the last."""
    known, then, into = value[at : at + n], following[at : at + n], gain[at : at + n]
    for t in range(n - 1):
        ahead = np.float64(known[t + 1]) + excess[t + 1] - np.float64(then[t])
        d, w = discount[t], weight[t]
        whole = delta[t] + (d * lam * ahead if d > 0.0 else 0.0)
        into[t] = w * whole if w != 0.0 else 0.0  # not 0 · ∞
    more = 0.0
    if discount[n - 1] > 0.0:
        more = discount[n - 1] * lam * (np.float64(value[at + n]) + later - np.float64(then[n - 1]))
    into[n - 1] = weight[n - 1] * (delta[n - 1] + more) if weight[n - 1] != 0.0 else 0.0
