"""The functions of rlax's `vtrace.py`. Import them from `adapters.rlax`.

    error_k = ρ̄_k δ_k + γ_k c_k error_{k+1},     δ_k = r_k + γ_k v_{k+1} − v_k

V-trace has ρ̄ = min(clip_rho_threshold, ρ) and c = λ min(1, ρ); the leaky one mixes both with ρ itself. It is the return of the
rewards ρ̄δ without any values, whose c stand one step later.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from offtrace.adapters.rlax_returns import by_step, errors_of, ratios, returns, sequences


class VTraceOutput(NamedTuple):
    """What `vtrace_td_error_and_advantage` returns.

    >>> VTraceOutput._fields
    ('errors', 'pg_advantage', 'q_estimate')
    """

    errors: Array
    """The errors of V-trace, [K]."""
    pg_advantage: Array
    """The advantages for the gradient of the policy, [K]."""
    q_estimate: Array
    """The estimates of Q(s_k, a_k) that the advantages are made of, [K]."""


def vtrace(
    v_tm1: ArrayLike,
    v_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    rho_tm1: ArrayLike,
    lambda_: ArrayLike = 1.0,
    clip_rho_threshold: ArrayLike = 1.0,
    stop_target_gradients: bool | Array = True,
    sample_mask: ArrayLike | None = None,
    *,
    truncated_t: ArrayLike | None = None,
) -> Array:
    """`rlax.vtrace`: the errors [K] of V-trace. λ is a number or [K].

    >>> none, reward, discount = jnp.zeros(2), jnp.array([1.0, 2.0]), jnp.array([0.5, 0.0])
    >>> vtrace(none, none, reward, discount, rho_tm1=jnp.array([0.5, 2.0])).tolist()
    [1.0, 2.0]
    """
    numbers = 1.0, lambda_, clip_rho_threshold, stop_target_gradients, sample_mask
    return leaky_vtrace(v_tm1, v_t, r_t, discount_t, rho_tm1, *numbers, truncated_t=truncated_t)


def leaky_vtrace(
    v_tm1: ArrayLike,
    v_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    rho_tm1: ArrayLike,
    alpha_: float | Array = 1.0,
    lambda_: ArrayLike = 1.0,
    clip_rho_threshold: ArrayLike = 1.0,
    stop_target_gradients: bool | Array = True,
    sample_mask: ArrayLike | None = None,
    *,
    truncated_t: ArrayLike | None = None,
) -> Array:
    """`rlax.leaky_vtrace`: V-trace at α = 1, importance sampling at α = 0.

    >>> none, reward, discount = jnp.zeros(2), jnp.array([1.0, 2.0]), jnp.array([0.5, 0.0])
    >>> leaky_vtrace(none, none, reward, discount, jnp.array([0.5, 2.0]), alpha_=0.5).tolist()
    [1.25, 3.0]
    """
    v_tm1, v_t, r_t, discount_t, rho = sequences(v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, rho_tm1=rho_tm1)
    rho = ratios("rho_tm1", rho)
    c = _clipped(rho, 1.0, alpha_) * by_step("lambda_", lambda_, r_t)
    delta = _clipped(rho, clip_rho_threshold, alpha_) * (r_t + discount_t * v_t - v_tm1)
    if sample_mask is not None:  # a step that does not count adds no error; what comes later passes through unchanged
        counts = _mask(sample_mask, r_t)
        delta, c, discount_t = jnp.where(counts, delta, 0), jnp.where(counts, c, 1), jnp.where(counts, discount_t, 1)
    none = jnp.zeros_like(delta)
    errors = returns(none[:-1], none, delta, discount_t, c[:-1], truncated_t)
    return errors_of(errors, v_tm1, stop_target_gradients)


def vtrace_td_error_and_advantage(
    v_tm1: ArrayLike,
    v_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    rho_tm1: ArrayLike,
    lambda_: ArrayLike = 1.0,
    clip_rho_threshold: ArrayLike = 1.0,
    clip_pg_rho_threshold: ArrayLike = 1.0,
    stop_target_gradients: bool | Array = True,
    sample_mask: ArrayLike | None = None,
    *,
    truncated_t: ArrayLike | None = None,
) -> VTraceOutput:
    """`rlax.vtrace_td_error_and_advantage`: the errors of V-trace, with its advantages and action values.

    >>> none, reward, discount = jnp.zeros(2), jnp.array([1.0, 2.0]), jnp.array([0.5, 0.0])
    >>> vtrace_td_error_and_advantage(none, none, reward, discount,
    ...                               jnp.array([0.5, 2.0])).pg_advantage.tolist()
    [1.0, 2.0]
    """
    numbers = 1.0, lambda_, clip_rho_threshold, clip_pg_rho_threshold, stop_target_gradients, sample_mask
    return leaky_vtrace_td_error_and_advantage(v_tm1, v_t, r_t, discount_t, rho_tm1, *numbers, truncated_t=truncated_t)


def leaky_vtrace_td_error_and_advantage(
    v_tm1: ArrayLike,
    v_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    rho_tm1: ArrayLike,
    alpha: float | Array = 1.0,
    lambda_: ArrayLike = 1.0,
    clip_rho_threshold: ArrayLike = 1.0,
    clip_pg_rho_threshold: ArrayLike = 1.0,
    stop_target_gradients: bool | Array = True,
    sample_mask: ArrayLike | None = None,
    *,
    truncated_t: ArrayLike | None = None,
) -> VTraceOutput:
    """`rlax.leaky_vtrace_td_error_and_advantage`: where `truncated_t` says so, the advantage bootstraps from v_t.

    >>> none, reward, discount = jnp.zeros(2), jnp.array([1.0, 2.0]), jnp.array([0.5, 0.0])
    >>> leaky_vtrace_td_error_and_advantage(none, none, reward, discount, jnp.array([0.5, 2.0]),
    ...                                     alpha=0.5).errors.tolist()
    [1.25, 3.0]
    """
    numbers = alpha, lambda_, clip_rho_threshold, stop_target_gradients, sample_mask
    errors = leaky_vtrace(v_tm1, v_t, r_t, discount_t, rho_tm1, *numbers, truncated_t=truncated_t)
    v_tm1, v_t, r_t, discount_t, rho = map(jnp.asarray, (v_tm1, v_t, r_t, discount_t, rho_tm1))
    λ = by_step("lambda_", lambda_, r_t)[:-1]
    ahead = jnp.append(λ * (errors + v_tm1)[1:] + (1 - λ) * v_tm1[1:], v_t[-1:])
    if truncated_t is not None:  # there v_tm1 of the next step belongs to the next episode
        ahead = jnp.where(jnp.asarray(truncated_t) != 0, v_t, ahead)
    q_estimate = r_t + discount_t * ahead
    return VTraceOutput(errors, _clipped(rho, clip_pg_rho_threshold, alpha) * (q_estimate - v_tm1), q_estimate)


def _clipped(rho: Array, threshold: ArrayLike, alpha: float | Array) -> Array:
    """Return min(threshold, ρ) at α = 1 and ρ itself at α = 0, else a mixture of both."""
    return (1 - alpha) * rho + alpha * jnp.minimum(threshold, rho)


def _mask(sample_mask: ArrayLike, like: Array) -> Array:
    mask = jnp.asarray(sample_mask)
    if mask.dtype != bool or mask.shape != like.shape:
        raise TypeError(
            f"sample_mask must be boolean [K], True where a step counts, got {mask.dtype} of shape {mask.shape}; "
            "an episode that was cut is told by truncated_t=…"
        )
    return mask
