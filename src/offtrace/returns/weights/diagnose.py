"""What weights do to given decisions, and whether log_mu can be that of the policy which acted."""

from __future__ import annotations

from typing import Any

import numpy as np

from offtrace._shared import notebook
from offtrace.arrays import Array, Module, Option
from offtrace.returns.array_kinds import as_numpy, backend_of
from offtrace.returns.backend import Backend
from offtrace.returns.numpy.backend import BACKEND as NUMPY
from offtrace.returns.numpy.weights import decisions_of
from offtrace.returns.weights.api import weights
from offtrace.returns.weights.decisions import agreed
from offtrace.returns.weights.ragged import padded_rows
from offtrace.returns.weights.scan import Pair, previous, running_sums, starts
from offtrace.traces import Trace
from offtrace.traces.trace_argument import UNCAPPED

FAR = 4.0
"""So many standard errors from 1 the mean of ρ is by chance in one of 16,000 batches."""
SLOPE, ALIKE = 0.1, 0.2


class WeightDiagnosis(dict[str, float]):
    """What `diagnose_weights` returns: numbers by name, as loggers take them. It prints as a table, with what seems wrong."""

    ess_by_position: np.ndarray
    """The effective share of sequences by ρ_1 ··· ρ_i, for the decisions i = 1, 2, …; NaN from where one sequence is left."""
    findings: tuple[str, ...]
    """What is wrong with the log-probabilities, and what it usually means; empty where nothing is."""

    def __init__(self, numbers: dict[str, float], ess_by_position: np.ndarray, findings: tuple[str, ...]) -> None:
        super().__init__(numbers)
        self.ess_by_position, self.findings = ess_by_position, findings

    def __str__(self) -> str:
        width = max(map(len, self)) + 2
        lines = [f"  {name.replace('_', ' '):<{width}}{value:.4g}" for name, value in self.items()]
        return "\n".join(
            [f"{self['decisions']:g} decisions in {self['sequences']:g} sequences", *lines[2:], *self.findings]
        )

    def _repr_html_(self) -> str:
        rows = [(name.replace("_", " "), f"{value:.4g}") for name, value in self.items()]
        text = notebook.table("Weights of decisions", [*rows, *(("finding", words) for words in self.findings)])
        at = np.arange(1, len(self.ess_by_position) + 1)
        return text + notebook.curves(at, {"": self.ess_by_position}, "decision", "effective share of sequences")


def diagnose_weights(
    trace: Trace,
    *,
    log_pi: Array,
    log_mu: Array,
    mask: Array | None = None,
    level: str = "prefix",
    segment: Array | None = None,
    lower: float | None = None,
    upper: float | None = None,
    outside: str = "truncate",
    greedy: Array | None = None,
    cu_seqlens: Any = None,
    max_seqlen: int | None = None,
    check: Option = None,
) -> WeightDiagnosis:
    """Measure how far π and μ are apart at the decisions taken, and what `weights` makes of it, in float64.

    Tensors on a GPU are measured there, and one small transfer brings the numbers; their values are only checked with check=True.
    `cu_seqlens` and `max_seqlen` as in `weights`.

    - `mean_ratio`: the mean of ρ over decisions, which is 1 on average whatever the policies, if the actions were drawn from μ
      and log_mu is μ's. `mean_ratio_z` is how many standard errors it is from 1; ρ_t − 1 is a martingale difference, so that
      decisions of a row count like independent ones. Beyond ±4 the `findings` say what it usually means
    - `kl_k1`, `kl_k3`: the means of −log ρ and of ρ − 1 − log ρ, both estimates of KL(μ, π) of a decision
    - `chi2_token`, `chi2_sequence`: the means of ρ² and of (∏ρ)², less 1, which estimate χ²(π, μ)
    - `ess_token`, `ess_sequence`: Kish's effective share (Σw)²/(nΣw²), from 1/n to 1, of w = ρ and of w = ∏ρ
    - `ess_weight`, `largest_weight`, `largest_row`, `largest_step`: the same share of the weights that were asked for, over
      decisions, their largest, and where it stands
    - `truncated`: the share of decisions whose weight is not the plain product of ratios of its level

    >>> import numpy as np, offtrace as ot
    >>> rng = np.random.default_rng(0)
    >>> mu, pi = np.array([0.5, 0.5]), np.array([0.6, 0.4])
    >>> action = rng.integers(2, size=(200, 10))
    >>> diagnosis = ot.diagnose_weights(ot.TruncatedIS(bound=2.0), log_pi=np.log(pi)[action],
    ...                             log_mu=np.log(mu)[action])
    >>> names = ("mean_ratio", "mean_ratio_z", "ess_sequence")
    >>> [round(diagnosis[name], 2) for name in names], diagnosis.findings
    ([0.99, -1.92, 0.66], ())
    """
    given = {"log_pi": log_pi, "log_mu": log_mu, "mask": mask, "segment": segment, "greedy": greedy}
    for name in ("log_pi", "log_mu"):
        if given[name] is None:
            raise TypeError(f"{name} is missing: the diagnosis compares log π with log μ of the actions taken")
    given, _ = padded_rows(given, cu_seqlens, max_seqlen, check)
    do: Backend[Any] = backend_of(given)
    if not do.has_devices or do.looks(check, given):
        do, given = NUMPY, as_numpy(given)
    checked = agreed(do, given)
    if do is NUMPY:
        decisions_of(checked)  # an error where a value is bad
    rows = {name: a if a is None else do.array(name, a).reshape(-1, checked.shape[-1]) for name, a in given.items()}
    in_double: dict[str, Any] = {
        n: do.cast(a, do.xp.float64) if a is not None and n.startswith("log_") else a for n, a in rows.items()
    }
    options: dict[str, Any] = {"lower": lower, "upper": upper, "outside": outside}
    weight = weights(trace, **in_double, **options, level=level)
    uncapped = weights(UNCAPPED, **in_double, level=level)
    with np.errstate(all="ignore"):
        numbers, by_position = _measured(do, in_double, weight, uncapped)
    if not numbers["decisions"]:
        raise ValueError("mask has no decision in any row: it must be true at the steps whose actions were chosen by μ")
    return WeightDiagnosis(numbers, by_position, tuple(_findings(do, in_double, numbers)))


