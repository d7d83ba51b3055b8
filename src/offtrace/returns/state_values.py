"""V-trace: targets and advantages for state values, correct where an episode is cut inside a row."""

from __future__ import annotations

from typing import Generic, NamedTuple

import numpy as np

from offtrace.arrays import Array, Option
from offtrace.returns.array_kinds import backend_of
from offtrace.returns.layouts import batch_first, layout_of
from offtrace.returns.skipped_steps import Closed
from offtrace.traces.base import number


class StateTargets(NamedTuple, Generic[Array]):
    """What `state_targets` returns."""

    target: Array
    """v_k, the regression target for V(s_k)."""
    advantage: Array
    """ρ̄_k (r_k + γ_k v_{k+1} − V_k), the weight of a policy gradient. GAE's is `target − value`: see `state_targets`."""


def state_targets(
    *,
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    log_pi: Array,
    log_mu: Array,
    gamma: Array | float,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    valid: Array | None = None,
    skip: Array | None = None,
    time_major: Option = None,
    differentiable: Option = False,
    check: Option = None,
) -> StateTargets[Array]:
    """V-trace (Espeholt et al. 2018, IMPALA, equation 1). `value` is V(s_t), `next_value` V of the true next state.

    v_k = V_k + Σ_t (γ_k ··· γ_{t-1}) (c_k ··· c_{t-1}) ρ̄_t δ_t,   c = λ min(c_bar, ρ),   ρ̄ = min(rho_bar, ρ)

    It uses c and ρ̄ of the start itself, unlike the traces on action values. Its fixed point is the value of a policy between μ
    and π, and of π itself only where rho_bar never acts. In the advantage, v_{k+1} is (1−λ) V(s_{k+1}) + λ v_{k+1}, and
    V(s_{k+1}) at the true next state where the episode is truncated or the row ends: never the next episode's. Kinds of arrays,
    layouts, `skip`, `differentiable` and, for PyTorch, `check` are those of `targets`.

    With ρ = 1 the target is that of GAE(λ), and GAE's advantage is `target − value`. V-trace's advantage is the same number only
    where next_value[k] = value[k+1] inside an episode: it holds γ_k λ (value[k+1] − next_value[k]) more, which is not 0 where
    `next_value` comes from another network than `value`.

    >>> none = np.zeros(2, bool)
    >>> state_targets(reward=np.array([1.0, 2.0]), value=np.zeros(2), next_value=np.zeros(2), terminated=none, truncated=none,
    ...               log_pi=np.zeros(2), log_mu=np.zeros(2), gamma=0.5).target
    array([2., 2.])
    """
    lam = number("lam", lam, 0.0, 1.0)
    rho_bar, c_bar = (number(n, bound, 0.0, np.inf) for n, bound in (("rho_bar", rho_bar), ("c_bar", c_bar)))
    given = {"reward": reward, "value": value, "next_value": next_value, "log_pi": log_pi, "log_mu": log_mu}
    for name, array in given.items():
        if array is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise TypeError(f"{name} is missing: V-trace needs it")
    arrays = {**given, "terminated": terminated, "truncated": truncated, "gamma": gamma, "valid": valid}
    arrays["skip"] = skip
    backend = backend_of(arrays, differentiable)
    layout = layout_of(arrays, time_major)
    turned = dict(batch_first(layout, arrays))
    skipped = turned.pop("skip")
    closed = None if skipped is None else Closed(backend, skipped, turned)
    turned = turned if closed is None else closed.without(turned)
    made = backend.v_trace((lam, rho_bar, c_bar), turned, differentiable=differentiable, check=check)
    target, advantage = made if closed is None else map(closed.restored, made)
    return StateTargets(layout.restored(target), layout.restored(advantage))
