"""V-trace: targets and advantages for state values, correct where an episode is cut inside a row."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from offtrace.returns.array_kinds import backend_of
from offtrace.returns.layouts import batch_first
from offtrace.returns.numpy import compiled_pass, reverse_recursion
from offtrace.returns.numpy.numpy_backend import by_step, scratch
from offtrace.returns.numpy.scalar_math import LARGEST_LOG, exp
from offtrace.returns.numpy.td_error_rows import td_errors
from offtrace.traces.base import number
from offtrace.trajectory import check as check_arrays
from offtrace.trajectory import explain_bad_value


class StateTargets(NamedTuple):
    """What `state_targets` returns."""

    target: Any
    """v_k, the regression target for V(s_k)."""
    advantage: Any
    """ρ̄_k (r_k + γ_k v_{k+1} − V_k), the weight of a policy gradient. GAE's is `target − value`: see `state_targets`."""


def state_targets(
    *,
    reward: Any,
    value: Any,
    next_value: Any,
    terminated: Any,
    truncated: Any,
    log_pi: Any,
    log_mu: Any,
    gamma: Any,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    valid: Any = None,
    time_major: Any = None,
    differentiable: Any = False,
    check: Any = None,
) -> StateTargets:
    """V-trace (Espeholt et al. 2018, IMPALA, equation 1). `value` is V(s_t), `next_value` V of the true next state.

    v_k = V_k + Σ_t (γ_k ··· γ_{t-1}) (c_k ··· c_{t-1}) ρ̄_t δ_t,   c = λ min(c_bar, ρ),   ρ̄ = min(rho_bar, ρ)

    It uses c and ρ̄ of the start itself, unlike the traces on action values. Its fixed point is the value of a policy between μ
    and π, and of π itself only where rho_bar never acts. In the advantage, v_{k+1} is (1−λ) V(s_{k+1}) + λ v_{k+1}, and
    V(s_{k+1}) at the true next state where the episode is truncated or the row ends: never the next episode's. Kinds of arrays,
    layouts, `differentiable` and, for PyTorch, `check` are those of `targets`.

    With ρ = 1 the target is that of GAE(λ), and GAE's advantage is `target − value`. V-trace's advantage is the same number only
    where next_value[k] = value[k+1] inside an episode: it holds γ_k λ (value[k+1] − next_value[k]) more, which is not 0 where
    `next_value` comes from another network than `value`.
    """
    lam = number("lam", lam, 0.0, 1.0)
    rho_bar, c_bar = (number(n, bound, 0.0, np.inf) for n, bound in (("rho_bar", rho_bar), ("c_bar", c_bar)))
    given = {"reward": reward, "value": value, "next_value": next_value, "log_pi": log_pi, "log_mu": log_mu}
    for name, array in given.items():
        if array is None:
            raise TypeError(f"{name} is missing: V-trace needs it")
    arrays = {**given, "terminated": terminated, "truncated": truncated, "gamma": gamma, "valid": valid}
    backend, numbers = backend_of(arrays), (lam, rho_bar, c_bar)
    _, arrays, restore = batch_first(None, arrays, time_major)
    if backend == "torch":
        from offtrace.returns.torch import torch_backend

        made = torch_backend.state_targets(_on_host, numbers, check, arrays, differentiable)
    elif backend == "jax":
        from offtrace.returns.jax import jax_backend

        made = jax_backend.state_targets(*numbers, differentiable=differentiable, **arrays)
    elif differentiable:
        raise TypeError("differentiable=True needs PyTorch tensors or JAX arrays: NumPy has no gradients")
    else:
        made = _on_host(*numbers, **arrays)
    return StateTargets(*map(restore, made))


def _on_host(lam: float, rho_bar: float, c_bar: float, **arrays: Any) -> tuple[np.ndarray, np.ndarray]:
    """v and the advantage of NumPy arrays, [T] or [B, T]."""
    x = check_arrays(**arrays)
    target, advantage = np.empty(x.terminated.shape, x.dtype), np.empty(x.terminated.shape, x.dtype)
    gamma, gammas, valid = by_step(x)
    read = x.reward, x.q, x.next_value, x.terminated, x.truncated, gamma, gammas, x.log_pi, x.log_mu, valid
    run = compiled_pass.compiled(_v_trace, sys.modules[__name__])
    if run(lam, rho_bar, c_bar, *read, scratch(*x.terminated.shape), target, advantage):
        explain_bad_value(x)
    if x.valid is not None:
        target[~x.valid] = advantage[~x.valid] = 0.0
    return x.restore(target), x.restore(advantage)


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
