"""A policy's loss in one sentence: level × shape × weight × keep × mean.

L = −mean over decisions of  keep_t · w_t · shape(r_t, A_t)   [+ cost · KL to a reference − cost · entropy]

r_t    the ratio π/π_prox at a level; log r = sg[log r at the level] + log π − sg[log π], so that the gradient is the token's
shape  what is done with r and A (`offtrace.policy.shapes`)
w_t    the weight π_prox/μ, by any trace and level of `offtrace.weights`, without gradient
keep   rows or decisions that are left out, by criteria of `offtrace.reject` or by the sign of A; they count in the mean
mean   what the sum is divided by
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from offtrace._shared.suggestions import closest, ending
from offtrace.arrays import Array, Option, is_number
from offtrace.policy.rows import Rows
from offtrace.policy.shapes import Clip, Ratios, Shape
from offtrace.policy.steps import Loss, Steps, at_least_1
from offtrace.returns import reject, weights
from offtrace.returns.weights.ragged import padded, padded_rows
from offtrace.traces import Trace
from offtrace.traces.base import number, option

LEVELS = ("token", "prefix", "prefix-mean", "sequence", "sequence-mean")
"""Where the ratio is taken: of the decision; the product up to it, or its root by their number; the same of the whole row."""
MEANS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
"""What the sum over decisions is divided by: their number; rows; rows and the decisions of each; rows and a length."""
NEVER = -800.0
"""The least log r, as where π is 0: its exponential is 0, and sums of others are not lost in it."""
LARGEST = float(np.finfo(np.float32).max)
KLS = ("k1", "k2", "k3", "k1+", "k3+")
"""Estimators of KL(π‖π_ref) (Schulman 2020); with +, the value with the gradient of k2, which is right on average."""


def _no_options() -> dict[str, Any]:
    """An empty dict, by a function that torch.compile follows."""
    return {}


@dataclass(frozen=True)
class PolicyLoss:
    """A loss by its parts. `offtrace.policy.loss(name, …)` takes one by its name, or itself.

    >>> named = PolicyLoss("mine", shape=Clip(0.2, 0.3), level="sequence-mean", mean="seq-mean-token-mean")
    >>> named.formula.split(", r by ")[1]
    'sequence-mean, w = 1, seq-mean-token-mean'
    """

    name: str
    shape: Shape = field(default_factory=Clip)
    level: str = "token"
    """One of `LEVELS`."""
    weight: Trace | None = None
    """The trace of w = π_prox/μ; None: w = 1."""
    weight_options: Mapping[str, Any] = field(default_factory=_no_options)
    """Further arguments of `weights`, such as level, lower, upper and outside."""
    keep: Mapping[str, Any] = field(default_factory=_no_options)
    """What `reject` takes: a decision that it rejects has no loss, and counts in the mean."""
    keep_negative: float | None = None
    """A row with A < 0 is dropped where the mean of log π_prox − log π over it exceeds this (OPSM)."""
    mean: str = "token-mean"
    """One of `MEANS`."""
    citation: str = ""
    bias: str = ""
    """What is known of the expected gradient against ∇J."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"name must be a text, got {self.name!r}")
        if not isinstance(self.shape, Shape):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"shape must be one of offtrace.policy.shapes, such as Clip(0.2, 0.2), got {self.shape!r}")
        if self.weight_options and self.weight is None:
            raise TypeError("weight_options are given without weight, a trace")
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
    if not isinstance(loss, PolicyLoss):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"register_loss takes a PolicyLoss, got {type(loss).__name__}")
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
    cu_seqlens: Any = None,
    max_seqlen: int | None = None,
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
      processes average their gradients: then sums over parts are what one batch gives. `length` is T unless it is given; packed
      rows, and parts that are padded to different lengths, need it. Those that `mean` does not use are ignored.

    - Rows of unequal length need no padding: with `cu_seqlens` [n + 1], where each begins, arrays are flat [N]. Or pass lists of
      arrays, or nested tensors. `terms` and `arrays` have the same form. `max_seqlen` as in `weights`.

    The terms are "policy", and "kl" and "entropy" where they are given; the arrays "ratio", "advantage", "clipped", 1 where the
    shape takes the gradient, and "weight" where there is one.

    >>> import numpy as np
    >>> log_prox = np.log([[0.5, 0.5], [0.25, 0.5]])
    >>> result = loss("gspo", log_pi=np.log([[0.8, 0.4], [0.25, 0.45]]), log_prox=log_prox,
    ...              advantage=np.array([1.0, -1.0]), clip=(0.2, 0.2))
    >>> round(float(result.loss), 4), result.arrays["ratio"].round(3).tolist()
    (-0.0913, [[1.131, 1.131], [0.949, 0.949]])
    """
    parts = named_loss(name)
    if trace is not None and weight is not None:
        raise TypeError("trace and weight are both given: the weight is by the trace, or your own")
    parts = replace(parts, mean=parts.mean if mean is None else mean, weight=parts.weight if trace is None else trace)
    shape = parts.shape
    if clip is not None or dual is not None:
        own = getattr(shape, "low", 0.0), getattr(shape, "high", 0.0)
        shape = shape.clipped_at(*(own if clip is None else ends(clip, np.inf, checked=True)), dual)
    if log_prox is None:
        log_prox = log_mu
        if log_prox is None:
            raise TypeError(
                f"{parts.name} needs log_prox, of the policy near which π is kept, or log_mu, of the one that acted"
            )
    _one_of("kl", kl, KLS)
    costs = {
        "kl": number("kl_cost", kl_cost, 0.0, np.inf),
        "entropy": -number("entropy_cost", entropy_cost, 0.0, np.inf),
    }
    for term, array, called in (("kl", log_ref, "log_ref"), ("entropy", entropy, "entropy")):
        if costs[term] and array is None:
            raise TypeError(f"{term}_cost is given without {called}: give both or neither")
    given, in_form = padded_rows(
        {
            "log_pi": log_pi, "log_prox": log_prox, "log_mu": log_mu, "advantage": advantage, "mask": mask,
            "segment": segment, "weight": weight, "keep": keep, "log_ref": log_ref, "entropy": entropy,
        },
        cu_seqlens, max_seqlen, check,
    )  # fmt: skip
    if parts.mean == "seq-mean-token-sum-norm" and length is None and (segment is not None or in_form is not padded):
        raise TypeError(
            f"{parts.mean} divides by the length of a padded row, which packed rows do not show: give length"
        )
    by = Denominators(tokens, rows, length, ranks)
    padded_loss = of_rows(replace(parts, shape=shape), given, kl=kl, costs=costs, by=by, check=check)
    return padded_loss._replace(
        terms={name: in_form(term) for name, term in padded_loss.terms.items()},
        arrays={name: in_form(array) for name, array in padded_loss.arrays.items()},
    )


class Denominators(NamedTuple):
    """Those of `loss`; None for that of the arrays."""

    tokens: float | None = None
    rows: float | None = None
    length: float | None = None
    ranks: float = 1


OF_THE_ARRAYS, NO_COSTS = Denominators(), {"kl": 0.0, "entropy": 0.0}


def of_rows(
    parts: PolicyLoss,
    given: Mapping[str, Any],
    *,
    kl: str = "k3",
    costs: Mapping[str, float] = NO_COSTS,
    by: Denominators = OF_THE_ARRAYS,
    keep_counts: bool = True,
    check: Option = None,
) -> Loss[Any]:
    """The loss of arrays [T] or [B, T]. `keep_counts` says whether what is not kept counts in the mean."""
    beside = {name: given[name] for name in ("advantage", "segment", *(("keep",) if keep_counts else ()))}
    x: Steps[Any] = Steps(
        {n: a for n, a in given.items() if n not in beside and n != "log_mu"}, beside=beside, check=check
    )
    if given["segment"] is not None:
        _check_segment(x, given["segment"])
    by_row: Rows[Any] = Rows(x, x.decision, given["segment"])
    A = x.of_rows("advantage", given["advantage"])
    moved: Any = x.read("log_pi") - x.constant("log_prox")
    token = x.xp.clip(moved, NEVER, None)
    constant: Any = x.do.constant(token)
    drawn = {
        "log_pi": x.plain(given["log_prox"]), "log_mu": x.plain(given["log_mu"]),
        "mask": given["mask"], "segment": given["segment"], "check": check,
    }  # fmt: skip
    w = x.constant("weight") if given["weight"] is not None else _weight(parts, drawn)
    there = _kept(x, parts, A, constant, by_row, beside.get("keep"), drawn)
    live: Any = A != 0
    live = live if there is None else live & there
    live = live if w is None else live & (w != 0)
    level = constant if parts.level == "token" else _level(parts.level, constant, by_row)
    surrogate = parts.shape(Ratios(x, by_row, constant, x.xp.where(live, level, 0.0), A, live))
    value, slope = surrogate.value, x.xp.clip(surrogate.slope, -LARGEST, LARGEST)  # ∞ times the 0 below would be NaN
    each = value + slope * (token - constant)
    each = each if w is None else w * each
    terms: dict[str, Any] = {"policy": -each if there is None else x.xp.where(there, -each, 0.0)}
    if "log_ref" in x:
        terms["kl"] = kl_terms(kl, x)
    if "entropy" in x:
        terms["entropy"] = x.read("entropy")
    ratio = x.xp.where(x.decision, x.xp.exp(level), 0.0)
    arrays: dict[str, Any] = {"ratio": ratio, "advantage": A, "clipped": x.xp.where(surrogate.out & live, 1.0, 0.0 * A)}
    if w is not None:
        arrays["weight"] = w
    total: Any = terms["policy"]
    for term in ("kl", "entropy"):
        total = total + costs[term] * terms[term] if costs[term] else total
    return Loss(_mean(x, by_row, parts.mean, by, total), terms, arrays, x.decision.sum())


def _check_segment(x: Steps[Any], segment: Any) -> None:
    """Integer ids in the shape of the arrays, which do not fall along the decisions of a row."""
    ids = x.do.array("segment", segment)
    if tuple(ids.shape) != x.shape:
        raise ValueError(f"segment has shape {tuple(ids.shape)}: it must be {x.shape}, the id of each step's row")
    if x.do.letter(ids.dtype) not in "iu":
        raise TypeError(f"segment must hold integer ids, got {ids.dtype}")
    if not x.looks:
        return
    segments, decision = (np.atleast_2d(x.do.as_numpy(each)) for each in (ids, x.decision))
    for b in range(len(segments)):
        steps = np.flatnonzero(decision[b])
        falls = np.flatnonzero(np.diff(segments[b, steps].astype(np.int64)) < 0)
        if len(falls):
            raise ValueError(f"segment falls at step {steps[falls[0] + 1]} of row {b}: ids must not fall along a row")


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


def named_loss(name: str | PolicyLoss) -> PolicyLoss:
    """The loss of this name, or itself."""
    if isinstance(name, PolicyLoss):
        return name
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"name must be that of a loss, or a PolicyLoss, got {name!r}")
    known = losses()
    if name not in known:
        raise ValueError(f"there is no loss named {name!r}{ending(closest(name, known))} Known: {', '.join(known)}")
    return known[name]


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(
            f"{name} = {value!r} is not known{ending(closest(value, known))} It is one of: {', '.join(known)}"
        )


def ends(clip: float | Sequence[float] | np.ndarray, low: float, *, checked: bool) -> tuple[Any, Any]:
    """The low and high side of a clip, one number for both or two; `low` is the most that the first may be.

    Arrays without axes are numbers where values are checked.
    """
    one = isinstance(clip, int | float | str)  # torch.compile does not follow np.ndim
    both: Any = (clip, clip) if one or not (isinstance(clip, Sequence) or np.ndim(clip)) else clip
    if len(both) != 2:
        raise ValueError(f"clip must be one number or (low, high), got {clip!r}")
    of = option if checked else number
    return of("clip", both[0], 0.0, low), of("clip", both[1], 0.0, np.inf)


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


def _weight(parts: PolicyLoss, drawn: dict[str, Any]) -> Any:
    """w by the trace, or None where it is 1."""
    if parts.weight is None:
        return None
    if drawn["log_mu"] is None:
        raise TypeError(f"{parts.name} weighs π_prox against μ, the policy that acted: give log_mu")
    return weights(parts.weight, **{"level": "token", **parts.weight_options}, **drawn)


def _kept(
    x: Steps[Any], parts: PolicyLoss, A: Any, token: Any, rows: Rows[Any], keep: Any, drawn: dict[str, Any]
) -> Any:
    """Where a decision has a loss; None: everywhere."""
    there = None if keep is None else _flags(x, keep)
    if parts.keep:
        if drawn["log_mu"] is None:
            raise TypeError(f"{parts.name} compares π_prox with μ, the policy that acted: give log_mu")
        more = reject(**parts.keep, **drawn)
        there = more if there is None else there & more
    if parts.keep_negative is not None:
        n: Any = rows.count_or_one()
        apart = -rows.total(token) / n
        more = ~((A < 0) & (apart > parts.keep_negative))
        there = more if there is None else there & more
    return there


def _flags(x: Steps[Any], keep: Any) -> Any:
    """`keep` as booleans: of all steps, or one for each row."""
    array: Any = x.do.array("keep", keep)
    rows = len(x.shape) == 2 and tuple(array.shape) == x.shape[:1]
    if not rows and tuple(array.shape) != x.shape:
        raise ValueError(f"keep has shape {tuple(array.shape)}: it must be {x.shape}, or one for each row")
    if x.looks and not np.isin(x.do.as_numpy(array), (0, 1)).all():
        raise ValueError("keep must hold 0 or 1, or booleans")
    return (x.xp.broadcast_to(array[:, None], x.shape) if rows else array) != 0


def _mean(x: Steps[Any], by_row: Rows[Any], mean: str, by: Denominators, each: Any) -> Any:
    """The sum over decisions, divided as `mean` says."""
    ranks = _denominator("ranks", by.ranks)
    if mean == "token-mean":
        return (
            ranks
            * each.sum()
            / (at_least_1(x.do, x.decision.sum()) if by.tokens is None else _denominator("tokens", by.tokens))
        )
    if mean == "seq-mean-token-mean":
        each = each / by_row.count_or_one()
    elif mean == "seq-mean-token-sum-norm":
        each = each / (x.shape[-1] if by.length is None else _denominator("length", by.length))
    return (
        ranks * each.sum() / (at_least_1(x.do, by_row.how_many()) if by.rows is None else _denominator("rows", by.rows))
    )


def _denominator(name: str, value: Any) -> Any:
    """A number above 0; an array without axes is taken as it is."""
    if isinstance(value, int | float) and not 0 < value < np.inf:
        raise ValueError(f"{name} must be above 0, got {value!r}")
    if isinstance(value, str | bytes) or not is_number(value):
        raise TypeError(f"{name} must be one number, got {value!r}")
    return value
