"""The public calls: targets, corrections and coefficients of action values, and targets of state values."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

from offtrace.arrays import Array, Option
from offtrace.returns.array_kinds import backend_of
from offtrace.returns.backend import Backend
from offtrace.returns.inputs import Layout, SkipsRemoved, agreed_rule, layout_of
from offtrace.returns.stacked import Stacked, stacked_of
from offtrace.returns.transforms import Transform, to_returns, to_values
from offtrace.traces import Rule, Trace
from offtrace.traces.given_coefficients import GivenCoefficients
from offtrace.traces.trace_argument import as_rule, as_state_rule, as_trace
from offtrace.trajectory import BadValueError

P = ParamSpec("P")
R = TypeVar("R")


def refuses_done(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse the keyword `done`, which most libraries have, with an error that names what takes its place."""

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        if "done" in named:
            raise TypeError(
                f"{function.__name__} has no parameter 'done': give terminated, where the task ended, and truncated, where a "
                "limit cut the episode; a truncated step still bootstraps. Where nothing is ever truncated, terminated=done and "
                "truncated=np.zeros_like(done)"
            )
        return function(*arguments, **named)

    return call


@refuses_done
def targets(
    trace: Rule,
    *,
    reward: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: Array | float,
    q: Array | None = None,
    log_pi: Array | None = None,
    log_mu: Array | None = None,
    valid: Array | None = None,
    skip: Array | None = None,
    pair: Array | None = None,
    greedy: Array | None = None,
    time_major: Option = None,
    stack: Option = None,
    transform: Option = None,
    differentiable: Option = False,
    check: Option = None,
) -> Array:
    """target_k = q_k + Δ_k for every step of a batch of trajectories. The arrays are described in `offtrace.trajectory`.

    Δ_k = Σ_{t≥k} (γ_k ··· γ_{t-1}) β_{k:t} δ_t,   δ_t = r_t + γ_t (1 − terminated_t) next_value_t − q_t

    `trace` gives β; PengQ and NStep give their own return and read no q. The result has the kind, shape and dtype of the
    input, and is 0 at invalid steps. `greedy`, whether the action taken maximises Q(s_t, ·), is read by rules that cut where
    it is not (Watkins' Q(λ)); it takes the place of log_pi there. `skip` marks steps that are no decisions: credit passes over
    them unchanged, without δ, ratio, decay, cap or discount, nothing is read there but the ends, and the result is 0.

    All arrays are of one kind: NumPy arrays, tensors or JAX arrays; `gamma` may be a number. They are [T], [B, T] or [B, T, 1];
    with `time_major=True` [T, B] or [T, B, 1]. [N, 1] may be N steps of one environment or N rows of one step: `time_major` True
    or False says which, and without it there is an error. `differentiable` lets gradients through, where the arrays have any.
    `stack="first"` takes K critics, objectives or agents at once: some arrays are [K, B, T], the others [B, T] for all of them;
    with "last" these are [B, T, K]. `transform` is for critics that predict h of a return, such as `SignedHyperbolic()`: q,
    next_value and the result are h of what they would be, and δ is a difference of returns (`offtrace.returns.transforms`).
    `check` looks for bad values: on the CPU, where that is free, unless it is False (NumPy always looks); on a GPU only if it is
    True.

    >>> import numpy as np, offtrace as ot
    >>> end = np.array([False, False, True])
    >>> ot.targets(ot.QLambda(lam=1.0), reward=np.ones(3), q=np.zeros(3), next_value=np.zeros(3),
    ...            terminated=end, truncated=np.zeros(3, bool), gamma=0.5)
    array([1.75, 1.5 , 1.  ])
    """
    arrays = {
        "reward": reward, "q": q, "next_value": next_value, "terminated": terminated, "truncated": truncated,
        "gamma": gamma, "log_pi": log_pi, "log_mu": log_mu, "valid": valid, "skip": skip, "pair": pair, "greedy": greedy,
    }  # fmt: skip
    return _run(as_rule(trace), arrays, True, time_major, stack, transform, differentiable, check)[0]


