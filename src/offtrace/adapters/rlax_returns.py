"""The functions of rlax's `multistep.py`, and what all functions under rlax's names share. Import them from `adapters.rlax`.

Every one of them is the general off-policy return of given coefficients c,

    G_k = r_k + γ_k [v_{k+1} + c_{k+1} (G_{k+1} − q_{k+1})],     G_{K-1} = r_{K-1} + γ_{K-1} v_K

which is `offtrace.targets_from_c`; with q = v and c = λ it is the λ-return. An array x_t holds x_{k+1} at index k.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import TypedDict

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike

from offtrace.returns.api import targets_from_c


def lambda_returns(
    r_t: ArrayLike,
    discount_t: ArrayLike,
    v_t: ArrayLike,
    lambda_: ArrayLike = 1.0,
    stop_target_gradients: bool | Array = False,
    *,
    truncated_t: ArrayLike | None = None,
) -> Array:
    """`rlax.lambda_returns`: G_k = r_k + γ_k [(1−λ_{k+1}) v_{k+1} + λ_{k+1} G_{k+1}]; λ is a number or [K].

    >>> reward, discount = jnp.array([1.0, 2.0, 4.0]), jnp.array([0.5, 0.5, 0.0])
    >>> value = jnp.array([2.0, 4.0, 0.0])
    >>> lambda_returns(reward, discount, value, lambda_=0.5).tolist()
    [2.5, 4.0, 4.0]
    """
    r_t, discount_t, v_t = sequences(r_t=r_t, discount_t=discount_t, v_t=v_t)
    c_t = by_step("lambda_", lambda_, r_t)[:-1]
    return stopped(returns(v_t[:-1], v_t, r_t, discount_t, c_t, truncated_t), stop_target_gradients)


def n_step_bootstrapped_returns(
    r_t: ArrayLike,
    discount_t: ArrayLike,
    v_t: ArrayLike,
    n: int,
    lambda_t: ArrayLike = 1.0,
    stop_target_gradients: bool | Array = False,
    *,
    truncated_t: ArrayLike | None = None,
) -> Array:
    """`rlax.n_step_bootstrapped_returns`: `lambda_returns` that end after n steps, where they bootstrap from v_{k+n}.

    >>> reward, discount = jnp.array([1.0, 2.0, 4.0]), jnp.array([0.5, 0.5, 0.0])
    >>> value = jnp.array([2.0, 4.0, 0.0])
    >>> n_step_bootstrapped_returns(reward, discount, value, n=2).tolist()
    [3.0, 4.0, 4.0]
    """
    r_t, discount_t, v_t = sequences(r_t=r_t, discount_t=discount_t, v_t=v_t)
    c_t = by_step("lambda_t", lambda_t, r_t)[:-1]
    return stopped(returns(v_t[:-1], v_t, r_t, discount_t, c_t, truncated_t, horizon=n), stop_target_gradients)


def discounted_returns(
    r_t: ArrayLike,
    discount_t: ArrayLike,
    v_t: ArrayLike,
    stop_target_gradients: bool | Array = False,
    *,
    truncated_t: ArrayLike | None = None,
) -> Array:
    """`rlax.discounted_returns`: G_k = r_k + γ_k G_{k+1}; v_t is a number or [K], of which only the last is read.

    >>> reward, discount = jnp.array([1.0, 2.0, 4.0]), jnp.array([0.5, 0.5, 0.0])
    >>> value = jnp.array([2.0, 4.0, 0.0])
    >>> discounted_returns(reward, discount, value).tolist()
    [3.0, 4.0, 4.0]
    """
    r_t, discount_t = sequences(r_t=r_t, discount_t=discount_t)
    return lambda_returns(
        r_t, discount_t, by_step("v_t", v_t, r_t), 1.0, stop_target_gradients, truncated_t=truncated_t
    )


def importance_corrected_td_errors(
    r_t: ArrayLike,
    discount_t: ArrayLike,
    rho_tm1: ArrayLike,
    lambda_: ArrayLike,
    values: ArrayLike,
    stop_target_gradients: bool | Array = False,
) -> Array:
    """rlax's `importance_corrected_td_errors`: ρ_k (G_k − v_k), where c_{k+1} = ρ_{k+1} λ_{k+1}; `values` is [K + 1].

    >>> reward, discount = jnp.array([1.0, 2.0]), jnp.array([0.5, 0.0])
    >>> importance_corrected_td_errors(reward, discount, jnp.array([2.0, 0.5]), 1.0,
    ...                                values=jnp.zeros(3)).tolist()
    [3.0, 1.0]
    """
    values, r_t, discount_t, rho_tm1 = sequences(1, values=values, r_t=r_t, discount_t=discount_t, rho_tm1=rho_tm1)
    rho_tm1, v_tm1, v_t = ratios("rho_tm1", rho_tm1), values[:-1], values[1:]
    c_t = rho_tm1[1:] * by_step("lambda_", lambda_, r_t)[:-1]
    return errors_of(rho_tm1 * (returns(v_t[:-1], v_t, r_t, discount_t, c_t) - v_tm1), v_tm1, stop_target_gradients)


def truncated_generalized_advantage_estimation(
    r_t: ArrayLike,
    discount_t: ArrayLike,
    lambda_: ArrayLike,
    values: ArrayLike,
    stop_target_gradients: bool | Array = False,
) -> Array:
    """`rlax.truncated_generalized_advantage_estimation`: G_k − v_k of the λ-return; `values` is [K + 1].

    >>> reward, discount = jnp.array([1.0, 2.0]), jnp.array([0.5, 0.0])
    >>> truncated_generalized_advantage_estimation(reward, discount, 0.5,
    ...                                            values=jnp.array([0.0, 1.0, 0.0])).tolist()
    [1.75, 1.0]
    """
    values, r_t, discount_t = sequences(1, values=values, r_t=r_t, discount_t=discount_t)
    return stopped(lambda_returns(r_t, discount_t, values[1:], lambda_) - values[:-1], stop_target_gradients)


def general_off_policy_returns_from_action_values(
    q_t: ArrayLike,
    a_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    c_t: ArrayLike,
    pi_t: ArrayLike,
    stop_target_gradients: bool | Array = False,
    *,
    truncated_t: ArrayLike | None = None,
) -> Array:
    """`rlax.general_off_policy_returns_from_action_values`: v_t = Σ_a π q. c_t is [K], and its last one is not used.

    >>> reward, discount = jnp.array([1.0, 2.0, 4.0]), jnp.array([0.5, 0.5, 0.0])
    >>> value = jnp.array([2.0, 4.0, 0.0])
    >>> q, action, pi = jnp.zeros((3, 2)), jnp.array([0, 1, 0]), jnp.full((3, 2), 0.5)
    >>> general_off_policy_returns_from_action_values(q, action, reward, discount, jnp.ones(3),
    ...                                               pi).tolist()
    [3.0, 4.0, 4.0]
    """
    r_t, discount_t, c_t = sequences(r_t=r_t, discount_t=discount_t, c_t=c_t)
    target = returns(taken("q_t", q_t, a_t)[:-1], expected(pi_t, q_t), r_t, discount_t, c_t[:-1], truncated_t)
    return stopped(target, stop_target_gradients)


def general_off_policy_returns_from_q_and_v(
    q_t: ArrayLike,
    v_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    c_t: ArrayLike,
    stop_target_gradients: bool | Array = False,
    *,
    truncated_t: ArrayLike | None = None,
) -> Array:
    """`rlax.general_off_policy_returns_from_q_and_v`: q_t and c_t are [K − 1].

    >>> reward, discount = jnp.array([1.0, 2.0, 4.0]), jnp.array([0.5, 0.5, 0.0])
    >>> value = jnp.array([2.0, 4.0, 0.0])
    >>> general_off_policy_returns_from_q_and_v(jnp.zeros(2), value, reward, discount,
    ...                                         jnp.ones(2)).tolist()
    [5.0, 6.0, 4.0]
    """
    v_t, r_t, discount_t, q_t, c_t = sequences(3, v_t=v_t, r_t=r_t, discount_t=discount_t, q_t=q_t, c_t=c_t)
    return stopped(returns(q_t, v_t, r_t, discount_t, c_t, truncated_t), stop_target_gradients)


def returns(
    q_t: Array,
    v_t: Array,
    r_t: Array,
    discount_t: Array,
    c_t: Array,
    truncated_t: ArrayLike | None = None,
    horizon: int | None = None,
) -> Array:
    """Return G [K]; q_t and c_t are [K − 1]. Half precision is computed in single."""
    real = {"q": after_first(q_t), "next_value": v_t, "reward": r_t, "gamma": discount_t, "c": after_first(c_t)}
    dtype = jnp.result_type(*real.values())
    real = {name: array.astype(jnp.promote_types(dtype, jnp.float32)) for name, array in real.items()}
    G = targets_from_c(real.pop("c"), **real, **ends(r_t, truncated_t), horizon=horizon, differentiable=True)
    return G.astype(dtype)


class Ends(TypedDict):
    """The flags that `targets` takes."""

    terminated: Array
    truncated: Array


def ends(r_t: Array, truncated_t: ArrayLike | None) -> Ends:
    """Return the flags of the steps: none terminates, since rlax tells an episode's end by a discount of 0."""
    none = jnp.zeros(r_t.shape, bool)
    return {"terminated": none, "truncated": none if truncated_t is None else jnp.asarray(truncated_t)}


