"""Targets and advantages for state values, with any trace; correct where an episode is cut inside a row."""

from __future__ import annotations

from typing import Generic, NamedTuple

from offtrace._renamed import ends_apart
from offtrace.arrays import Array, Option
from offtrace.returns.array_kinds import backend_of
from offtrace.returns.layouts import batch_first, layout_of, rule_batch_first
from offtrace.returns.skipped_steps import Closed
from offtrace.traces import Trace
from offtrace.traces.trace_argument import as_state_rule, as_trace


class StateTargets(NamedTuple, Generic[Array]):
    """What `state_targets` returns, each of the shape and dtype that came in."""

    target: Array
    """v_k = V_k + Δ_k, the regression target for V(s_k)."""
    advantage: Array
    """ρ̄_k (r_k + γ_k v_{k+1} − V_k), the weight of a policy gradient, as V-trace has it. See `state_targets` for λ."""
    correction: Array
    """Δ_k, the λ-advantage: on-policy it is GAE(λ)'s. It knows the actions from k on, where `advantage` takes a_k as given."""


@ends_apart
def state_targets(
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
    valid: Array | None = None,
    skip: Array | None = None,
    pair: Array | None = None,
    time_major: Option = None,
    differentiable: Option = False,
    check: Option = None,
) -> StateTargets[Array]:
    """Targets for V(s_k) by any trace, and two advantages. `value` is V(s_t), `next_value` V of the true next state.

    v_k = V_k + Δ_k,   Δ_k = Σ_{t≥k} (γ_k ··· γ_{t-1}) b_{k:t-1} ρ_t δ_t,   δ_t = r_t + γ_t (1 − terminated_t) next_value_t − V_t

    b_{k:t-1} is β of a trace that starts one step before k and has met the actions k … t−1; b_{k:k-1} = 1. Unlike on action
    values the start's own action acts, and δ_t carries ρ_t. It is not clipped, so that the fixed point is V^π, except by V-trace,
    which has ρ̄_t = min(rho_bar, ρ_t) in its place. Rules that evaluate a mixture of π and μ have the mixture's ratio.

    `ImportanceSampling(lam)` is off-policy TD(λ), and on-policy TD(λ) and GAE(λ); `OneStep` is off-policy TD(0), `VTrace`
    V-trace, `ABQ` ABTD(ζ), `TreeBackup` Tree Backup for V. On-policy, give the same array as log_pi and log_mu. Without a trace
    it is V-trace (Espeholt et al. 2018) with the numbers `lam`, `rho_bar` and `c_bar`, which are 1 if left out.

    `advantage` is ρ̄_k (r_k + γ_k [(1−λ) V(s_{k+1}) + λ v_{k+1}] − V_k), λ being the rule's, or 1; where the episode is
    truncated or the row ends, v_{k+1} is V at the true next state: never the next episode's. `correction` is Δ_k. On-policy both
    are GAE(λ)'s advantage, but the first only where next_value[k] = value[k+1] inside an episode: it holds
    γ_k λ (value[k+1] − next_value[k]) more, which is not 0 where `next_value` comes from another network than `value`.

    Both log-probabilities are always read. A λ that is given by step belongs to the action of its step. `pair`, for custom traces
    that ask for it, holds ids of the states s_t. Kinds of arrays, layouts, `skip`, `differentiable` and `check` are those of
    `targets`.

    >>> import numpy as np, offtrace as ot
    >>> none, zero = np.zeros(2, bool), np.zeros(2)
    >>> found = ot.state_targets(ot.RBIS(lam=0.9), reward=np.array([1.0, 2.0]), value=zero,
    ...                          next_value=zero, terminated=none,
    ...                          truncated=none, log_pi=np.log([0.5, 0.5]), log_mu=np.log([0.25, 0.5]),
    ...                          gamma=0.5)
    >>> found.target
    array([2.9, 2. ])
    """
    rule = as_state_rule(trace, {"lam": lam, "rho_bar": rho_bar, "c_bar": c_bar})
    arrays = {
        "reward": reward,
        "value": value,
        "next_value": next_value,
        "terminated": terminated,
        "truncated": truncated,
    }
    arrays |= {"log_pi": log_pi, "log_mu": log_mu, "gamma": gamma, "valid": valid, "skip": skip, "pair": pair}
    backend, layout = backend_of(arrays, differentiable), layout_of(arrays, time_major)
    turned = dict(batch_first(layout, arrays))
    skipped, rule = turned.pop("skip"), rule_batch_first(layout, rule)
    closed = None if skipped is None else Closed(backend, skipped, turned)
    if closed is not None:
        rule, turned = closed.rule(rule), closed.without(turned)
    made = backend.correct_states(as_trace(rule), turned, differentiable=differentiable, check=check)
    made = made if closed is None else map(closed.restored, made)
    return StateTargets(*map(layout.restored, made))
