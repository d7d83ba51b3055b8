"""Stoix's Retrace for batches under its name and with its arguments, and with any trace in its place."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from offtrace._shared.extras import install

try:
    import jax.numpy as jnp
    from jax import Array
    from jax.typing import ArrayLike
except ModuleNotFoundError as error:
    raise ImportError(f"offtrace.adapters.stoix needs JAX ({error}): {install('jax')}") from None

from offtrace.adapters.rlax_returns import stopped
from offtrace.returns.api import targets, targets_from_c
from offtrace.traces import Rule


def batch_retrace_continuous(
    q_tm1: ArrayLike,
    q_t: ArrayLike,
    v_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    log_rhos: ArrayLike,
    lambda_: ArrayLike,
    stop_target_gradients: bool | Array = True,
    *,
    trace: Rule | None = None,
) -> Array:
    """`stoix.utils.multistep.batch_retrace_continuous`: target − q_tm1 [B, K]; q_t and log_rhos are [B, K − 1].

    c_t = λ min(1, ρ_t), or with a `trace`, which then has a λ of its own, that rule's coefficients; it may read ρ, not π or μ.

    >>> q, reward, discount = jnp.zeros((1, 2)), jnp.array([[1.0, 2.0]]), jnp.array([[0.5, 0.0]])
    >>> batch_retrace_continuous(q, q[:, 1:], q, reward, discount, jnp.zeros((1, 1)), lambda_=0.5).tolist()
    [[1.5, 2.0]]
    """
    q_tm1, q_t, v_t, r_t, discount_t, log_rhos = map(jnp.asarray, (q_tm1, q_t, v_t, r_t, discount_t, log_rhos))
    first = jnp.zeros_like(r_t[:, :1])
    no = jnp.zeros(r_t.shape, bool)
    given = {
        "reward": r_t, "q": jnp.concatenate([first, q_t], 1), "next_value": v_t, "gamma": discount_t,
        "terminated": no, "truncated": no, "differentiable": True,
    }  # fmt: skip
    if trace is None:
        c_t = jnp.minimum(1.0, jnp.exp(log_rhos)) * lambda_
        target = targets_from_c(jnp.concatenate([first, c_t], 1), **given)
    else:
        log_pi = jnp.concatenate([first, log_rhos], 1)
        target = targets(trace, **given, log_pi=log_pi, log_mu=jnp.zeros_like(log_pi))
    return stopped(target, stop_target_gradients) - q_tm1
