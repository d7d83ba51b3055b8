"""State values on NumPy arrays: one compiled pass from the user's arrays to corrections, targets and advantages, for any rule.

    Δ_k = Σ_{t≥k} (γ_k ··· γ_{t-1}) b_{k:t-1} w_t δ_t,      w = min(ρ̄, ρ) of the policy that the rule evaluates

b_{k:t-1} is β of a trace that starts one step before k. So it is the Δ of action values, by the same kernels, with w δ in the
place of δ, and with each action's decay, ratio and cap one step later: they act on what comes after the action.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from offtrace._shared.compile_cache import kept_njit
from offtrace.returns.numpy import custom_traces
from offtrace.returns.numpy.by_address import OPTIONS, call, fingerprint
from offtrace.returns.numpy.compiled_pass import BAD, GOOD, ROWS, sweep_block
from offtrace.returns.numpy.row_opening import MU, PI, RHO, read_row, room_for_copies
from offtrace.returns.numpy.whole_arrays import following, preceding, probabilities, td_errors
from offtrace.traces import Trace
from offtrace.trajectory import Trajectory


class Made(NamedTuple):
    """What comes out, [B, T] each. Invalid steps hold anything."""

    target: np.ndarray
    advantage: np.ndarray
    correction: np.ndarray


def of_custom(trace: Trace, x: Trajectory) -> Made | None:
    """Compute the targets of a custom trace by the direct kernel; return None where a value is bad."""
    made, seen = td_errors(x), probabilities(x, ("rho", *trace.reads))
    if made is None or seen is None:
        return None
    delta, discount = made
    weight = trace.delta_ratio(np, seen["rho"])
    met = {name: preceding(array) for name, array in seen.items() if name in trace.reads}
    found = custom_traces.sweep(trace, x, weight * delta, discount, seen=met)
    assert found is not None, "the log-probabilities were good"
    correction, value = found[0], x.read("q").astype(np.float64)
    ahead = np.where(discount > 0.0, following(value + correction) - x.read("next_value"), 0.0)
    advantage = weight * np.where(weight == 0.0, 0.0, delta + discount * trace.advantage_lam * ahead)
    return Made(value + correction, advantage, correction)


@cache
def correct_rows() -> Callable[..., int]:
    """The pass, compiled for arrays of the dtype that it is called with."""
    of_kernels = fingerprint()

    @kept_njit(nogil=True, no_cfunc_wrapper=True, **OPTIONS)
    def correct_rows(
        rule, sweep, finish, first, stop, reads_pi, reads_mu, numbers, by_step, lags, share, rho_bar, lam, lams,
        reward, value, next_value, terminated, truncated, gamma, gammas, log_pi, log_mu, valid, scratch, room,
        target, advantage, correction,
    ):  # fmt: skip
        """Fill target, advantage and correction of the rows from `first` to before `stop`; returns what the pass found."""
        _ = of_kernels  # part of the key on disk
        T, W = reward.shape[1], scratch.shape[2]
        delta, discount, ratio, cap, excess, γ = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4], scratch[5]
        decay, seen, undone = scratch[6, 0], scratch[6, 1:], np.empty(ROWS, np.int64)
        weight, weighted, g, ρ = scratch[7], scratch[8], scratch[9], seen[RHO]
        reals = reward.ravel(), value.ravel(), next_value.ravel(), log_pi.ravel(), log_mu.ravel()
        flags, γs, reads = (
            (terminated.ravel(), truncated.ravel(), valid.ravel()),
            gammas.ravel(),
            (reads_pi, reads_mu, True),
        )
        copied, cuts = room_for_copies(T, reward, valid)
        for i in range(min(ROWS, stop - first)):
            for t in range(T):
                γ[i, t] = gamma
            for t in range(T, W):  # nothing happens in the columns beyond T
                weighted[i, t], g[i, t], ratio[i, t], cap[i, t] = 0.0, 0.0, 1.0, 1.0
        for b0 in range(first, stop, ROWS):
            n, bad = min(ROWS, stop - b0), False
            for i in range(n):
                at = (b0 + i) * T
                bad |= read_row(at, T, reals, flags, γs, reads, copied, cuts, γ[i], delta[i], discount[i], seen)
                for t in range(T):
                    weight[i, t] = min(share * ρ[t] + (1.0 - share), rho_bar)
                    weighted[i, t] = weight[i, t] * delta[i, t]
                    bad |= not abs(weighted[i, t]) < np.inf
                # One step later: what the last action would act on lies beyond the row, and nothing happens there.
                call(
                    rule,
                    (seen[PI], seen[MU], ρ, numbers, by_step[at:], decay, ratio[i, 1:], cap[i, 1:], T, reward.size),
                )
                ratio[i, 0] = cap[i, 0] = ratio[i, T] = cap[i, T] = 1.0
                for t in range(T):
                    g[i, t] = discount[i, t] * decay[t]
            if bad:
                return BAD
            found = sweep_block(n, sweep, finish, weighted, g, ratio, cap, lags, undone, room, excess)
            if found != GOOD:
                return found
            for i in range(n):
                b = b0 + i
                for t in range(T):
                    correction[b, t] = excess[i, t]
                    target[b, t] = np.float64(value[b, t]) + excess[i, t]
                # What v_{k+1} adds to V(s_{k+1}); next_value is the true one, so that it is never the next episode's.
                if len(lams):
                    for t in range(T):
                        discount[i, t] *= lams[b, t]
                else:
                    for t in range(T):
                        discount[i, t] *= lam
                for t in range(T - 1):
                    more = np.float64(value[b, t + 1]) + excess[i, t + 1] - np.float64(next_value[b, t])
                    delta[i, t] += discount[i, t] * more if discount[i, t] > 0.0 else 0.0
                for t in range(T):
                    advantage[b, t] = weight[i, t] * delta[i, t] if weight[i, t] != 0.0 else 0.0  # not 0 · ∞
        return GOOD

    return correct_rows
