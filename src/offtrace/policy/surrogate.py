"""Policy gradients from advantages that are given: weighed by any trace, and clipped as PPO does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from offtrace._shared.suggestions import closest, ending
from offtrace.arrays import Array, Option
from offtrace.policy.policy_loss import PolicyLoss, ends, of_rows
from offtrace.policy.rows import Rows
from offtrace.policy.shapes import Clip
from offtrace.policy.steps import Loss, Steps
from offtrace.returns import weights
from offtrace.returns.array_kinds import backend_of
from offtrace.traces import ImportanceSampling, Trace, TruncatedIS
from offtrace.traces.base import number

MEANS = ("token-mean", "seq-mean-token-sum")


def weighted(
    trace: Trace,
    *,
    log_pi: Array,
    log_mu: Array,
    advantage: Array,
    level: str = "prefix",
    own: float | None = None,
    mean: str = "token-mean",
    mask: Array | None = None,
    segment: Array | None = None,
    keep: Array | None = None,
    lower: float | None = None,
    upper: float | None = None,
    outside: str = "truncate",
    normalize: str | None = None,
    group: Array | None = None,
    process_group: object = None,
    greedy: Array | None = None,
    check: Option = None,
) -> Loss[Array]:
    """The policy gradient of rollouts that μ made: the mean of −w_t A_t log π(a_t|s_t).

    The weight w is that of `weights(trace, level=level, …)`, by π now against μ, and carries no gradient; `log_pi` does.
    `advantage` is [B, T] as the other arrays, or [B], one for each row: `group_advantages` makes such. `mask` is true for
    decisions. `keep`, as `reject` gives it, leaves decisions out of the mean, so that its denominator does not count them, but
    not out of the products of ratios. `segment` and the other options are those of `weights`.

    With `own`, a bound or ∞, the trace weighs the past alone: the weight is the prefix up to the decision before, times the
    decision's own ratio, at most `own`. While that bound does not act, whatever is added to all advantages drops out of the
    expected gradient, with any trace; without `own` it does so only where the trace leaves the own ratio whole.

    `mean` says what the sum is divided by: "token-mean" by the number of decisions, "seq-mean-token-sum" by that of rows, or
    segments, with a decision. Only the latter is unbiased where rows differ in length: E_μ of its gradient is that of −J, for any
    batch, if the weight is an uncapped prefix and the advantage Q^π, or Q^π less a baseline of the state; or if the weight is an
    uncapped sequence and the advantage the row's return, or Q^π.

    The only term is "policy"; the arrays are "weight" and "advantage".

    >>> import numpy as np, offtrace as ot
    >>> log_pi, log_mu = np.log([[0.5, 0.9], [0.5, 0.25]]), np.log([[0.5, 0.6], [0.25, 0.5]])
    >>> result = weighted(ot.NonMarkovRetrace(), log_pi=log_pi, log_mu=log_mu,
    ...                  advantage=np.array([1.0, -1.0]))
    >>> result.arrays["weight"], round(float(result.loss), 4)
    (array([[1. , 1. ],
           [1. , 0.5]]), -0.1469)
    """
    if mean not in MEANS:
        raise ValueError(f"mean = {mean!r} is not known{ending(closest(mean, MEANS))} It is one of: {', '.join(MEANS)}")
    read = {"log_pi": log_pi, "log_mu": log_mu, "mask": mask, "keep": keep}
    x: Steps[Array] = Steps(read, beside={"advantage": advantage, "segment": segment, "group": group}, check=check)
    advantage = x.of_rows("advantage", advantage)
    taken: dict[str, Any] = {"log_pi": x.plain(log_pi), "log_mu": x.plain(log_mu), "mask": mask, "greedy": greedy}
    options: dict[str, Any] = {"lower": lower, "upper": upper, "outside": outside, "normalize": normalize}
    if own is None:
        weight = weights(
            trace,
            **taken,
            **options,
            level=level,
            segment=segment,
            group=group,
            process_group=process_group,
            check=check,
        )
    else:
        _refuse_beside_own(level, options)
        prefix = weights(trace, **taken, segment=segment, level="prefix", check=check)
        ratio = weights(TruncatedIS(bound=number("own", own, 0.0, np.inf)), **taken, level="token", check=check)
        decision: Any = x.decision | True if mask is None else x.do.array("mask", mask) != 0
        weight = Rows(x, decision, segment).before(prefix, 1.0) * ratio
    terms = {"policy": -x.times_log(weight * advantage, x.read("log_pi"))}
    rows = None if mean == "token-mean" else Rows(x, x.decision, segment).how_many()
    return x.loss(terms, {}, over=rows, weight=weight, advantage=advantage)


def _refuse_beside_own(level: str, options: Mapping[str, object]) -> None:
    """Own ratios go with prefixes, and with nothing that is done to whole weights."""
    given = [name for name, value in options.items() if value not in (None, "truncate")]
    if level != "prefix" or given:
        what = f"level={level!r}" if level != "prefix" else given[0]
        raise ValueError(f"own is given beside {what}: it goes with level='prefix', and bounds the own ratio itself")


def clipped(
    *,
    log_pi: Array,
    log_prox: Array,
    advantage: Array,
    log_mu: Array | None = None,
    trace: Trace | None = None,
    level: str = "token",
    weight: Array | None = None,
    clip: float | Sequence[float] | np.ndarray = 0.2,
    dual: float | None = None,
    mask: Array | None = None,
    segment: Array | None = None,
    keep: Array | None = None,
    check: Option = None,
) -> Loss[Array]:
    """PPO's clipped surrogate, with a behaviour policy μ apart from the proximal policy: the mean over decisions of

    −w_t min(r_t A_t, clip(r_t, 1 − low, 1 + high) A_t),      r = π/π_prox,      w = π_prox/μ

    (Hilton et al. 2022, decoupled PPO). `log_pi` carries the gradient. `log_prox` is of the policy near which π is kept, `log_mu`
    of the one that acted; without it both are the same, and this is PPO (Schulman et al. 2017). The weight is that of
    `weights(trace, level=level)` of π_prox against μ: plain importance sampling by token, unless you say otherwise, is π_prox/μ;
    `TruncatedIS(bound=2.0)` caps it. Or give any `weight` of your own, in place of log_mu and trace.

    `clip` is one number for both sides, or (low, high). With `dual` > 1 the loss of a decision with A < 0 is at most
    −w · dual · A (Ye et al. 2020): else a ratio far above 1 has no bound there. `advantage`, `mask`, `segment` and `keep` are
    those of `weighted`.

    The only term is "policy"; the arrays are "ratio", "weight", "advantage" and "clipped", 1 where clipping takes the gradient.

    >>> import numpy as np
    >>> log_prox = np.log([0.5, 0.5])
    >>> result = clipped(log_pi=np.log([0.8, 0.4]), log_prox=log_prox, log_mu=np.log([0.25, 0.5]),
    ...                 advantage=np.ones(2))
    >>> # −(2 · 1.2 + 1 · 0.8) / 2
    >>> result.arrays["weight"], result.arrays["clipped"], round(float(result.loss), 4)
    (array([2., 1.]), array([1., 0.]), -1.6)
    """
    if weight is not None and (log_mu is not None or trace is not None):
        raise TypeError("weight and log_mu are both given: pass log_mu, and a trace, or a weight of your own")
    if trace is not None and log_mu is None:
        raise TypeError("trace is given without log_mu: it weighs π_prox against μ, the policy that acted")
    low, high = ends(clip, 1.0, checked=backend_of({"log_pi": log_pi}).looks(check, {"log_pi": log_pi}))
    parts = PolicyLoss("clipped", Clip(low, high, dual))
    if log_mu is not None:
        parts = replace(parts, weight=trace or ImportanceSampling(), weight_options={"level": level})
    given = {
        "log_pi": log_pi, "log_prox": log_prox, "log_mu": log_mu, "advantage": advantage,
        "weight": weight, "mask": mask, "segment": segment, "keep": keep,
    }  # fmt: skip
    return of_rows(parts, given, check=check, keep_counts=False)