def _measured(
    do: Backend[Any], rows: dict[str, Any], weight: Any, uncapped: Any
) -> tuple[dict[str, float], np.ndarray]:
    """All numbers, and the effective shares by position, of arrays [B, T]; they come to the host together."""
    xp, T = do.xp, weight.shape[1]
    segment: Any = rows["segment"]
    decision: Any = weight == weight if rows["mask"] is None else rows["mask"] != 0
    log_ratio = xp.where(decision, rows["log_pi"] - rows["log_mu"], 0.0)
    first: Any = starts(do, decision, segment)
    one, there = xp.where(decision, 1.0, 0.0 * weight), decision.reshape(-1)
    up_to = running_sums(do, Pair(log_ratio, one), first, packed=segment is not None)
    n, sequences = one.sum(), first.sum()
    if segment is None:
        whole, exists = log_ratio.sum(1), decision.any(1)
    else:  # sequences are numbered in their order
        begun = first.reshape(-1)
        whole = do.summed(log_ratio.reshape(-1), xp.clip(xp.cumsum(begun, 0) - 1, 0, None), len(begun))
        exists = xp.cumsum(whole == whole, 0) <= sequences
    ratio, of_rows = xp.exp(log_ratio), xp.exp(2.0 * whole)
    excess = xp.where(decision, ratio - 1.0, 0.0)
    spread = xp.sqrt((excess**2).sum()) / n
    largest = xp.argmax(xp.where(decision, weight, -1.0).reshape(-1), 0)
    same: Any = (weight == uncapped) | (xp.abs(weight - uncapped) <= 1e-9 * uncapped)
    numbers = {
        "decisions": n,
        "sequences": sequences,
        "mean_ratio": 1.0 + excess.sum() / n,
        "mean_ratio_error": spread,
        "mean_ratio_z": xp.where(spread > 0, excess.sum() / n / spread, 0.0),
        "kl_k1": -log_ratio.sum() / n,
        "kl_k3": xp.where(decision, xp.expm1(log_ratio) - log_ratio, 0.0).sum() / n,
        "chi2_token": xp.where(decision, ratio**2, 0.0).sum() / n - 1.0,
        "chi2_sequence": xp.where(exists, of_rows, 0.0).sum() / sequences - 1.0,
        "ess_token": _share(xp, log_ratio.reshape(-1), there),
        "ess_sequence": _share(xp, whole, exists),
        "ess_weight": _share(xp, xp.log(weight).reshape(-1), there),
        "largest_weight": weight.reshape(-1)[largest],
        "largest_row": largest // T,
        "largest_step": largest % T,
        "truncated": xp.where(decision & ~same, 1.0, 0.0 * weight).sum() / n,
    }
    share, count = _by_position(do, up_to, decision, packed=segment is not None)
    scalars = xp.stack([do.cast(xp.asarray(a), xp.float64) for a in numbers.values()])
    on_host = do.as_numpy(xp.concatenate([scalars, share, count]))
    of_position, counts = on_host[len(numbers) : -T], on_host[-T:]
    values = dict(zip(numbers, on_host[: len(numbers)].tolist(), strict=True))
    return values, of_position[: int((counts > 0).sum())]