@refuses_done
def corrections(
    trace: Rule,
    *,
    reward: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: Array | float,
    q: Array,
    log_pi: Array | None = None,
    log_mu: Array | None = None,
    valid: Array | None = None,
    skip: Array | None = None,
    pair: Array | None = None,
    greedy: Array | None = None,
    time_major: Option = None,
    stack: Option = None,
    transform: Option = None,
    differentiable: Option = False,
    check: Option = None,
) -> Array:
    """Δ_k, what `targets` adds to q_k. Arrays and options are those of `targets`; with a `transform`, Δ is one of returns.

    >>> import numpy as np, offtrace as ot
    >>> none = np.zeros(2, bool)
    >>> ot.corrections(ot.Retrace(), reward=np.array([1.0, 2.0]), q=np.zeros(2), next_value=np.zeros(2),
    ...                terminated=none,
    ...                truncated=none, gamma=0.5, log_pi=np.zeros(2), log_mu=np.zeros(2))
    array([2., 2.])
    """
    if q is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise TypeError("q is missing: a correction is what is added to it")
    arrays = {
        "reward": reward, "q": q, "next_value": next_value, "terminated": terminated, "truncated": truncated,
        "gamma": gamma, "log_pi": log_pi, "log_mu": log_mu, "valid": valid, "skip": skip, "pair": pair, "greedy": greedy,
    }  # fmt: skip
    return _run(as_rule(trace), arrays, False, time_major, stack, transform, differentiable, check)[0]


class StateTargets(NamedTuple, Generic[Array]):
    """What `state_targets` returns, each of the shape and dtype that came in."""

    target: Array
    """v_k = V_k + Δ_k, the regression target for V(s_k)."""
    advantage: Array
    """ρ̄_k (r_k + γ_k v_{k+1} − V_k), the weight of a policy gradient, as V-trace has it. See `state_targets` for λ."""
    correction: Array
    """Δ_k, the λ-advantage: on-policy it is GAE(λ)'s. It knows the actions from k on, where `advantage` takes a_k as given."""


