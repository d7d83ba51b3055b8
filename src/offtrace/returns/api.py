"""The public calls on action values: targets, corrections, coefficients."""

from __future__ import annotations

from offtrace._renamed import ends_apart
from offtrace.arrays import Array, Option
from offtrace.returns.array_kinds import backend_of
from offtrace.returns.layouts import batch_first, layout_of, rule_batch_first
from offtrace.returns.skipped_steps import Closed
from offtrace.traces import Rule, Trace
from offtrace.traces.trace_argument import as_rule, as_trace


@ends_apart
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
    `check` looks for bad values: on the CPU, where that is free, unless it is False (NumPy always looks); on a GPU only if it is
    True.

    >>> import numpy as np, offtrace as ot
    >>> end = np.array([False, False, True])
    >>> ot.targets(ot.QLambda(lam=1.0), reward=np.ones(3), q=np.zeros(3), next_value=np.zeros(3),
    ...            terminated=end, truncated=np.zeros(3, bool), gamma=0.5)
    array([1.75, 1.5 , 1.  ])
    """
    return _run(
        trace, True, reward, q, next_value, terminated, truncated, gamma, log_pi, log_mu, valid, skip, pair, greedy,
        time_major, differentiable, check,
    )  # fmt: skip


@ends_apart
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
    differentiable: Option = False,
    check: Option = None,
) -> Array:
    """Δ_k, what `targets` adds to q_k. Arrays and options are those of `targets`.

    >>> import numpy as np, offtrace as ot
    >>> none = np.zeros(2, bool)
    >>> ot.corrections(ot.Retrace(), reward=np.array([1.0, 2.0]), q=np.zeros(2), next_value=np.zeros(2),
    ...                terminated=none,
    ...                truncated=none, gamma=0.5, log_pi=np.zeros(2), log_mu=np.zeros(2))
    array([2., 2.])
    """
    if q is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise TypeError("q is missing: a correction is what is added to it")
    return _run(
        trace, False, reward, q, next_value, terminated, truncated, gamma, log_pi, log_mu, valid, skip, pair, greedy,
        time_major, differentiable, check,
    )  # fmt: skip


@ends_apart
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


def _run(
    trace: Rule,
    add_q: bool,
    reward: Array,
    q: Array | None,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: Array | float,
    log_pi: Array | None,
    log_mu: Array | None,
    valid: Array | None,
    skip: Array | None,
    pair: Array | None,
    greedy: Array | None,
    time_major: bool | None,
    differentiable: bool,
    check: bool | None,
) -> Array:
    """q + Δ, or Δ, by the backend whose arrays these are."""
    arrays = {
        "reward": reward, "q": q, "next_value": next_value, "terminated": terminated, "truncated": truncated,
        "gamma": gamma, "log_pi": log_pi, "log_mu": log_mu, "valid": valid, "skip": skip, "pair": pair, "greedy": greedy,
    }  # fmt: skip
    backend, layout = backend_of(arrays, differentiable), layout_of(arrays, time_major)
    rule, turned = rule_batch_first(layout, as_rule(trace)), dict(batch_first(layout, arrays))
    skipped = turned.pop("skip")
    closed = None if skipped is None else Closed(backend, skipped, turned)
    if closed is not None:
        rule, turned = closed.rule(rule), closed.without(turned)
    out = backend.correct(rule, turned, add_q=add_q, differentiable=differentiable, check=check)
    return layout.restored(out if closed is None else closed.restored(out))
