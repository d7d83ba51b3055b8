"""The public calls on action values: targets, corrections, coefficients."""

from __future__ import annotations

from typing import Any

import numpy as np

from offtrace.returns.array_kinds import backend_of
from offtrace.returns.greedy_policy import log_pi_of_greedy
from offtrace.returns.layouts import batch_first
from offtrace.returns.numpy import custom_traces, given_factors, numpy_backend, uncorrected_returns
from offtrace.returns.numpy.every_pair import NO_LAGS
from offtrace.returns.numpy.whole_arrays import discounts
from offtrace.traces import Rule, Trace
from offtrace.traces.arguments import as_rule, as_trace
from offtrace.trajectory import Trajectory, check


def targets(
    trace: Rule,
    *,
    reward: Any,
    next_value: Any,
    terminated: Any,
    truncated: Any,
    gamma: Any,
    q: Any = None,
    log_pi: Any = None,
    log_mu: Any = None,
    valid: Any = None,
    pair: Any = None,
    greedy: Any = None,
    time_major: Any = None,
    differentiable: Any = False,
    check: Any = None,
) -> Any:
    """target_k = q_k + Δ_k for every step of a batch of trajectories. The arrays are described in `offtrace.trajectory`.

    Δ_k = Σ_{t≥k} (γ_k ··· γ_{t-1}) β_{k:t} δ_t,   δ_t = r_t + γ_t (1 − terminated_t) next_value_t − q_t

    `trace` gives β; PengQ and NStep give their own return and read no q. The result has the kind, shape and dtype of the
    input, and is 0 at invalid steps. `greedy`, whether the action taken maximises Q(s_t, ·), is read by rules that cut where
    it is not (Watkins' Q(λ)); it takes the place of log_pi there.

    All arrays are of one kind: NumPy arrays, tensors or JAX arrays; `gamma` may be a number. They are [T], [B, T] or [B, T, 1];
    with `time_major=True` [T, B] or [T, B, 1]. [N, 1] may be N steps of one environment or N rows of one step: `time_major` True
    or False says which, and without it there is an error. `differentiable` lets gradients through, where the arrays have any.
    `check` looks for bad values: on the CPU, where that is free, unless it is False (NumPy always looks); on a GPU only if it is
    True.

    >>> import numpy as np, offtrace as ot
    >>> end = np.array([False, False, True])
    >>> ot.targets(ot.QLambda(lam=1.0), reward=np.ones(3), q=np.zeros(3), next_value=np.zeros(3), terminated=end,
    ...            truncated=np.zeros(3, bool), gamma=0.5)
    array([1.75, 1.5 , 1.  ])
    """
    return _run(
        trace,
        add_q=True,
        reward=reward,
        q=q,
        next_value=next_value,
        terminated=terminated,
        truncated=truncated,
        gamma=gamma,
        log_pi=log_pi,
        log_mu=log_mu,
        valid=valid,
        pair=pair,
        greedy=greedy,
        time_major=time_major,
        differentiable=differentiable,
        check=check,
    )


def corrections(
    trace: Rule,
    *,
    reward: Any,
    next_value: Any,
    terminated: Any,
    truncated: Any,
    gamma: Any,
    q: Any,
    log_pi: Any = None,
    log_mu: Any = None,
    valid: Any = None,
    pair: Any = None,
    greedy: Any = None,
    time_major: Any = None,
    differentiable: Any = False,
    check: Any = None,
) -> Any:
    """Δ_k, what `targets` adds to q_k."""
    if q is None:
        raise TypeError("q is missing: a correction is what is added to it")
    return _run(
        trace,
        add_q=False,
        reward=reward,
        q=q,
        next_value=next_value,
        terminated=terminated,
        truncated=truncated,
        gamma=gamma,
        log_pi=log_pi,
        log_mu=log_mu,
        valid=valid,
        pair=pair,
        greedy=greedy,
        time_major=time_major,
        differentiable=differentiable,
        check=check,
    )