def after_first(x: Array) -> Array:
    """Put a 0 for step 0 before the K − 1 values of steps 1 … K−1. At step 0 q cancels, and c is not used."""
    return jnp.pad(x, (1, 0))


def sequences(longer: int = 0, **arrays: ArrayLike) -> list[Array]:
    """Check that each array is one sequence, and that all have one length; the first `longer` ones have one step more."""
    as_jax = {name: jnp.asarray(array) for name, array in arrays.items()}
    for name, array in as_jax.items():
        if array.ndim != 1:
            raise ValueError(
                f"{name} has shape {array.shape}, but these are one sequence [K]: map batches with jax.vmap"
            )
    lengths = [len(array) - (i < longer) for i, array in enumerate(as_jax.values())]
    if len(set(lengths)) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in as_jax.items())
        raise ValueError(f"these do not have the lengths that belong together: {shapes}; nothing is broadcast")
    return list(as_jax.values())


def by_step(name: str, value: ArrayLike, like: Array) -> Array:
    """Return a number, or an array of one sequence, for each step of `like`."""
    value = jnp.asarray(value, like.dtype)
    if value.ndim and value.shape != like.shape:
        raise ValueError(f"{name} has shape {value.shape}: it must be one number or have the shape {like.shape}")
    return jnp.broadcast_to(value, like.shape)


