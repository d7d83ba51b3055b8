"""An actor with a critic of state values: V-trace's policy gradient, and that of any other trace."""

from __future__ import annotations

import numpy as np

from offtrace.arrays import Array, Option
from offtrace.policy.steps import Loss, Steps
from offtrace.returns import state_targets
from offtrace.traces import Trace
from offtrace.traces.base import number
from offtrace.trajectory import refuse_all_actions


def vtrace(
    trace: Trace | None = None,
    *,
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    log_pi: Array,
    log_mu: Array,
    gamma: Array | float,
    lam: Option = None,
    rho_bar: Option = None,
    c_bar: Option = None,
    entropy: Array | None = None,
    value_cost: float = 0.5,
    entropy_cost: float = 0.0,
    valid: Array | None = None,
    skip: Array | None = None,
    time_major: Option = None,
    check: Option = None,
) -> Loss[Array]:
    """IMPALA's loss (Espeholt et al. 2018, section 4.2), with the targets of V-trace or of any trace; a mean over decisions.

    −ρ̄_t (r_t + γ_t v_{t+1} − V_t) log π(a_t|s_t)  +  value_cost · ½ (v_t − V_t)²  −  entropy_cost · entropy_t

    `log_pi` and `value` carry gradients, and so does `entropy`, that of π(·|s_t), if it is given. Targets v, advantages, ρ̄ and
    `next_value` carry none. `trace`, the arrays and the other options are those of `state_targets`: without a trace it is V-trace
    with `lam`, `rho_bar` and `c_bar`, and with another one ρ_t is not clipped.

    The terms are "policy", "value" and, if given, "entropy"; the arrays "target" and "advantage", which holds ρ̄_t.

    V-trace's expected gradient is Σ_s d_μ(s) Σ_a min(rho_bar μ, π)(a|s) ∇log π(a|s) (Q(s, a) − V(s)) where V is the value of the
    policy in proportion to min(rho_bar μ, π), and Q that policy's. Where ρ is not clipped, and V = V^π, it is
    Σ_s d_μ(s) Σ_a ∇π(a|s) Q^π(s, a). Both have states as μ visits them: neither is ∇J.

    >>> import numpy as np
    >>> no, log = np.zeros(2, bool), np.log([0.5, 0.5])
    >>> result = vtrace(reward=np.array([1.0, 0.0]), value=np.zeros(2), next_value=np.zeros(2),
    ...                terminated=no, truncated=no, log_pi=log, log_mu=log, gamma=0.9)
    >>> round(float(result.loss), 6), {name: float(mean) for name, mean in result.means.items()}["value"]
    (0.471574, 0.25)
    """
    for name, array in (("log_pi", log_pi), ("log_mu", log_mu)):
        refuse_all_actions(name, np.shape(array), np.shape(value))
    own = {"log_pi": log_pi, "value": value, "entropy": entropy, "valid": valid, "skip": skip}
    beside = {"reward": reward, "next_value": next_value, "log_mu": log_mu, "gamma": gamma}
    x: Steps[Array] = Steps(own, beside=beside, check=check)
    targets = state_targets(
        trace,
        reward=x.plain(reward),
        value=x.plain(value),
        next_value=x.plain(next_value),
        terminated=terminated,
        truncated=truncated,
        log_pi=x.plain(log_pi),
        log_mu=x.plain(log_mu),
        gamma=x.plain(gamma),
        lam=lam,
        rho_bar=rho_bar,
        c_bar=c_bar,
        valid=valid,
        skip=skip,
        time_major=time_major,
        check=check,
    )
    target, advantage = targets.target, targets.advantage
    terms = {
        "policy": -x.times_log(advantage, x.read("log_pi")),
        "value": 0.5 * (target - x.read("value")) ** 2,
        **({"entropy": x.read("entropy")} if "entropy" in x else {}),
    }
    return x.loss(terms, costs(value_cost, entropy_cost, known="entropy" in x), target=target, advantage=advantage)


def costs(value: float, entropy: float, *, known: bool = True) -> dict[str, float]:
    """What a critic's error and the entropy count in a loss; the latter only where the entropy is known."""
    if entropy and not known:
        raise TypeError("entropy_cost is given without entropy: pass that of π(·|s_t) for each step, or leave both out")
    return {
        "value": number("value_cost", value, 0.0, np.inf),
        "entropy": -number("entropy_cost", entropy, 0.0, np.inf),
    }