def coefficients(
    trace: Trace,
    *,
    terminated: Any,
    truncated: Any,
    log_pi: Any = None,
    log_mu: Any = None,
    valid: Any = None,
    pair: Any = None,
    greedy: Any = None,
) -> Any:
    """β_{k:t} of one trajectory as a [T, T] upper-triangular matrix; 0 across an end or padding.

    It has the kind and dtype of the log-probabilities that the trace reads; if it reads none, the kind's default dtype.

    >>> import numpy as np, offtrace as ot
    >>> no = np.zeros(3, bool)
    >>> rho, zero = np.log([1.0, 0.5, 4.0]), np.zeros(3)
    >>> ot.coefficients(ot.NonMarkovRetrace(lam=0.9), terminated=no, truncated=no, log_pi=rho, log_mu=zero)[0]
    array([1.  , 0.45, 0.9 ])
    """
    trace = as_trace(trace)
    row = {"terminated": terminated, "truncated": truncated, "log_pi": log_pi, "log_mu": log_mu}
    row |= {"valid": valid, "pair": pair, "greedy": greedy}
    backend = backend_of(row)
    if backend == "torch":
        from offtrace.returns.torch import torch_backend

        return torch_backend.through_host(
            coefficients, trace, terminated, truncated, log_pi, log_mu, valid, pair, greedy
        )
    if backend == "jax":
        from offtrace.returns.jax import jax_backend

        return jax_backend.coefficients(trace, **row)
    x = checked(trace, **row, gamma=1.0)
    if len(x.shape) != 1:
        raise ValueError(f"coefficients takes one trajectory [T], got shape {x.shape}: pass one row")
    T = x.shape[0]
    goes_on = discounts(x)[0]  # 1 where a trace may pass from t to t+1, else 0 (γ = 1)
    valid = np.ones(T, bool) if x.valid is None else x.valid[0]
    if trace.custom:
        B = np.diag(valid.astype(float))
        custom_traces.sweep(trace, x, np.zeros((1, T)), goes_on[None], matrix=B)
        return B.astype(x.dtype, copy=False)
    decay, ratio, cap = (factor[0] for factor in numpy_backend.normal_form(trace, x))
    lags = numpy_backend.lag_caps(trace, T)
    goes_on[:-1] *= decay[1:]
    B = given_factors.weights(goes_on, ratio, cap, NO_LAGS if lags is None else lags, trace.recursive)
    B[~valid] = 0.0
    with np.errstate(over="ignore"):  # of float32, by importance sampling
        return B.astype(x.dtype, copy=False)


def _run(
    trace: Rule,
    *,
    add_q: bool,
    time_major: bool | None,
    differentiable: bool,
    check: bool | None,
    **arrays: Any,
) -> Any:
    """q + Δ, or Δ, by the backend whose arrays these are."""
    backend = backend_of(arrays)
    rule, arrays, restore = batch_first(as_rule(trace), arrays, time_major)
    if backend == "torch":
        from offtrace.returns.torch import torch_backend

        return restore(torch_backend.run(rule, add_q=add_q, differentiable=differentiable, check=check, **arrays))
    if backend == "jax":
        from offtrace.returns.jax import jax_backend

        return restore(jax_backend.run(rule, add_q=add_q, differentiable=differentiable, check=check, **arrays))
    if differentiable:
        raise TypeError("differentiable=True needs PyTorch tensors or JAX arrays: NumPy has no gradients")
    return restore(on_host(rule, add_q=add_q, **arrays))


def on_host(trace: Rule, *, add_q: bool, **arrays: Any) -> np.ndarray:
    """q + Δ, or Δ, of NumPy arrays, in their shape and dtype; 0 at invalid steps."""
    x = checked(trace, **arrays)
    uncorrected = trace.uncorrected_return
    if uncorrected is not None:
        out = uncorrected_returns.of(uncorrected, x)
        out = out if add_q else out - x.q
    else:
        out = numpy_backend.correct(as_trace(trace), x, add_q=add_q)
    if x.valid is not None:
        out[~x.valid] = 0.0
    return x.restore(out)


def checked(trace: Rule, **arrays: Any) -> Trajectory:
    """The arrays that the rule reads, checked."""
    return check(**needed(trace, **arrays), bounded=tuple(f"log_{p}" for p in ("pi", "mu") if p in trace.reads))


def needed(trace: Rule, *, log_pi: Any, log_mu: Any, pair: Any, greedy: Any = None, **arrays: Any) -> dict[str, Any]:
    """The arrays without those that the rule does not read; one that is missing is an error."""
    reads = as_rule(trace).reads
    if trace.needs_greedy:
        log_pi = log_pi_of_greedy(trace, log_pi, greedy, **arrays)
    elif not trace.needs_pi:
        log_pi = None
    elif log_pi is None:
        raise TypeError(f"log_pi is missing: {trace.title} needs log π(a_t|s_t) of the actions taken")
    if not trace.needs_mu:
        log_mu = None
    elif log_mu is None:
        raise TypeError(
            f"log_mu is missing: {trace.title} needs log μ(a_t|s_t) of the actions taken; Tree Backup and Q(λ) need no μ"
        )
    if "pair" not in reads:
        pair = None
    elif pair is None:
        raise TypeError(f"pair is missing: {trace.title} needs ids of (s_t, a_t)")
    for name in ("reward", "next_value", *(() if trace.uncorrected else ("q",))):
        if name in arrays and arrays[name] is None:
            raise TypeError(f"{name} is missing: {trace.title} needs it for every step")
    return {**arrays, "log_pi": log_pi, "log_mu": log_mu, "pair": pair}
