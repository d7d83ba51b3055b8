"""Actors with a critic of action values: ACER's truncation with bias correction, and Reactor's β-leave-one-out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

import numpy as np

from offtrace.arrays import Array, Option
from offtrace.policy.bad_values import refuse_densities
from offtrace.policy.state_critic import costs
from offtrace.policy.steps import Loss, Steps
from offtrace.returns import targets
from offtrace.traces import Rule
from offtrace.traces.base import number
from offtrace.traces.trace_argument import as_rule

ACTIONS = ("log_pi", "q", "log_mu")


class Options(TypedDict):
    """What `targets` is told beside the arrays."""

    time_major: bool | None
    check: bool | None


def acer(
    trace: Rule,
    *,
    reward: Array,
    q: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    log_pi: Array,
    log_mu: Array,
    action: Array,
    gamma: Array | float,
    bound: float = 10.0,
    value_cost: float = 0.5,
    entropy_cost: float = 0.0,
    valid: Array | None = None,
    skip: Array | None = None,
    time_major: Option = None,
    check: Option = None,
) -> Loss[Array]:
    """ACER's loss for finite actions (Wang et al. 2017, equation 9), a mean over decisions. Its gradient is that of minus

    min(c, ρ_t) (Q^ret_t − V_t) log π(a_t|s_t)  +  Σ_a [1 − c/ρ_t(a)]₊ π(a|s_t) (Q(s_t, a) − V_t) log π(a|s_t)

    and of value_cost · ½ (Q^ret_t − Q(s_t, a_t))² − entropy_cost · entropy of π(·|s_t), where c = `bound`, V_t = Σ_a π Q, and
    what stands before a logarithm carries no gradient. Q^ret are the targets of `trace`; ACER takes Retrace with λ = 1.

    `q`, `log_pi` and `log_mu` hold all actions, [T, A] or [B, T, A], `action` the numbers of those taken, [T] or [B, T]; `q` and
    `log_pi` carry gradients. The other arrays and options are those of `targets`. The terms are "policy", "correction", "value"
    and "entropy"; the arrays "target" (Q^ret), "advantage" (Q^ret − V) and "weight" (min(c, ρ)).

    Where E[Q^ret] = Q^π and Q = Q^π, the expected gradient is Σ_s d_μ(s) Σ_a ∇π(a|s) Q^π(s, a) for every c; where only the first
    holds, for c → ∞. It weighs states as μ visits them, so that it is *not* ∇J. ACER's trust region is not part of it.

    >>> import numpy as np, offtrace as ot
    >>> no, log = np.zeros(1, bool), np.log([[0.5, 0.5]])
    >>> result = acer(ot.Retrace(), reward=np.ones(1), q=np.zeros((1, 2)), next_value=np.zeros(1),
    ...              terminated=no, truncated=no,
    ...              log_pi=log, log_mu=log, action=np.array([0]), gamma=0.9)
    >>> {name: round(float(mean), 4) for name, mean in result.means.items()}
    {'policy': 0.6931, 'correction': 0.0, 'value': 0.5, 'entropy': 0.6931}
    """
    c = number("bound", bound, 0.0, np.inf)
    own = {"log_pi": log_pi, "q": q, "log_mu": log_mu, "action": action, "valid": valid, "skip": skip}
    trajectory = {"reward": reward, "next_value": next_value, "terminated": terminated, "truncated": truncated}
    trajectory |= {"gamma": gamma, "valid": valid, "skip": skip}
    options: Options = {"time_major": time_major, "check": check}
    x: Steps[Array] = Steps(own, beside=trajectory, over_actions=ACTIONS, check=check)
    log_mu_taken = x.at_action(x.constant("log_mu"))
    target, value = _target_and_value(x, trace, log_mu_taken, trajectory, options)
    log, q_all = x.read("log_pi"), x.constant("q")
    log_taken, pi, mu = x.at_action(log), x.xp.exp(x.constant("log_pi")), x.xp.exp(x.constant("log_mu"))
    weight = x.at_most(x.ratio(x.do.constant(log_taken), log_mu_taken), c)
    # [1 − c/ρ]₊ π = [π − c μ]₊, which needs no division; in the limit c → ∞ it is π where μ is 0, and else 0.
    beyond = x.xp.where(mu == 0, pi, 0.0) if c == np.inf else x.xp.clip(pi - c * mu, 0.0, 1.0)
    advantage = target - value
    terms = {
        "policy": -x.times_log(weight * advantage, log_taken),
        "correction": -x.times_log(beyond * (q_all - value[..., None]), log).sum(-1),
        "value": 0.5 * (target - x.at_action(x.read("q"))) ** 2,
        "entropy": _entropy(x),
    }
    return x.loss(terms, costs(value_cost, entropy_cost), target=target, advantage=advantage, weight=weight)


def acer_sampled(
    trace: Rule,
    *,
    reward: Array,
    q: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    log_pi: Array,
    log_mu: Array,
    sampled_q: Array,
    sampled_log_pi: Array,
    sampled_log_mu: Array,
    gamma: Array | float,
    bound: float = 10.0,
    entropy: Array | None = None,
    value_cost: float = 0.5,
    entropy_cost: float = 0.0,
    valid: Array | None = None,
    skip: Array | None = None,
    time_major: Option = None,
    check: Option = None,
) -> Loss[Array]:
    """ACER's loss where actions cannot be summed over, as continuous ones: the second term is a mean over samples a' ~ π.

    min(c, ρ_t) (Q^ret_t − V_t) log π(a_t|s_t)  +  1/N Σ_a' [1 − c/ρ_t(a')]₊ (Q(s_t, a') − V_t) log π(a'|s_t)

    (Wang et al. 2017, equation 11). `q`, `log_pi` and `log_mu` are those of the actions taken, [T] or [B, T]; `sampled_q`,
    `sampled_log_pi` and `sampled_log_mu` those of N fresh actions of π in each state, [T, N] or [B, T, N]. The samples themselves
    must carry no gradient (in PyTorch `sample()`, not `rsample()`): this is a gradient by the score.

    `value` is V(s_t); as in the paper it learns from min(1, ρ_t) (Q^ret_t − Q(s_t, a_t)), the term "state_value", with `q` in the
    term "value"; both count value_cost. `entropy` is given, or left out. Everything else is as in `acer`.

    >>> import numpy as np, offtrace as ot
    >>> no, one = np.zeros(1, bool), np.ones((1, 1))
    >>> result = acer_sampled(ot.Retrace(), reward=np.ones(1), q=np.zeros(1), value=np.zeros(1),
    ...                      next_value=np.zeros(1),
    ...                      terminated=no, truncated=no, log_pi=np.zeros(1), log_mu=np.zeros(1),
    ...                      sampled_q=one,
    ...                      sampled_log_pi=-one, sampled_log_mu=-4 * one, gamma=0.9, bound=1.0)
    >>> round(float(result.means["correction"]), 4)                      # (1 − e⁻³) · 1
    0.9502
    """
    c = number("bound", bound, 0.0, np.inf)
    own = {"log_pi": log_pi, "log_mu": log_mu, "q": q, "value": value, "sampled_q": sampled_q}
    own |= {"sampled_log_pi": sampled_log_pi, "sampled_log_mu": sampled_log_mu, "entropy": entropy}
    samples = ("sampled_q", "sampled_log_pi", "sampled_log_mu")
    trajectory = {"reward": reward, "next_value": next_value, "terminated": terminated, "truncated": truncated}
    trajectory |= {"gamma": gamma, "valid": valid, "skip": skip}
    options: Options = {"time_major": time_major, "check": check}
    own |= {"valid": valid, "skip": skip}
    x: Steps[Array] = Steps(own, beside=trajectory, over_actions=samples, check=check)
    target = _targets(x, trace, {**trajectory, "q": q, "log_pi": log_pi, "log_mu": log_mu}, options)
    v, ratio = x.constant("value"), x.ratio(x.constant("log_pi"), x.constant("log_mu"))
    weight, advantage = x.at_most(ratio, c), target - v
    # c/ρ as a number, also where μ is 0 and so c/ρ = 0, and where π is 0, which is not sampled.
    share = x.xp.exp(x.constant("sampled_log_mu") - x.constant("sampled_log_pi"))
    beyond = x.xp.where(share == 0, 1.0, 0.0) if c == np.inf else x.xp.clip(1 - c * share, 0.0, 1.0)
    correction = x.times_log(beyond * (x.constant("sampled_q") - v[..., None]), x.read("sampled_log_pi")).mean(-1)
    error = target - x.read("q")
    learned = x.do.constant(v + x.at_most(ratio, 1.0) * error)
    terms = {
        "policy": -x.times_log(weight * advantage, x.read("log_pi")),
        "correction": -correction,
        "value": 0.5 * error**2,
        "state_value": 0.5 * (learned - x.read("value")) ** 2,
        **({"entropy": x.read("entropy")} if "entropy" in x else {}),
    }
    count = costs(value_cost, entropy_cost, known="entropy" in x)
    return x.loss(terms, count | {"state_value": count["value"]}, target=target, advantage=advantage, weight=weight)


def reactor(
    trace: Rule,
    *,
    reward: Array,
    q: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    log_pi: Array,
    log_mu: Array,
    action: Array,
    gamma: Array | float,
    bound: float = np.inf,
    value_cost: float = 0.5,
    entropy_cost: float = 0.0,
    valid: Array | None = None,
    skip: Array | None = None,
    time_major: Option = None,
    check: Option = None,
) -> Loss[Array]:
    """Reactor's β-leave-one-out (Gruslys et al. 2018, equation 4), a mean over decisions. Its gradient is that of minus

    β_t (Q^ret_t − Q(s_t, a_t)) π(a_t|s_t)  +  Σ_a Q(s_t, a) π(a|s_t),      β_t = min(bound, 1/μ(a_t|s_t))

    and of value_cost · ½ (Q^ret_t − Q(s_t, a_t))² − entropy_cost · entropy of π(·|s_t); Q, Q^ret and β carry no gradient where
    they weigh π. `q` and `log_pi` hold all actions, [T, A] or [B, T, A], `log_mu` only those taken, [T] or [B, T]. Everything
    else is as in `acer`; the array "weight" is β.

    The expected gradient differs from Σ_s d_μ(s) Σ_a ∇π(a|s) Q^π(s, a) by Σ_s d_μ Σ_a (1 − μβ)(a|s) (Q − Q^π)(s, a) ∇π(a|s) where
    E[Q^ret] = Q^π: not at all without a bound, nor where Q = Q^π.

    >>> import numpy as np, offtrace as ot
    >>> no = np.zeros(1, bool)
    >>> result = reactor(ot.Retrace(), reward=np.ones(1), q=np.zeros((1, 2)), next_value=np.zeros(1),
    ...                 terminated=no, truncated=no, log_pi=np.log([[0.5, 0.5]]), log_mu=np.log([0.25]),
    ...                 action=np.array([0]), gamma=0.9)
    >>> round(float(result.means["policy"]), 4)                          # −(1/μ) (1 − 0) π
    -2.0
    """
    c = number("bound", bound, 0.0, np.inf)
    own = {"log_pi": log_pi, "q": q, "log_mu": log_mu, "action": action, "valid": valid, "skip": skip}
    trajectory = {"reward": reward, "next_value": next_value, "terminated": terminated, "truncated": truncated}
    trajectory |= {"gamma": gamma, "valid": valid, "skip": skip}
    options: Options = {"time_major": time_major, "check": check}
    x: Steps[Array] = Steps(own, beside=trajectory, over_actions=("log_pi", "q"), check=check)
    target, _ = _target_and_value(x, trace, log_mu, trajectory, options)
    pi, q_all, q_taken = x.xp.exp(x.read("log_pi")), x.constant("q"), x.at_action(x.read("q"))
    if x.looks:
        refuse_densities("log_mu", x.do.as_numpy(x.constant("log_mu")), x.do.as_numpy(x.decision))
    weight = x.at_most(x.ratio(0.0, x.constant("log_mu")), c)
    advantage = x.do.constant(target - q_taken)
    terms = {
        "policy": -(weight * advantage * x.at_action(pi) + x.expected(pi, q_all)),
        "value": 0.5 * (target - q_taken) ** 2,
        "entropy": _entropy(x),
    }
    return x.loss(terms, costs(value_cost, entropy_cost), target=target, advantage=advantage, weight=weight)


def _target_and_value(
    x: Steps[Array], trace: Rule, log_mu: object, trajectory: Mapping[str, object], options: Options
) -> tuple[Array, Array]:
    """Q^ret of the actions taken, and V = Σ_a π Q, without gradients."""
    q, log_pi = x.constant("q"), x.constant("log_pi")
    taken = x.at_action(q)
    greedy = x.xp.all(q <= taken[..., None], -1) if as_rule(trace).needs_greedy else None
    of_actions = {"q": taken, "log_pi": x.at_action(log_pi), "log_mu": log_mu, "greedy": greedy}
    return _targets(x, trace, {**trajectory, **of_actions}, options), x.expected(x.xp.exp(log_pi), q)


def _targets(x: Steps[Array], trace: Rule, arrays: Mapping[str, object], options: Options) -> Array:
    """Q^ret by the trace."""
    return targets(trace, **{name: x.plain(array) for name, array in arrays.items()}, **options)


def _entropy(x: Steps[Array]) -> Array:
    """−Σ_a π log π, with its gradient; an action of probability 0 counts 0."""
    log = x.read("log_pi")
    never = log == -np.inf
    log = x.xp.where(never, 0.0, log)
    return -(x.xp.where(never, 0.0, x.xp.exp(log)) * log).sum(-1)
