"""V-trace on NumPy arrays: one compiled pass from the user's arrays to targets and advantages."""

from __future__ import annotations

import sys

import numpy as np
from numba.extending import register_jitable

from offtrace.returns.numpy import compiled_pass, reverse_recursion
from offtrace.returns.numpy.scalar_math import LARGEST_LOG, exp
from offtrace.returns.numpy.scratch_rows import by_step, scratch
from offtrace.returns.numpy.td_error_rows import td_errors
from offtrace.trajectory import Trajectory


def attempt(numbers: tuple[float, float, float], x: Trajectory) -> tuple[np.ndarray, np.ndarray] | None:
    """v and the advantage [B, T] for λ, ρ̄ and c̄; None where a value is bad, which `explain_bad_value` then names."""
    target, advantage = np.empty(x.terminated.shape, x.dtype), np.empty(x.terminated.shape, x.dtype)
    gamma, gammas, valid = by_step(x)
    read = x.reward, x.q, x.next_value, x.terminated, x.truncated, gamma, gammas, x.log_pi, x.log_mu, valid
    run = compiled_pass.compiled(_v_trace, sys.modules[__name__])
    bad = run(*map(float, numbers), *read, scratch(*x.terminated.shape), target, advantage)
    return None if bad else (target, advantage)


@register_jitable(error_model="numpy", fastmath={"contract"})
def _v_trace(
    lam, rho_bar, c_bar, reward, value, next_value, terminated, truncated, gamma, gammas, log_pi, log_mu, valid,
    scratch, target, advantage,
):  # fmt: skip
    """v_k − V_k = ρ̄_k δ_k + γ_k c_k (v_{k+1} − V_{k+1}), in blocks of rows; returns whether a value was bad."""
    B, T = reward.shape
    delta, discount, rho, clipped, excess, gc = (
        scratch[0], scratch[1], scratch[2], scratch[3], scratch[4], scratch[5],
    )  # fmt: skip
    γ, ok = scratch[6], np.ones((scratch.shape[1], T), np.bool_)
    γ[:] = gamma
    rows = delta.shape[0]
    clipped[:, T:] = 0.0  # nothing happens in the columns beyond T
    gc[:, T:] = 0.0
    bad = False
    for b0 in range(0, B, rows):
        n = min(rows, B - b0)
        bad |= td_errors(
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
            break
        reverse_recursion.sweep(clipped[:n], gc[:n], 1.0, 0.0, 0.0, excess[:n])
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
    return bad
