"""V-trace: targets and advantages for state values, correct where an episode is cut inside a row."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from offtrace.returns import linear
from offtrace.returns.plain import probabilities, td_errors
from offtrace.traces.base import require_between
from offtrace.trajectory import check


class StateTargets(NamedTuple):
    """What `state_targets` returns."""

    target: np.ndarray
    """v_k, the regression target for V(s_k)."""
    advantage: np.ndarray
    """ρ̄_k (r_k + γ_k v_{k+1} − V_k), the weight of a policy gradient."""


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
) -> StateTargets:
    """V-trace (Espeholt et al. 2018, IMPALA, equation 1). `value` is V(s_t), `next_value` V of the true next state.

    v_k = V_k + Σ_t (γ_k ··· γ_{t-1}) (c_k ··· c_{t-1}) ρ̄_t δ_t,   c = λ min(c_bar, ρ),   ρ̄ = min(rho_bar, ρ)

    It uses c and ρ̄ of the start itself, unlike the traces on action values. Its fixed point is the value of a policy between μ
    and π, and of π itself only where rho_bar never acts. In the advantage, v_{k+1} is (1−λ) V(s_{k+1}) + λ v_{k+1}, and
    V(s_{k+1}) at the true next state where the episode is truncated or the row ends: never the next episode's.
    """
    require_between("lam", lam, 0.0, 1.0)
    for name, bound in (("rho_bar", rho_bar), ("c_bar", c_bar)):
        if not bound > 0:
            raise ValueError(f"{name} must be above 0 (inf for no bound), got {bound!r}")
    for name, given in (("log_pi", log_pi), ("log_mu", log_mu), ("value", value)):
        if given is None:
            raise TypeError(f"{name} is missing: V-trace needs it")
    x = check(
        reward=reward,
        q=value,
        next_value=next_value,
        terminated=terminated,
        truncated=truncated,
        gamma=gamma,
        log_pi=log_pi,
        log_mu=log_mu,
        valid=valid,
    )
    delta, discount = td_errors(x)
    rho = probabilities(x, ("rho",))[2]
    clipped = np.minimum(rho, rho_bar)
    excess = linear.solve(clipped * delta, discount * lam * np.minimum(rho, c_bar))  # v − V
    target = x.q + excess
    ahead = np.zeros_like(delta)  # λ (v_{k+1} − V(s_{k+1})), 0 where the episode is cut
    ahead[:, :-1] = np.where(discount[:, :-1] > 0, lam * (target[:, 1:] - x.next_value[:, :-1]), 0.0)  # pyright: ignore[reportOptionalSubscript]
    advantage = clipped * (delta + discount * ahead)
    if x.valid is not None:
        target[~x.valid] = advantage[~x.valid] = 0.0
    return StateTargets(x.restore(target), x.restore(advantage))
