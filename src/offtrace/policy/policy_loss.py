"""A policy's loss in one sentence: level × shape × weight × keep × mean.

L = −mean over decisions of  keep_t · w_t · shape(r_t, A_t)   [+ cost · KL to a reference − cost · entropy]

r_t    the ratio π/π_prox at a level; log r = sg[log r at the level] + log π − sg[log π], so that the gradient is the token's
shape  what is done with r and A (`offtrace.policy.shapes`)
w_t    the weight π_prox/μ, by any trace and level of `offtrace.weights`, without gradient
keep   rows or decisions that are left out, by criteria of `offtrace.reject` or by the sign of A; they count in the mean
mean   what the sum is divided by
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from offtrace._shared.suggestions import closest, ending
from offtrace.arrays import Array, Option
from offtrace.policy.rows import Rows
from offtrace.policy.shapes import Clip, Ratios, Shape
from offtrace.policy.steps import Loss, Steps, at_least_1
from offtrace.returns import reject, weights
from offtrace.traces import Trace
from offtrace.traces.base import number

LEVELS = ("token", "prefix", "prefix-mean", "sequence", "sequence-mean")
"""Where the ratio is taken: of the decision; the product up to it, or its root by their number; the same of the whole row."""
MEANS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
"""What the sum over decisions is divided by: their number; rows; rows and the decisions of each; rows and a length."""
KLS = ("k1", "k2", "k3", "k1+", "k3+")
"""Estimators of KL(π‖π_ref) (Schulman 2020); with +, the value with the gradient of k2, which is right on average."""


@dataclass(frozen=True)
class PolicyLoss:
    """A loss by its parts. `offtrace.policy.loss(name, …)` takes one by its name, or itself.

    >>> named = PolicyLoss("mine", shape=Clip(0.2, 0.3), level="sequence-mean", mean="seq-mean-token-mean")
    >>> named.formula
    'min(r A, clip(r, 1 − low, 1 + high) A); for A < 0 at least dual · A, r by sequence-mean, w = 1, seq-mean-token-mean'
    """

    name: str
    shape: Shape = field(default_factory=Clip)
    level: str = "token"
    """One of `LEVELS`."""
    weight: Trace | None = None
    """The trace of w = π_prox/μ; None: w = 1."""
    weight_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What `weights` takes beside it, such as level, lower, upper and outside."""
    keep: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What `reject` takes: a decision that it rejects has no loss, and counts in the mean."""
    keep_negative: float | None = None
    """A row with A < 0 is dropped where the mean of log π_prox − log π over it exceeds this (OPSM)."""
    mean: str = "token-mean"
    """One of `MEANS`."""
    citation: str = ""
    bias: str = ""
    """What is known of the expected gradient against ∇J."""

    def __post_init__(self) -> None:
        _one_of("level", self.level, LEVELS)
        _one_of("mean", self.mean, MEANS)

    @property
    def formula(self) -> str:
        """What is maximised, in one line."""
        w = "1" if self.weight is None else f"{self.weight!r} at {self.weight_options.get('level', 'token')}"
        return f"{self.shape.formula}, r by {self.level}, w = {w}, {self.mean}"

    def examples(self) -> tuple[dict[str, np.ndarray], ...]:
        """Small arguments for `loss`: one decision, rows of unequal length, and ratios far from 1."""
        rng = np.random.default_rng(0)
        cases: list[dict[str, np.ndarray]] = []
        for shape, far in (((1, 1), 0.1), ((3, 5), 0.2), ((2, 4), 2.0)):
            log_mu = np.log(rng.uniform(0.1, 0.9, shape))
            log_prox = np.minimum(log_mu + far * rng.normal(size=shape), -0.01)
            log_pi = np.minimum(log_prox + far * rng.normal(size=shape), -0.01)
            mask = np.arange(shape[1]) < rng.integers(1, shape[1] + 1, shape[0])[:, None]
            advantage = rng.normal(size=shape[0])
            cases.append(
                {"log_pi": log_pi, "log_prox": log_prox, "log_mu": log_mu, "advantage": advantage, "mask": mask}
            )
        return tuple(cases)


_registered: dict[str, PolicyLoss] = {}


def register_loss(loss: PolicyLoss) -> PolicyLoss:
    """Add a loss to those that `loss` takes by name, and return it.

    >>> register_loss(PolicyLoss("mine", shape=Clip(0.2, 0.3)))  # doctest: +SKIP
    """
    if loss.name in losses():
        raise ValueError(f"there is a loss named {loss.name!r} already: give another name")
    _registered[loss.name] = loss
    return loss


def losses() -> dict[str, PolicyLoss]:
    """All losses by their names.

    >>> list(losses())[:3]
    ['ppo', 'decoupled_ppo', 'grpo']
    """
    from offtrace.policy.named_losses import NAMED  # which are made of this class

    return {named.name: named for named in NAMED} | _registered


def loss(
    name: str | PolicyLoss,
    *,
    log_pi: Array,
    advantage: Array,
    log_prox: Array | None = None,
    log_mu: Array | None = None,
    mask: Array | None = None,
    segment: Array | None = None,
    clip: Any = None,
    dual: float | None = None,
    mean: str | None = None,
    trace: Trace | None = None,
    weight: Array | None = None,
    keep: Array | None = None,
    log_ref: Array | None = None,
    kl: str = "k3",
    kl_cost: float = 0.0,
    entropy: Array | None = None,
    entropy_cost: float = 0.0,
    tokens: float | None = None,
    rows: float | None = None,
    length: float | None = None,
    ranks: int = 1,
    check: Option = None,
) -> Loss[Array]:
    """The loss of a policy gradient from rollouts, by its name in `losses()` or by its parts.

    - `log_pi` [T] or [B, T] is of the policy that learns, and carries the gradient; `log_prox` of the one near which it is kept
      (the "old" policy), `log_mu` of the one that acted. Without `log_prox`, μ is both; a loss without a weight does not read
      `log_mu` beside `log_prox`.
    - `advantage` [B], one for each row, or of all decisions. `mask` is true for decisions; `segment` as in `weights`.
    - `clip` (one number, or low and high), `dual` and `mean` take the place of the loss's own. `trace` gives π_prox/μ by another
      trace; `weight` is a weight of your own, `keep` what `reject` keeps: the rest has no loss, and counts in the mean.
    - `log_ref` and `kl_cost` add the KL to a reference, by the estimator `kl`; `entropy` and `entropy_cost` subtract one.
    - `tokens`, `rows` and `length` are denominators of the whole batch, where these arrays are a part of it, and `ranks` how many
      processes average their gradients: then sums over parts are what one batch gives.

    The terms are "policy", and "kl" and "entropy" where they are given; the arrays "ratio", "advantage", "clipped", 1 where the
    shape takes the gradient, and "weight" where there is one.

    >>> import numpy as np
    >>> log_prox = np.log([[0.5, 0.5], [0.25, 0.5]])
    >>> found = loss("gspo", log_pi=np.log([[0.8, 0.4], [0.25, 0.45]]), log_prox=log_prox,
    ...              advantage=np.array([1.0, -1.0]), clip=(0.2, 0.2))
    >>> round(float(found.loss), 4), found.arrays["ratio"].round(3).tolist()
    (-0.0913, [[1.131, 1.131], [0.949, 0.949]])
    """
    parts = _named(name)
    parts = replace(parts, mean=parts.mean if mean is None else mean, weight=parts.weight if trace is None else trace)
    shape = parts.shape
    if clip is not None or dual is not None:
        low, high = _ends(shape, clip)
        shape = shape.clipped_at(low, high, dual)
    if log_prox is None:
        log_prox = log_mu
        if log_prox is None:
            raise TypeError(
                f"{parts.name} needs log_prox, of the policy near which π is kept, or log_mu, of the one that acted"
            )
    read = {
        "log_pi": log_pi, "log_prox": log_prox, "mask": mask, "weight": weight, "log_ref": log_ref, "entropy": entropy,
    }  # fmt: skip
    x: Steps[Array] = Steps(read, beside={"advantage": advantage, "segment": segment, "keep": keep}, check=check)
    by_row: Rows[Array] = Rows(x, x.decision, segment)
    A = x.of_rows("advantage", advantage)
    token: Any = x.read("log_pi") - x.constant("log_prox")
    base = Ratios(x, by_row, token, token, A)
    r = replace(
        base, level=token if parts.level == "token" else base.at(_level(parts.level, x.do.constant(token), by_row))
    )
    surrogate, out = shape(r)
    w = _weight(x, parts, log_prox, log_mu, weight, mask, segment, check)
    each: Any = surrogate if w is None else w * surrogate
    there = _kept(x, parts, r, log_prox, log_mu, mask, segment, keep, check)
    terms: dict[str, Any] = {"policy": -each if there is None else x.xp.where(there, -each, 0.0)}
    costs: dict[str, float] = {}
    if log_ref is not None:
        terms["kl"], costs["kl"] = kl_terms(kl, x), number("kl_cost", kl_cost, 0.0, np.inf)
    if entropy is not None:
        terms["entropy"], costs["entropy"] = x.read("entropy"), -number("entropy_cost", entropy_cost, 0.0, np.inf)
    share = _shares(x, by_row, parts.mean, tokens, rows, length, ranks)
    made: dict[str, Any] = {"ratio": x.xp.exp(x.do.constant(r.level)), "advantage": A}
    made["clipped"] = x.xp.where(out, 1.0, 0.0 * A)
    if w is not None:
        made["weight"] = w
    terms = {name: x.xp.where(x.decision, term, 0.0) for name, term in terms.items()}
    total: Any = sum(costs.get(name, 1.0) * term for name, term in terms.items())
    found = {name: x.do.constant(x.xp.where(x.decision, array, 0.0)) for name, array in made.items()}
    count: Any = x.decision.sum()
    return Loss((total * share).sum(), terms, found, count)


def kl_terms(kind: str, x: Steps[Any]) -> Any:
    """An estimate of KL(π‖π_ref) at each decision, with d = log π − log π_ref: k1 = d, k2 = d²/2, k3 = e^{−d} − 1 + d."""
    _one_of("kl", kind, KLS)
    d: Any = x.read("log_pi") - x.constant("log_ref")
    half = 0.5 * d**2
    if kind == "k2":
        return half
    value = d if kind.startswith("k1") else x.xp.exp(-d) - 1.0 + d
    if not kind.endswith("+"):
        return value
    return x.do.constant(value) + half - x.do.constant(half)


def _named(name: str | PolicyLoss) -> PolicyLoss:
    if isinstance(name, PolicyLoss):
        return name
    known = losses()
    if name not in known:
        raise ValueError(f"there is no loss named {name!r}{ending(closest(name, known))} Known: {', '.join(known)}")
    return known[name]


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(
            f"{name} = {value!r} is not known{ending(closest(value, known))} It is one of: {', '.join(known)}"
        )


def _ends(shape: Any, clip: Any) -> tuple[float, float]:
    if clip is None:
        return getattr(shape, "low", 0.0), getattr(shape, "high", 0.0)
    both: Any = clip if np.ndim(clip) else (clip, clip)
    if len(both) != 2:
        raise ValueError(f"clip must be one number or (low, high), got {clip!r}")
    return number("clip", both[0], 0.0, np.inf), number("clip", both[1], 0.0, np.inf)


def _level(level: str, token: Any, rows: Rows[Any]) -> Any:
    """log r at the level, of log r of the decisions, without gradient."""
    if level.startswith("prefix"):
        total, count = rows.up_to(token), rows.position
    else:
        total, count = rows.total(token), rows.count
    if not level.endswith("mean"):
        return total
    n: Any = count()
    return total / rows.x.xp.where(n > 1, n, 1.0)


def _weight(
    x: Steps[Any], parts: PolicyLoss, log_prox: Any, log_mu: Any, weight: Any, mask: Any, segment: Any, check: Any
) -> Any:
    """w, or None where it is 1."""
    if weight is not None:
        return x.constant("weight")
    if parts.weight is None:
        return None
    if log_mu is None:
        raise TypeError(f"{parts.name} weighs π_prox against μ, the policy that acted: give log_mu")
    options: dict[str, Any] = {"level": "token", **parts.weight_options}
    return weights(
        parts.weight,
        log_pi=x.plain(log_prox),
        log_mu=x.plain(log_mu),
        mask=mask,
        segment=segment,
        check=check,
        **options,
    )


def _kept(
    x: Steps[Any],
    parts: PolicyLoss,
    r: Ratios,
    log_prox: Any,
    log_mu: Any,
    mask: Any,
    segment: Any,
    keep: Any,
    check: Any,
) -> Any:
    """Where a decision has a loss; None: everywhere."""
    there = None if keep is None else x.do.array("keep", keep) != 0
    if parts.keep:
        if log_mu is None:
            raise TypeError(f"{parts.name} compares π_prox with μ, the policy that acted: give log_mu")
        more = reject(
            **parts.keep, log_pi=x.plain(log_prox), log_mu=x.plain(log_mu), mask=mask, segment=segment, check=check
        )
        there = more if there is None else there & more
    if parts.keep_negative is not None:
        n: Any = r.rows.count()
        apart = -r.rows.total(x.do.constant(r.token)) / x.xp.where(n > 0, n, 1.0)
        more = ~((r.advantage < 0) & (apart > parts.keep_negative))
        there = more if there is None else there & more
    return there


def _shares(
    x: Steps[Any],
    by_row: Rows[Any],
    mean: str,
    tokens: float | None,
    rows: float | None,
    length: float | None,
    ranks: int,
) -> Any:
    """By what each decision counts in the loss."""
    one: Any = x.xp.where(x.decision, by_row.ones(), 0.0)
    if mean == "token-mean":
        return ranks * one / (at_least_1(x.do, one.sum()) if tokens is None else tokens)
    n: Any = x.xp.where(x.decision, by_row.count(), 1.0)
    share = one / n if mean == "seq-mean-token-mean" else one
    if mean == "seq-mean-token-sum-norm":
        share = share / (x.shape[-1] if length is None else length)
    return ranks * share / (at_least_1(x.do, (one / n).sum()) if rows is None else rows)
