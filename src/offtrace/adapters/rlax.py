"""offtrace under rlax's names and argument order, for one sequence [K] of JAX arrays each: use `jax.vmap` as with rlax.

    rlax.retrace(q_tm1, q_t, a_tm1, a_t, r_t, discount_t, pi_t, mu_t, lambda_)
    offtrace.adapters.rlax.retrace(q_tm1, q_t, a_tm1, a_t, r_t, discount_t, pi_t, mu_t, lambda_)

and `q_errors(trace, …)` takes any trace in the place of Retrace. Index k of the arrays …_tm1 is step k; index k of the arrays
…_t is step k+1, or what happened between them; those of the last step are not used. Where this differs from rlax:

- no ε is added to μ, unless `eps` is given;
- an episode that was cut inside a sequence, by a time limit, is told by `truncated_t`, which rlax has no word for: without it
  both let traces run on into the next episode. rlax's advantage also bootstraps from v_tm1 of the next step, which there
  belongs to the next episode; here it is always v_t;
- rlax's `sample_mask`, which lets traces pass over steps, is not taken.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from offtrace.returns.calls import targets
from offtrace.returns.given_c import targets_from_c
from offtrace.returns.state_values import state_targets
from offtrace.traces import Retrace, Rule


class VTraceOutput(NamedTuple):
    """What `vtrace_td_error_and_advantage` returns."""

    errors: Any
    pg_advantage: Any
    q_estimate: Any


def q_errors(
    trace: Rule,
    q_tm1: Any,
    q_t: Any,
    a_tm1: Any,
    a_t: Any,
    r_t: Any,
    discount_t: Any,
    pi_t: Any,
    mu_t: Any = None,
    stop_target_gradients: bool = True,
    truncated_t: Any = None,
    eps: float = 0.0,
) -> Any:
    """target_k − q_tm1[k, a_tm1[k]] for any trace. `mu_t` [K], μ of a_t, may be left out where the trace needs none."""
    log_pi = _from_last(jnp.log(_taken(pi_t, a_t)))
    target = targets(
        trace,
        **_steps(r_t, (pi_t * q_t).sum(axis=-1), discount_t, truncated_t),
        q=_from_last(_taken(q_t, a_t)),
        log_pi=log_pi,
        log_mu=None if mu_t is None else _from_last(jnp.log(mu_t + eps)),
        differentiable=not stop_target_gradients,
    )
    return target - _taken(q_tm1, a_tm1)


def retrace(
    q_tm1: Any,
    q_t: Any,
    a_tm1: Any,
    a_t: Any,
    r_t: Any,
    discount_t: Any,
    pi_t: Any,
    mu_t: Any,
    lambda_: Any,
    eps: float = 0.0,
    stop_target_gradients: bool = True,
    truncated_t: Any = None,
) -> Any:
    """`rlax.retrace`."""
    return q_errors(
        Retrace(lambda_), q_tm1, q_t, a_tm1, a_t, r_t, discount_t, pi_t, mu_t, stop_target_gradients, truncated_t, eps
    )


def retrace_continuous(
    q_tm1: Any,
    q_t: Any,
    v_t: Any,
    r_t: Any,
    discount_t: Any,
    log_rhos: Any,
    lambda_: Any,
    stop_target_gradients: bool = True,
    truncated_t: Any = None,
) -> Any:
    """`rlax.retrace_continuous`: q_t and log_rhos have K − 1 steps, v_t has K; λ is a number."""
    target = targets(
        Retrace(lambda_),
        **_steps(r_t, v_t, discount_t, truncated_t),
        q=_after_first(q_t),
        log_pi=_after_first(log_rhos),
        log_mu=jnp.zeros_like(r_t),
        differentiable=not stop_target_gradients,
    )
    return target - q_tm1


def general_off_policy_returns_from_q_and_v(
    q_t: Any,
    v_t: Any,
    r_t: Any,
    discount_t: Any,
    c_t: Any,
    stop_target_gradients: bool = False,
    truncated_t: Any = None,
) -> Any:
    """`rlax.general_off_policy_returns_from_q_and_v`: any given c_t. q_t and c_t have K − 1 steps."""
    return targets_from_c(
        _after_first(c_t),
        **_steps(r_t, v_t, discount_t, truncated_t),
        q=_after_first(q_t),
        differentiable=not stop_target_gradients,
    )


def vtrace(
    v_tm1: Any,
    v_t: Any,
    r_t: Any,
    discount_t: Any,
    rho_tm1: Any,
    lambda_: Any = 1.0,
    clip_rho_threshold: float = 1.0,
    stop_target_gradients: bool = True,
    truncated_t: Any = None,
) -> Any:
    """`rlax.vtrace`: λ is a number, and no gradient goes through the targets."""
    if not stop_target_gradients:
        raise TypeError("stop_target_gradients=False is not offered for V-trace: its targets have no gradient here")
    target, _ = state_targets(
        **_steps(r_t, v_t, discount_t, truncated_t),
        value=jnp.asarray(v_tm1),
        log_pi=jnp.log(rho_tm1),
        log_mu=jnp.zeros_like(rho_tm1),
        lam=lambda_,
        rho_bar=clip_rho_threshold,
    )
    return target - v_tm1


def vtrace_td_error_and_advantage(
    v_tm1: Any,
    v_t: Any,
    r_t: Any,
    discount_t: Any,
    rho_tm1: Any,
    lambda_: Any = 1.0,
    clip_rho_threshold: float = 1.0,
    clip_pg_rho_threshold: float = 1.0,
    stop_target_gradients: bool = True,
    truncated_t: Any = None,
) -> VTraceOutput:
    """`rlax.vtrace_td_error_and_advantage`; where v_t[k] is v_tm1[k + 1] throughout, they are equal."""
    errors = vtrace(
        v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_, clip_rho_threshold, stop_target_gradients, truncated_t
    )
    cut = jnp.zeros(r_t.shape, bool) if truncated_t is None else truncated_t != 0
    cut = cut.at[-1].set(True)
    later = jax.lax.stop_gradient(jnp.roll(errors + v_tm1, -1))
    ahead = jnp.where(cut, v_t, lambda_ * later + (1.0 - lambda_) * v_t)
    q_estimate = r_t + discount_t * ahead
    return VTraceOutput(errors, jnp.minimum(clip_pg_rho_threshold, rho_tm1) * (q_estimate - v_tm1), q_estimate)


def _steps(r_t: Any, v_t: Any, discount_t: Any, truncated_t: Any) -> dict[str, Any]:
    """Rewards and ends: rlax tells an end by a discount of 0."""
    r_t, v_t = jnp.asarray(r_t), jnp.asarray(v_t)  # rlax takes NumPy arrays beside JAX's
    none = jnp.zeros(r_t.shape, bool)
    return {
        "reward": r_t,
        "next_value": v_t,
        "gamma": jnp.asarray(discount_t) if jnp.ndim(discount_t) else discount_t,
        "terminated": none,
        "truncated": none if truncated_t is None else jnp.asarray(truncated_t),
    }


def _taken(values: Any, actions: Any) -> Any:
    return jnp.take_along_axis(values, actions[:, None], axis=1)[:, 0]


def _after_first(x: Any) -> Any:
    """K − 1 values for steps 1 … K−1, after a 0 for step 0. There q only goes out again, and ρ is not used."""
    return jnp.concatenate([jnp.zeros_like(x[:1]), x])


def _from_last(x: Any) -> Any:
    return _after_first(x[:-1])
