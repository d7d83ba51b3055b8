"""offtrace under rlax's names and argument order, for one sequence [K] of JAX arrays each: use `jax.vmap` as with rlax.

    rlax.retrace(q_tm1, q_t, a_tm1, a_t, r_t, discount_t, pi_t, mu_t, lambda_)
    offtrace.adapters.rlax.retrace(q_tm1, q_t, a_tm1, a_t, r_t, discount_t, pi_t, mu_t, lambda_)

and `q_errors(trace, …)` takes any trace in the place of Retrace. Index k of the arrays …_tm1 is step k; index k of the arrays
…_t is step k+1, or what happened between them; those of the last step are not used. What is added to rlax is given by name only.
Where this differs from rlax:

- no ε is added to μ, unless `eps` is given;
- an episode that was cut inside a sequence, by a time limit, is told by `truncated_t`, which rlax has no word for: without it
  both let traces run on into the next episode. At such a step V-trace's advantage bootstraps from v_t, the true next state's;
- what cannot be is refused: NaN, ρ or c below 0 or infinite, μ = 0, a discount outside of [0, 1]. Inside jit, vmap and grad
  there are no values to look at; there μ = 0 and an impossible ρ give NaN;
- gradients are of reverse mode, and once: `jax.jvp` and a gradient of a gradient are refused.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from offtrace._shared.extras import install

try:
    import jax.numpy as jnp
    from jax import Array
    from jax.typing import ArrayLike
except ModuleNotFoundError as error:
    raise ImportError(f"offtrace.adapters.rlax needs JAX ({error}): {install('jax')}") from None

from offtrace.adapters.rlax_distributions import (
    categorical_double_q_learning,
    categorical_l2_project,
    categorical_q_learning,
    categorical_td_learning,
    quantile_expected_sarsa,
    quantile_q_learning,
    quantile_regression_loss,
)
from offtrace.adapters.rlax_returns import (
    after_first,
    by_step,
    discounted_returns,
    ends,
    expected,
    general_off_policy_returns_from_action_values,
    general_off_policy_returns_from_q_and_v,
    importance_corrected_td_errors,
    lambda_returns,
    n_step_bootstrapped_returns,
    possible,
    sequences,
    taken,
    truncated_generalized_advantage_estimation,
)
from offtrace.adapters.rlax_vtrace import (
    VTraceOutput,
    leaky_vtrace,
    leaky_vtrace_td_error_and_advantage,
    vtrace,
    vtrace_td_error_and_advantage,
)
from offtrace.returns.api import targets
from offtrace.traces import Rule

__all__ = [
    "VTraceOutput",
    "categorical_double_q_learning",
    "categorical_l2_project",
    "categorical_q_learning",
    "categorical_td_learning",
    "discounted_returns",
    "general_off_policy_returns_from_action_values",
    "general_off_policy_returns_from_q_and_v",
    "importance_corrected_td_errors",
    "lambda_returns",
    "leaky_vtrace",
    "leaky_vtrace_td_error_and_advantage",
    "n_step_bootstrapped_returns",
    "q_errors",
    "q_lambda",
    "quantile_expected_sarsa",
    "quantile_q_learning",
    "quantile_regression_loss",
    "retrace",
    "retrace_continuous",
    "sarsa_lambda",
    "td_lambda",
    "truncated_generalized_advantage_estimation",
    "vtrace",
    "vtrace_td_error_and_advantage",
]


def q_errors(
    trace: Rule,
    q_tm1: ArrayLike,
    q_t: ArrayLike,
    a_tm1: ArrayLike,
    a_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    pi_t: ArrayLike,
    mu_t: ArrayLike | None = None,
    *,
    eps: ArrayLike = 0.0,
    stop_target_gradients: bool = True,
    truncated_t: ArrayLike | None = None,
) -> Array:
    """Return target_k − q_tm1[k, a_tm1[k]] for any trace. `mu_t` [K], μ of a_t, may be left out if the trace needs none.

    The values q_tm1 and q_t and the policy pi_t are [K, actions]; everything else is [K]. A trace that asks which actions are
    greedy is told where a_t maximises q_t, whatever π is.

    >>> import offtrace as ot
    >>> q, pi = jnp.zeros((2, 2)), jnp.array([[0.25, 0.75], [0.5, 0.5]])
    >>> taken, following = jnp.array([0, 1]), jnp.array([1, 0])
    >>> reward, discount, mu = jnp.array([1.0, 2.0]), jnp.array([0.5, 0.0]), jnp.array([0.5, 0.5])
    >>> q_errors(ot.Retrace(lam=1.0), q, q, taken, following, reward, discount, pi, mu).tolist()
    [2.0, 2.0]
    """
    r_t, discount_t = sequences(r_t=r_t, discount_t=discount_t)
    q_taken = taken("q_t", q_t, a_t)
    target = targets(
        trace,
        reward=r_t,
        next_value=expected(pi_t, q_t),
        gamma=discount_t,
        **ends(r_t, truncated_t),
        q=after_first(q_taken[:-1]),
        greedy=after_first((q_taken == jnp.max(jnp.asarray(q_t), axis=-1))[:-1]),
        log_pi=after_first(jnp.log(taken("pi_t", pi_t, a_t)[:-1])),
        log_mu=None if mu_t is None else after_first(jnp.log(jnp.asarray(mu_t) + eps)[:-1]),
        differentiable=not stop_target_gradients,
    )
    return target - taken("q_tm1", q_tm1, a_tm1)


def retrace(
    q_tm1: ArrayLike,
    q_t: ArrayLike,
    a_tm1: ArrayLike,
    a_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    pi_t: ArrayLike,
    mu_t: ArrayLike,
    lambda_: ArrayLike,
    eps: ArrayLike = 0.0,
    stop_target_gradients: bool | Array = True,
    *,
    truncated_t: ArrayLike | None = None,
) -> Array:
    """`rlax.retrace`: the errors [K] of Retrace(λ), c_t = λ_t min(1, π/μ); λ is a number or [K].

    The shapes are those of `q_errors`, which shows an example.

    >>> q, reward, discount = jnp.zeros((2, 2)), jnp.array([1.0, 2.0]), jnp.array([0.5, 0.0])
    >>> taken, following = jnp.array([0, 1]), jnp.array([1, 0])
    >>> pi, mu = jnp.array([[0.25, 0.75], [0.5, 0.5]]), jnp.array([0.5, 0.5])
    >>> retrace(q, q, taken, following, reward, discount, pi, mu, lambda_=0.5).tolist()
    [1.5, 2.0]
    """
    r_t, mu_t = sequences(r_t=r_t, mu_t=mu_t)
    mu = mu_t[:-1] + eps
    mu = possible("mu_t", mu, (mu > 0) & (mu < jnp.inf), "an action that was taken has a finite probability above 0")
    c_t = jnp.minimum(1.0, taken("pi_t", pi_t, a_t)[:-1] / mu) * by_step("lambda_", lambda_, r_t)[:-1]
    target = general_off_policy_returns_from_action_values(
        q_t, a_t, r_t, discount_t, jnp.append(c_t, 0), pi_t, stop_target_gradients, truncated_t=truncated_t
    )
    return target - taken("q_tm1", q_tm1, a_tm1)


def retrace_continuous(
    q_tm1: ArrayLike,
    q_t: ArrayLike,
    v_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    log_rhos: ArrayLike,
    lambda_: ArrayLike,
    stop_target_gradients: bool | Array = True,
    *,
    truncated_t: ArrayLike | None = None,
) -> Array:
    """`rlax.retrace_continuous`: the errors of Retrace(λ) from log ρ. q_t and log_rhos are [K − 1]; λ is a number or [K − 1].

    >>> q, reward, discount = jnp.zeros(2), jnp.array([1.0, 2.0]), jnp.array([0.5, 0.0])
    >>> retrace_continuous(q, q[1:], q, reward, discount, log_rhos=jnp.zeros(1), lambda_=0.5).tolist()
    [1.5, 2.0]
    """
    q_tm1, r_t, log_rhos = sequences(2, q_tm1=q_tm1, r_t=r_t, log_rhos=log_rhos)
    log_rhos = possible("log_rhos", log_rhos, log_rhos < jnp.inf, "log π/μ is a number below infinity")
    c_t = jnp.exp(jnp.minimum(log_rhos, 0)) * by_step("lambda_", lambda_, log_rhos)
    target = general_off_policy_returns_from_q_and_v(
        q_t, v_t, r_t, discount_t, c_t, stop_target_gradients, truncated_t=truncated_t
    )
    return target - q_tm1


def td_lambda(
    v_tm1: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    v_t: ArrayLike,
    lambda_: ArrayLike,
    stop_target_gradients: bool | Array = True,
    *,
    truncated_t: ArrayLike | None = None,
) -> Array:
    """`rlax.td_lambda`: the λ-return less v_tm1.

    >>> reward, discount = jnp.array([1.0, 2.0]), jnp.array([0.5, 0.0])
    >>> td_lambda(jnp.zeros(2), reward, discount, jnp.zeros(2), lambda_=0.5).tolist()
    [1.5, 2.0]
    """
    v_tm1, r_t = sequences(v_tm1=v_tm1, r_t=r_t)
    return lambda_returns(r_t, discount_t, v_t, lambda_, stop_target_gradients, truncated_t=truncated_t) - v_tm1


def sarsa_lambda(
    q_tm1: ArrayLike,
    a_tm1: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    q_t: ArrayLike,
    a_t: ArrayLike,
    lambda_: ArrayLike,
    stop_target_gradients: bool | Array = True,
    *,
    truncated_t: ArrayLike | None = None,
) -> Array:
    """`rlax.sarsa_lambda`: the λ-return that bootstraps from q of the action taken.

    >>> q, reward, discount = jnp.zeros((2, 2)), jnp.array([1.0, 2.0]), jnp.array([0.5, 0.0])
    >>> taken, following = jnp.array([0, 1]), jnp.array([1, 0])
    >>> sarsa_lambda(q, taken, reward, discount, q, following, lambda_=0.5).tolist()
    [1.5, 2.0]
    """
    return td_lambda(
        taken("q_tm1", q_tm1, a_tm1), r_t, discount_t, taken("q_t", q_t, a_t), lambda_, stop_target_gradients,
        truncated_t=truncated_t,
    )  # fmt: skip


def q_lambda(
    q_tm1: ArrayLike,
    a_tm1: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    q_t: ArrayLike,
    lambda_: ArrayLike,
    stop_target_gradients: bool | Array = True,
    *,
    truncated_t: ArrayLike | None = None,
) -> Array:
    """`rlax.q_lambda`: the λ-return that bootstraps from max q, Peng's Q(λ). With λ = 0 at actions not greedy it is Watkins'.

    >>> q, reward, discount = jnp.zeros((2, 2)), jnp.array([1.0, 2.0]), jnp.array([0.5, 0.0])
    >>> taken, following = jnp.array([0, 1]), jnp.array([1, 0])
    >>> q_lambda(q, taken, reward, discount, q, lambda_=0.5).tolist()
    [1.5, 2.0]
    """
    v_t = jnp.max(jnp.asarray(q_t), axis=-1)
    return td_lambda(
        taken("q_tm1", q_tm1, a_tm1), r_t, discount_t, v_t, lambda_, stop_target_gradients, truncated_t=truncated_t
    )
