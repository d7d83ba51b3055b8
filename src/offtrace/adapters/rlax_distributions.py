"""rlax's losses of distributions of returns, of one transition. Import them from `adapters.rlax`; use `jax.vmap` as with rlax.

Their targets are those of `offtrace.distributional_targets` and `quantile_targets` at one step, which take any trace.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from offtrace.adapters.rlax_returns import stopped
from offtrace.returns.encodings import two_hot


def categorical_l2_project(z_p: ArrayLike, probs: ArrayLike, z_q: ArrayLike) -> Array:
    """`rlax.categorical_l2_project`: masses at z_p [M], shared by their neighbours on the support z_q [N].

    >>> categorical_l2_project(jnp.array([0.5, 9.0]), jnp.array([0.5, 0.5]), jnp.array([0.0, 1.0, 2.0])).tolist()
    [0.25, 0.25, 0.5]
    """
    return jnp.asarray(probs) @ two_hot(jnp.asarray(z_p), jnp.asarray(z_q))


def categorical_td_learning(
    v_atoms_tm1: ArrayLike,
    v_logits_tm1: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    v_atoms_t: ArrayLike,
    v_logits_t: ArrayLike,
    stop_target_gradients: bool | Array = True,
) -> Array:
    """`rlax.categorical_td_learning`: the cross-entropy of v_logits_tm1 [N] from the projection of r + γ v.

    >>> atoms, logits = jnp.array([0.0, 1.0]), jnp.zeros(2)
    >>> round(float(categorical_td_learning(atoms, logits, 1.0, 0.5, atoms, logits)), 4)
    0.6931
    """
    target = categorical_l2_project(r_t + discount_t * jnp.asarray(v_atoms_t), jax.nn.softmax(v_logits_t), v_atoms_tm1)
    return -jnp.sum(stopped(target, stop_target_gradients) * jax.nn.log_softmax(v_logits_tm1))


def categorical_q_learning(
    q_atoms_tm1: ArrayLike,
    q_logits_tm1: ArrayLike,
    a_tm1: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    q_atoms_t: ArrayLike,
    q_logits_t: ArrayLike,
    stop_target_gradients: bool | Array = True,
) -> Array:
    """`rlax.categorical_q_learning`: the same for the action with the largest mean; logits are [A, N].

    >>> atoms, logits = jnp.array([0.0, 1.0]), jnp.zeros((3, 2))
    >>> round(float(categorical_q_learning(atoms, logits, 0, 1.0, 0.5, atoms, logits)), 4)
    0.6931
    """
    q_t = jax.nn.softmax(q_logits_t) @ jnp.asarray(q_atoms_t)
    return categorical_double_q_learning(
        q_atoms_tm1, q_logits_tm1, a_tm1, r_t, discount_t, q_atoms_t, q_logits_t, q_t, stop_target_gradients
    )


def categorical_double_q_learning(
    q_atoms_tm1: ArrayLike,
    q_logits_tm1: ArrayLike,
    a_tm1: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    q_atoms_t: ArrayLike,
    q_logits_t: ArrayLike,
    q_t_selector: ArrayLike,
    stop_target_gradients: bool | Array = True,
) -> Array:
    """`rlax.categorical_double_q_learning`: the same for the action that q_t_selector [A] prefers.

    >>> atoms, logits = jnp.array([0.0, 1.0]), jnp.zeros((3, 2))
    >>> round(float(categorical_double_q_learning(atoms, logits, 0, 1.0, 0.5, atoms, logits, jnp.zeros(3))), 4)
    0.6931
    """
    logits_t = jnp.asarray(q_logits_t)[jnp.argmax(jnp.asarray(q_t_selector))]
    logits_tm1 = jnp.asarray(q_logits_tm1)[a_tm1]
    return categorical_td_learning(q_atoms_tm1, logits_tm1, r_t, discount_t, q_atoms_t, logits_t, stop_target_gradients)


def quantile_regression_loss(
    dist_src: ArrayLike,
    tau_src: ArrayLike,
    dist_target: ArrayLike,
    huber_param: float = 0.0,
    stop_target_gradients: bool | Array = True,
) -> Array:
    """`rlax.quantile_regression_loss`: Σ_i mean_j |τ_i − 1{y_j < θ_i}| ℓ(y_j − θ_i), ℓ the Huber loss, or | · |.

    >>> float(quantile_regression_loss(jnp.array([0.0]), jnp.array([0.5]), jnp.array([1.0, -1.0])))
    0.5
    """
    δ = jnp.asarray(dist_target)[None] - jnp.asarray(dist_src)[:, None]
    below = stopped(jnp.where(δ < 0, 1.0, 0.0), stop_target_gradients)
    size = jnp.abs(δ)
    if huber_param > 0:
        inner = jnp.minimum(size, huber_param)
        size = 0.5 * inner**2 + huber_param * (size - inner)
    return jnp.sum(jnp.mean(jnp.abs(jnp.asarray(tau_src)[:, None] - below) * size, -1))


def quantile_q_learning(
    dist_q_tm1: ArrayLike,
    tau_q_tm1: ArrayLike,
    a_tm1: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    dist_q_t_selector: ArrayLike,
    dist_q_t: ArrayLike,
    huber_param: float = 0.0,
    stop_target_gradients: bool | Array = True,
) -> Array:
    """`rlax.quantile_q_learning`: quantiles [N, A] regress to r + γ quantiles of the action whose selector has the largest mean.

    >>> q, tau = jnp.zeros((1, 2)), jnp.array([0.5])
    >>> float(quantile_q_learning(q, tau, 0, 1.0, 0.5, q, q))
    0.5
    """
    best = jnp.argmax(jnp.mean(jnp.asarray(dist_q_t_selector), 0))
    policy = jax.nn.one_hot(best, jnp.asarray(dist_q_t).shape[1])
    return quantile_expected_sarsa(
        dist_q_tm1, tau_q_tm1, a_tm1, r_t, discount_t, dist_q_t, policy, huber_param, stop_target_gradients
    )


def quantile_expected_sarsa(
    dist_q_tm1: ArrayLike,
    tau_q_tm1: ArrayLike,
    a_tm1: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    dist_q_t: ArrayLike,
    probs_a_t: ArrayLike,
    huber_param: float = 0.0,
    stop_target_gradients: bool | Array = True,
) -> Array:
    """`rlax.quantile_expected_sarsa`: the same, weighed by the probabilities [A] of the actions.

    >>> q, tau = jnp.zeros((1, 2)), jnp.array([0.5])
    >>> float(quantile_expected_sarsa(q, tau, 0, 1.0, 0.5, q, jnp.array([0.5, 0.5])))
    0.5
    """
    source = jnp.asarray(dist_q_tm1)[:, a_tm1]
    target = stopped(jnp.asarray(r_t + discount_t * jnp.asarray(dist_q_t)), stop_target_gradients)

    def of_action(target: Array) -> Array:
        return quantile_regression_loss(source, tau_q_tm1, target, huber_param)

    by_action: Array = jax.vmap(of_action, in_axes=1)(target)
    return by_action @ stopped(jnp.asarray(probs_a_t), stop_target_gradients)