@refuses_done
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
    stack: Option = None,
    transform: Option = None,
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
    that ask for it, holds ids of the states s_t. Kinds of arrays, layouts, `skip`, `stack`, `transform`, `differentiable` and
    `check` are those of `targets`; with a `transform`, advantages and corrections are differences of returns.

    >>> import numpy as np, offtrace as ot
    >>> none, zero = np.zeros(2, bool), np.zeros(2)
    >>> result = ot.state_targets(ot.RBIS(lam=0.9), reward=np.array([1.0, 2.0]), value=zero,
    ...                          next_value=zero, terminated=none,
    ...                          truncated=none, log_pi=np.log([0.5, 0.5]), log_mu=np.log([0.25, 0.5]),
    ...                          gamma=0.5)
    >>> result.target
    array([2.9, 2. ])
    """
    rule = as_state_rule(trace, {"lam": lam, "rho_bar": rho_bar, "c_bar": c_bar})
    arrays = {
        "reward": reward, "value": value, "next_value": next_value, "terminated": terminated, "truncated": truncated,
        "log_pi": log_pi, "log_mu": log_mu, "gamma": gamma, "valid": valid, "skip": skip, "pair": pair,
    }  # fmt: skip
    return StateTargets(*_run(rule, arrays, None, time_major, stack, transform, differentiable, check))


@refuses_done
def coefficients(
    trace: Trace,
    *,
    terminated: Array,
    truncated: Array,
    log_pi: Array | None = None,
    log_mu: Array | None = None,
    valid: Array | None = None,
    pair: Array | None = None,
    greedy: Array | None = None,
) -> Array:
    """β_{k:t} of one trajectory as a [T, T] upper-triangular matrix; 0 across an end or padding.

    It has the kind and dtype of the log-probabilities that the trace reads; if it reads none, the kind's default dtype.

    >>> import numpy as np, offtrace as ot
    >>> no = np.zeros(3, bool)
    >>> rho, zero = np.log([1.0, 0.5, 4.0]), np.zeros(3)
    >>> ot.coefficients(ot.NonMarkovRetrace(lam=0.9), terminated=no, truncated=no, log_pi=rho,
    ...                 log_mu=zero)[0]
    array([1.  , 0.45, 0.9 ])
    """
    row = {"terminated": terminated, "truncated": truncated, "log_pi": log_pi, "log_mu": log_mu}
    row |= {"valid": valid, "pair": pair, "greedy": greedy}
    return backend_of(row).coefficients(as_trace(trace), row)


def targets_from_c(c: Array, *, horizon: int | None = None, **arrays: Any) -> Array:
    """target_k = q_k + Σ_{t≥k} (γ_k ··· γ_{t-1}) (c_{k+1} ··· c_t) δ_t, for any c ≥ 0 of the batch's shape.

    c of a start is not used. With a `horizon` n, the sum ends before t = k + n. The other arguments are those of `targets`,
    without log_pi and log_mu. c is of their kind; a tensor c is a constant, which has no gradient.

    >>> import numpy as np, offtrace as ot
    >>> no, zero = np.zeros(3, bool), np.zeros(3)
    >>> ot.targets_from_c(np.array([9.0, 0.5, 2.0]), reward=np.ones(3), q=zero, next_value=zero,
    ...                   terminated=no, truncated=no, gamma=1.0)
    array([2.5, 3. , 1. ])
    """
    for name in ("log_pi", "log_mu"):
        if name in arrays:
            raise TypeError(f"{name} has no part in targets_from_c: c is given")
    options = ("time_major", "differentiable", "check")
    backend = backend_of({"c": c, **{n: a for n, a in arrays.items() if n not in options}})
    if arrays.get("differentiable") and getattr(c, "requires_grad", False):
        raise TypeError("c requires a gradient, which there is none of for a tensor c: pass c.detach()")
    return targets(GivenCoefficients(backend.as_parameter("c", c), horizon=horizon), **arrays)


def _run(
    rule: Rule,
    arrays: dict[str, Any],
    add_q: bool | None,
    time_major: bool | None,
    stack: str | None,
    transform: Transform | None,
    differentiable: bool,
    check: bool | None,
) -> tuple[Any, ...]:
    """q + Δ or Δ; without `add_q` what `state_targets` returns. The backend is that whose arrays these are.

    It takes arrays [T] or [B, T], batch first, without skipped steps; what it returns, and the index of a bad value, is put
    back into the layout that came in.
    """
    backend: Backend[Any] = backend_of(arrays, differentiable)
    forms: list[Stacked[Any] | Layout | SkipsRemoved[Any]] = []  # what is undone at the end, the last one first
    uncorrected = rule.uncorrected
    if transform is not None:
        arrays = to_returns(backend, transform, arrays)
    if stack is not None:
        forms.append(stacked_of(backend, arrays, stack, time_major))
        (rule, arrays), time_major = forms[0].into(rule, arrays), False
    layout = layout_of(arrays, time_major)
    if not layout.is_batch_first:
        rule, arrays = layout.into(rule, arrays)
        forms.append(layout)
    skip = arrays.pop("skip")
    try:
        if skip is not None:
            skips = SkipsRemoved[Any](backend, skip, arrays)
            rule, arrays = skips.into(rule, arrays)
            forms.append(skips)
        trace, read = agreed_rule(backend, rule, arrays)
        wanted = True if uncorrected else add_q
        outs = backend.correct(trace, read, add_q=wanted, differentiable=differentiable, check=check)
    except BadValueError as error:
        at = error.at
        for form in reversed(forms):
            at = form.index_given(at)
        if transform is not None:
            error.text += f". With a transform, values are read as returns: h⁻¹ of what was given, h = {transform!r}"
        raise error.with_index(at) from None
    if uncorrected and not add_q:  # its return is computed without q
        outs = (_where_valid(backend, arrays, outs[0] - backend.array("q", arrays["q"])),)
    if transform is not None and add_q is not False:  # targets in the scale of the values that came in
        outs = (_where_valid(backend, arrays, to_values(backend, transform, outs[0])), *outs[1:])
    for form in reversed(forms):
        outs = tuple(map(form.restored, outs))
    return outs


def _where_valid(backend: Backend[Array], arrays: dict[str, Any], out: Array) -> Array:
    """A result with 0 at invalid steps."""
    valid = arrays.get("valid")
    return out if valid is None else backend.xp.where(backend.array("valid", valid) != 0, out, 0.0)