def taken(name: str, values: ArrayLike, actions: ArrayLike) -> Array:
    """Return values[k, actions[k]]."""
    values, actions = jnp.asarray(values), jnp.asarray(actions)
    if values.ndim != 2 or actions.shape != values.shape[:1]:
        raise ValueError(
            f"{name} has shape {values.shape} and its actions {actions.shape}: they must be [K, actions] and [K]"
        )
    return jnp.take_along_axis(values, actions[:, None], axis=1)[:, 0]


def expected(pi_t: ArrayLike, q_t: ArrayLike) -> Array:
    """Return Σ_a π q."""
    if jnp.shape(pi_t) != jnp.shape(q_t):
        raise ValueError(f"pi_t has shape {jnp.shape(pi_t)} but q_t {jnp.shape(q_t)}: both must be [K, actions]")
    return (jnp.asarray(pi_t) * q_t).sum(axis=-1)


def ratios(name: str, x: Array) -> Array:
    """Check that ratios π/μ are finite and at least 0."""
    return possible(name, x, (x >= 0) & (x < jnp.inf), "a ratio π/μ is finite and at least 0")


def possible(name: str, x: Array, good: Array, must: str) -> Array:
    """Raise where x is not good; inside jit, vmap and grad, where there are no values to look at, put NaN there."""
    if not isinstance(good, Tracer) and not good.all():
        at = int(jnp.argmin(good))
        raise ValueError(f"{name} is {x[at]} at index {at}: {must}")
    return jnp.where(good, x, jnp.nan)


def stopped(target: Array, stop: bool | Array) -> Array:
    """Return the target, without a gradient if `stop`; as with rlax, `stop` may be an argument of jit."""
    if isinstance(stop, jax.Array):
        return jax.lax.select(stop, jax.lax.stop_gradient(target), target)
    return jax.lax.stop_gradient(target) if stop else target


def errors_of(errors: Array, v_tm1: Array, stop: bool | Array) -> Array:
    """Return the errors; if `stop`, the target has no gradient, so that theirs is that of −v_tm1 alone."""
    alone = jax.lax.stop_gradient(errors + v_tm1) - v_tm1
    if isinstance(stop, jax.Array):
        return jax.lax.select(stop, alone, errors)
    return alone if stop else errors