def _by_position(do: Backend[Any], up_to: Pair, decision: Any, *, packed: bool) -> tuple[Any, Any]:
    """The effective share of sequences by ρ_1 ··· ρ_i, and how many sequences there are, for i = 1 … T."""
    xp, (B, T) = do.xp, decision.shape
    row = xp.cumsum(xp.ones_like(decision, dtype=int), 0) - 1
    position = do.cast(up_to.two, row.dtype) - 1
    if packed:  # a row has several decisions of a position
        place = xp.where(decision, position, T).reshape(-1)
        logs = up_to.one.reshape(-1)
        w = xp.where(decision.reshape(-1), xp.exp(logs - do.largest(logs, place, T + 1)[place]), 0.0)
        one = xp.where(decision, 1.0, 0.0 * up_to.one).reshape(-1)
        total, squares, count = (do.summed(a, place, T + 1)[:T] for a in (w, w**2, one))
    else:  # decisions move to the left of their row
        place = xp.where(decision, row * T + position, B * T).reshape(-1)
        logs, there = (
            do.placed(a.reshape(-1), place, B * T + 1)[: B * T].reshape(B, T)
            for a in (up_to.one, xp.where(decision, 1.0, 0.0 * up_to.one))
        )
        top = xp.amax(xp.where(there > 0, logs, -np.inf), 0)
        w = xp.where(there > 0, xp.exp(logs - top), 0.0)
        total, squares, count = w.sum(0), (w**2).sum(0), there.sum(0)
    return xp.where(count > 1, total**2 / (count * squares), np.nan), count


def _share(xp: Module, logs: Any, there: Any) -> Any:
    """(Σw)²/(nΣw²) of weights that are given by their logarithms; NaN where all are 0."""
    top = xp.amax(xp.where(there, logs, -np.inf), 0)
    w = xp.where(there, xp.exp(logs - top), 0.0)
    return w.sum() ** 2 / (there.sum() * (w**2).sum())


def _findings(do: Backend[Any], rows: dict[str, Any], numbers: dict[str, float]) -> list[str]:
    """What a mean of ρ that is not 1 usually means, by what else is seen."""
    if not abs(numbers["mean_ratio_z"]) > FAR:
        return []
    head = (
        f"The mean of ρ is {numbers['mean_ratio']:.4g}, {abs(numbers['mean_ratio_z']):.3g} standard errors from 1, "
        "which it must be on average if the actions were drawn from μ and log_mu is μ's. "
    )
    with np.errstate(all="ignore"):
        here, earlier, later, slope = _signs(do, rows)
    return [head + _likely(here, earlier, later, slope, numbers["mean_ratio"])]


def _signs(do: Backend[Any], rows: dict[str, Any]) -> list[float]:
    """The correlation of log π with log μ at the same decision, one earlier and one later; and the ratio of their spreads."""
    xp = do.xp
    log_pi, log_mu = rows["log_pi"], rows["log_mu"]
    decision: Any = log_pi == log_pi if rows["mask"] is None else rows["mask"] != 0
    inside = decision & ~starts(do, decision, rows["segment"])  # decisions with one before them in the same sequence
    before_pi, before_mu = (previous(do, log, decision).two for log in (log_pi, log_mu))
    signs = [
        _correlation(xp, log_pi, log_mu, decision),
        _correlation(xp, log_pi, before_mu, inside),
        _correlation(xp, before_pi, log_mu, inside),
        _spread_ratio(xp, log_mu, log_pi, decision),
    ]
    return do.as_numpy(xp.stack(signs)).tolist()


def _likely(here: float, earlier: float, later: float, slope: float, mean: float) -> str:
    """The likeliest reason."""
    shift, where = max((earlier, "earlier"), (later, "later"))
    if shift > here + ALIKE:
        return (
            f"A shifted token: log_pi goes with the log_mu of the decision one {where} in the row (correlation "
            f"{shift:.2f}, against {here:.2f} at the same step). Align them."
        )
    if abs(slope - 1.0) > SLOPE:
        return (
            f"Another temperature: log_pi changes by {slope:.2f} where log_mu changes by 1. Take both at the temperature "
            "at which the actions were drawn."
        )
    if mean < 1.0:
        return (
            "log_mu was renormalised after top-p, top-k or min-p: then the mean of ρ is the share of π's probability that was "
            "kept. Renormalise log_pi over the same tokens."
        )
    return "log_mu is too small: it is not of the policy that acted, or was taken before the cut by top-p or top-k that acted."


def _centred(xp: Module, a: Any, b: Any, there: Any) -> tuple[Any, Any, Any]:
    """Both less their means where both are finite, and how many there are."""
    fits = there & xp.isfinite(a) & xp.isfinite(b)
    n = fits.sum()
    a, b = (xp.where(fits, x - xp.where(fits, x, 0.0).sum() / n, 0.0) for x in (a, b))
    return a, b, n


def _correlation(xp: Module, a: Any, b: Any, there: Any) -> Any:
    """The correlation of what is finite; −1 where there is none."""
    a, b, n = _centred(xp, a, b, there)
    spread = xp.sqrt((a**2).sum() * (b**2).sum())
    return xp.where((n >= 3) & (spread > 0), (a * b).sum() / spread, -1.0)


def _spread_ratio(xp: Module, x: Any, y: Any, there: Any) -> Any:
    """By how much y changes where x changes by 1: the ratio of their spreads, since both are noisy; 1 where x is the same."""
    x, y, n = _centred(xp, x, y, there)
    spread = (x**2).sum()
    return xp.where((n >= 3) & (spread > 0), xp.sqrt((y**2).sum() / spread), 1.0)
