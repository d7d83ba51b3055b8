"""What weights do to given decisions, and whether log_mu can be that of the policy which acted."""

from __future__ import annotations

from typing import Any

import numpy as np

from offtrace._shared import notebook
from offtrace.arrays import Array
from offtrace.returns.array_kinds import as_numpy
from offtrace.returns.numpy.backend import BACKEND
from offtrace.returns.numpy.weights import Sequences, decisions_of
from offtrace.returns.weights.api import weights
from offtrace.returns.weights.decisions import Decisions, agreed
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
) -> WeightDiagnosis:
    """Measure how far π and μ are apart at the decisions taken, and what `weights` makes of it. O(T), on the host, in float64.

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
    arrays = {"log_pi": log_pi, "log_mu": log_mu, "mask": mask, "segment": segment, "greedy": greedy}
    for name in ("log_pi", "log_mu"):
        if arrays[name] is None:
            raise TypeError(f"{name} is missing: the diagnosis compares log π with log μ of the actions taken")
    on_host = as_numpy(arrays)
    given = agreed(BACKEND, BACKEND.storable, on_host)
    log_ratio, rows = decisions_of(given)
    options: dict[str, Any] = {"lower": lower, "upper": upper, "outside": outside}
    in_double = {n: a.astype(np.float64) if n.startswith("log_") else a for n, a in on_host.items() if a is not None}
    in_double["level"] = level
    weight = rows.of(np.atleast_2d(weights(trace, **in_double, **options)))
    uncapped = rows.of(np.atleast_2d(weights(UNCAPPED, **in_double)))
    numbers = {"decisions": float(len(log_ratio)), "sequences": float(len(rows.starts))}
    numbers |= _of_ratios(log_ratio, rows) | _of_weights(weight, uncapped, rows)
    return WeightDiagnosis(numbers, _by_position(log_ratio, rows), tuple(_findings(numbers, given, rows)))


def _of_ratios(log_ratio: np.ndarray, rows: Sequences) -> dict[str, float]:
    """What depends on π, μ and the decisions alone."""
    whole = np.add.reduceat(log_ratio, rows.starts)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        ratio = np.exp(log_ratio)
        excess, spread = np.mean(ratio - 1.0), np.sqrt(np.sum((ratio - 1.0) ** 2)) / len(ratio)
        return {
            "mean_ratio": float(1.0 + excess),
            "mean_ratio_error": float(spread),
            "mean_ratio_z": float(excess / spread) if spread > 0 else 0.0,
            "kl_k1": float(np.mean(-log_ratio)),
            "kl_k3": float(np.mean(np.expm1(log_ratio) - log_ratio)),
            "chi2_token": float(np.mean(ratio**2) - 1.0),
            "chi2_sequence": float(np.mean(np.exp(2.0 * whole)) - 1.0),
            "ess_token": effective_share(log_ratio),
            "ess_sequence": effective_share(whole),
        }


def effective_share(logs: np.ndarray) -> float:
    """(Σw)²/(nΣw²) of weights that are given by their logarithms; NaN where all are 0."""
    top = logs.max()
    if not np.isfinite(top):
        return float("nan")
    w = np.exp(logs - top)
    return float(w.sum() ** 2 / (len(w) * (w**2).sum()))


def _up_to(log_ratio: np.ndarray, rows: Sequences) -> np.ndarray:
    """Σ log ρ from the start of each sequence up to each decision; −∞ once a ρ was 0."""
    zero = np.isneginf(log_ratio)
    finite, zeros = np.cumsum(np.where(zero, 0.0, log_ratio)), np.cumsum(zero)
    before = rows.starts - 1
    base, none = (np.where(before >= 0, total[before], 0) for total in (finite, zeros))
    return np.where(zeros > rows.spread(none), -np.inf, finite - rows.spread(base))


def _of_weights(weight: np.ndarray, uncapped: np.ndarray, rows: Sequences) -> dict[str, float]:
    """What depends on the weights that were asked for."""
    at = int(np.argmax(weight))
    with np.errstate(divide="ignore", invalid="ignore"):
        same: np.ndarray = (weight == uncapped) | (np.abs(weight - uncapped) <= 1e-9 * uncapped)
        share = effective_share(np.log(weight))
    return {
        "ess_weight": share,
        "largest_weight": float(weight[at]),
        "largest_row": float(rows.rows[at]),
        "largest_step": float(rows.steps[at]),
        "truncated": float(np.mean(~same)),
    }


def _by_position(log_ratio: np.ndarray, rows: Sequences) -> np.ndarray:
    """The effective share of sequences by the product of ratios up to their i-th decision."""
    place = np.arange(len(log_ratio)) - rows.spread(rows.starts)
    logs, n = _up_to(log_ratio, rows), int(rows.lengths.max())
    top = np.full(n, -np.inf)
    np.maximum.at(top, place, logs)
    with np.errstate(invalid="ignore", divide="ignore"):
        w = np.exp(logs - top[place])
        one, two, count = np.bincount(place, w, n), np.bincount(place, w**2, n), np.bincount(place, minlength=n)
        return np.where(count > 1, one**2 / (count * two), np.nan)


def _findings(numbers: dict[str, float], given: Decisions[np.ndarray], rows: Sequences) -> list[str]:
    """What a mean of ρ that is not 1 usually means, by what else is seen."""
    if not abs(numbers["mean_ratio_z"]) > FAR:
        return []
    assert given.log_pi is not None, "it was asked for"
    assert given.log_mu is not None, "it was asked for"
    log_pi, log_mu = (np.atleast_2d(np.asarray(log, np.float64)) for log in (given.log_pi, given.log_mu))
    head = (
        f"The mean of ρ is {numbers['mean_ratio']:.4g}, {abs(numbers['mean_ratio_z']):.3g} standard errors from 1, "
        "which it must be on average if the actions were drawn from μ and log_mu is μ's. "
    )
    return [head + _likely(rows.of(log_pi), rows.of(log_mu), rows, numbers["mean_ratio"])]


def _likely(log_pi: np.ndarray, log_mu: np.ndarray, rows: Sequences, mean: float) -> str:
    """The likeliest reason."""
    inside = np.ones(len(log_pi), bool)
    inside[rows.starts] = False
    after = np.flatnonzero(inside)  # decisions with one before them in the same sequence
    here = _alike(log_pi, log_mu)
    shifts = {"earlier": _alike(log_pi[after], log_mu[after - 1]), "later": _alike(log_pi[after - 1], log_mu[after])}
    where = max(shifts, key=lambda name: shifts[name])
    if shifts[where] > here + ALIKE:
        return (
            f"A shifted token: log_pi goes with the log_mu of the decision one {where} in the row (correlation "
            f"{shifts[where]:.2f}, against {here:.2f} at the same step). Align them."
        )
    slope = _slope(log_mu, log_pi)
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


def _alike(a: np.ndarray, b: np.ndarray) -> float:
    """The correlation of what is finite; −1 where there is none."""
    fits = np.isfinite(a) & np.isfinite(b)
    if fits.sum() < 3 or np.ptp(a[fits]) == 0 or np.ptp(b[fits]) == 0:
        return -1.0
    return float(np.corrcoef(a[fits], b[fits])[0, 1])


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    """By how much y changes where x changes by 1: the ratio of their spreads, since both are noisy."""
    fits = np.isfinite(x) & np.isfinite(y)
    if fits.sum() < 3 or np.ptp(x[fits]) == 0:
        return 1.0
    return float(np.std(y[fits]) / np.std(x[fits]))
