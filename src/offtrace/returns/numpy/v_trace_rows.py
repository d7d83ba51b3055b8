"""V-trace on NumPy arrays: one compiled pass from the user's arrays to targets and advantages."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from offtrace._shared.compile_cache import kept_njit
from offtrace.returns.numpy import compiled_pass, reverse_recursion
from offtrace.returns.numpy.by_address import OPTIONS, fingerprint
from offtrace.returns.numpy.compiled_pass import BAD, GOOD, ROWS, sweep_block
from offtrace.returns.numpy.scalar_math import LARGEST_LOG, exp
from offtrace.returns.numpy.scratch_rows import by_step, scratch
from offtrace.returns.numpy.td_error_rows import td_errors
from offtrace.trajectory import Trajectory


def attempt(numbers: tuple[float, float, float], x: Trajectory) -> tuple[np.ndarray, np.ndarray] | None:
    """v and the advantage [B, T] for λ, ρ̄ and c̄; None where a value is bad, which `explain_bad_value` then names."""
    target, advantage = np.empty(x.terminated.shape, x.dtype), np.empty(x.terminated.shape, x.dtype)
    gamma, gammas, valid = by_step(x)
    read = x.reward, x.q, x.next_value, x.terminated, x.truncated, gamma, gammas, x.log_pi, x.log_mu, valid
    room, run = scratch(x.terminated.shape[1]), _v_trace()

    def rows(sweep: int, finish: int) -> int:
        return run(sweep, finish, *map(float, numbers), *read, room, target, advantage)

    return None if compiled_pass.by_kernel(reverse_recursion.KERNEL, rows) else (target, advantage)


@cache
def _v_trace() -> Callable[..., int]:
    of_kernels = fingerprint()

    @kept_njit(nogil=True, **OPTIONS)
    def v_trace(
        sweep, finish, lam, rho_bar, c_bar, reward, value, next_value, terminated, truncated, gamma, gammas,
        log_pi, log_mu, valid, scratch, target, advantage,
    ):  # fmt: skip
        """v_k − V_k = ρ̄_k δ_k + γ_k c_k (v_{k+1} − V_{k+1}), in blocks of rows; returns what a pass found."""
        _ = of_kernels  # part of the key on disk
        B, T, W = *reward.shape, scratch.shape[1]
        delta, discount, rho = scratch[:ROWS], scratch[ROWS : 2 * ROWS], scratch[2 * ROWS : 3 * ROWS]
        clipped, excess, gc = scratch[3 * ROWS : 4 * ROWS], scratch[4 * ROWS : 5 * ROWS], scratch[5 * ROWS : 6 * ROWS]
        γ, one = np.empty((ROWS, W)), np.ones((ROWS, W))
        ok, undone, no_lags = np.ones((ROWS, T), np.bool_), np.empty(ROWS, np.int64), np.empty(0)
        for i in range(ROWS):
            for t in range(T):
                γ[i, t] = gamma
            for t in range(T, W):  # nothing happens in the columns beyond T
                clipped[i, t] = gc[i, t] = 0.0
        for b0 in range(0, B, ROWS):
            n = min(ROWS, B - b0)
            bad = td_errors(
                b0, n, reward, value, next_value, terminated, truncated, gammas, valid, γ, ok, delta, discount
            )  # fmt: skip
            for i in range(n):
                b = b0 + i
                for t in range(T):
                    log_μ = np.float64(log_mu[b, t])
                    log_ρ = np.float64(log_pi[b, t]) - log_μ
                    rho[i, t] = exp(log_ρ if ok[i, t] else 0.0)
                    bad |= ok[i, t] & ~((log_ρ < LARGEST_LOG) & (log_μ < np.inf))
                for t in range(T):
                    clipped[i, t] = min(rho[i, t], rho_bar) * delta[i, t]
                    gc[i, t] = discount[i, t] * lam * min(rho[i, t], c_bar)
            if bad:
                return BAD
            found = sweep_block(sweep, finish, clipped[:n], gc[:n], one[:n], one[:n], no_lags, undone, excess[:n])
            if found != GOOD:
                return found
            for i in range(n):
                b = b0 + i
                for t in range(T):
                    target[b, t] = np.float64(value[b, t]) + excess[i, t]
                # What v_{k+1} adds to V(s_{k+1}); next_value is the true one, so that it is never the next episode's.
                for t in range(T - 1):
                    goes_on = discount[i, t] > 0.0
                    ahead = np.float64(value[b, t + 1]) + excess[i, t + 1] - np.float64(next_value[b, t])
                    delta[i, t] += discount[i, t] * lam * ahead if goes_on else 0.0
                for t in range(T):
                    advantage[b, t] = min(rho[i, t], rho_bar) * delta[i, t]
        return GOOD

    return v_trace
