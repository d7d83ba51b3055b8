"""What a trace does to given trajectories, before anyone learns from them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from offtrace import figures
from offtrace._shared import notebook
from offtrace.arrays import NUMPY, Array, Option
from offtrace.returns.api import coefficients, corrections
from offtrace.returns.array_kinds import as_numpy
from offtrace.returns.inputs import layout_of
from offtrace.returns.numpy import backend as numpy_backend
from offtrace.returns.numpy import custom, gradients
from offtrace.returns.numpy.normal_form import lag_caps, normal_form
from offtrace.returns.numpy.read_steps import goes_on as going_on
from offtrace.traces import Trace
from offtrace.traces.base import number
from offtrace.traces.trace_argument import as_trace
from offtrace.trajectory import Trajectory, agree, laid_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T", bound=Trace)


@dataclass(frozen=True)
class Statistics:
    """Numbers about the traces of one trajectory, or of all pooled. Every valid step is the start of a trace."""

    starts: int
    """How many traces."""
    magnitude: float
    """The mean over starts of Σ_t (γ_k ··· γ_{t-1}) β_{k:t}: the paper's measure of an update's size."""
    largest_magnitude: float
    """The largest of these sums."""
    horizon: float
    """The effective horizon: the mean lag of credit, weighted by γ^t β_t, plus one. One-step has 1."""
    cut: float
    """The share of traces, of those that could reach another step, that are exactly 0 at their episode's last step."""
    largest: float
    """The largest β_{k:t}."""
    effective: float
    """Kish's effective number of starts, (Σm)²/Σm² over the magnitudes m: few where a handful of starts dominate."""


MEANT = {
    "magnitude": "Σγᵗβ of a start, on average: how large an update is",
    "largest_magnitude": "the largest Σγᵗβ of a start",
    "horizon": "how many steps credit reaches, on average; one-step has 1",
    "cut": "the share of traces that are 0 when their episode ends, of those that start before its last step",
    "largest": "the largest β",
    "effective": "how many starts do the work: few where some have far larger updates",
}
"""The statistics in a few words, for a notebook."""


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` returns; prints as a table."""

    trace: Trace
    """The trace that was measured."""
    pooled: Statistics
    """Over all starts of all trajectories."""
    rows: tuple[Statistics, ...]
    """One for each trajectory of the batch."""

    def _head(self) -> str:
        many = "trajectory" if len(self.rows) == 1 else "trajectories"
        return f"{self.trace.title}: {len(self.rows):,} {many}, {self.pooled.starts:,} starts"

    def __str__(self) -> str:
        names = [f.name for f in fields(Statistics)][1:]
        lines = [f"  {name.replace('_', ' '):<18}{getattr(self.pooled, name):.4g}" for name in names]
        return "\n".join([self._head(), *lines])

    def _repr_html_(self) -> str:
        rows = [(name.replace("_", " "), f"{getattr(self.pooled, name):.4g}", MEANT[name]) for name in MEANT]
        return notebook.table(self._head(), rows)


def diagnose(
    trace: Trace,
    *,
    terminated: Array,
    truncated: Array,
    gamma: Array | float,
    log_pi: Array | None = None,
    log_mu: Array | None = None,
    valid: Array | None = None,
    pair: Array | None = None,
    greedy: Array | None = None,
    time_major: Option = None,
) -> Diagnosis:
    """Measure a trace on trajectories: per trajectory and pooled. No reward or value is needed. Kinds of arrays and layouts are
    those of `targets`.

    Magnitude and horizon come from the fast kernels (δ = 1 makes a correction of Σγ^tβ_t); the largest β looks at every pair
    of steps of an episode unless the rule is per-decision: O(T²) time in O(T) memory. Where a sum is above all floats, what it
    is divided by or into is NaN.

    >>> import numpy as np, offtrace as ot
    >>> no, zero = np.zeros(4, bool), np.zeros(4)
    >>> print(ot.diagnose(ot.Retrace(lam=0.5), terminated=no, truncated=no, log_pi=zero, log_mu=zero,
    ...                   gamma=1.0))
    Retrace: 1 trajectory, 4 starts
      magnitude         1.531
      largest magnitude 1.875
      horizon           1.469
      cut               0
      largest           1
      effective         3.817
    """
    arrays = {"terminated": terminated, "truncated": truncated, "gamma": gamma, "log_pi": log_pi, "log_mu": log_mu}
    arrays |= {"valid": valid, "pair": pair, "greedy": greedy}
    rule, rows = layout_of(arrays, time_major).into(as_trace(trace), as_numpy(arrays))
    trace = as_trace(rule)
    x = numpy_backend.BACKEND.trajectory(trace, rows)
    shape = x.terminated.shape
    time = np.broadcast_to(np.arange(shape[1], dtype=float), shape).copy()
    magnitude = _summed(trace, x, np.ones(shape), x.gamma)
    with np.errstate(over="ignore", invalid="ignore"):
        lag = _summed(trace, x, time, x.gamma) - time * magnitude
    ends = ~going_on(x)
    last = _summed(trace, x, ends.astype(float), 1.0)
    usable = np.ones(shape, bool) if x.valid is None else x.valid
    peak = _largest(trace, x)

    @np.errstate(over="ignore", invalid="ignore")
    def of(b: int | slice) -> Statistics:
        m, ok = magnitude[b], usable[b]
        n = int(ok.sum())
        if not n:
            return Statistics(0, *[float("nan")] * 6)
        could = ok & ~ends[b]
        return Statistics(
            starts=n,
            magnitude=float(m[ok].mean()),
            largest_magnitude=float(m[ok].max()),
            horizon=float(lag[b][ok].sum() / m[ok].sum() + 1),
            cut=float((last[b][could] == 0).mean()) if could.any() else 0.0,
            largest=float(np.max(peak[b])),
            effective=float(m[ok].sum() ** 2 / (m[ok] ** 2).sum()),
        )

    return Diagnosis(trace, of(slice(None)), tuple(of(b) for b in range(shape[0])))


def _summed(trace: Trace, x: Trajectory, signal: np.ndarray, gamma: float | np.ndarray) -> np.ndarray:
    """Σ_t (γ_k ··· γ_{t-1}) β_{k:t} signal_t [B, T]: the correction where the signal is the TD error."""
    zero, γ = np.zeros(signal.shape), gamma.astype(np.float64) if isinstance(gamma, np.ndarray) else gamma
    arrays = {name: getattr(x, name) for name in ("terminated", "truncated", "valid", "pair")}
    arrays |= {n: None if (log := getattr(x, n)) is None else log.astype(np.float64) for n in ("log_pi", "log_mu")}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the result at index")  # a sum above all floats is shown as what it is
        return corrections(trace, reward=signal, q=zero, next_value=zero, gamma=γ, **arrays, time_major=False)


def _largest(trace: Trace, x: Trajectory) -> np.ndarray:
    """The largest β_{k:t} of each row."""
    goes_on = going_on(x).astype(float)
    B, T = goes_on.shape
    if trace.custom:
        sweeps = (custom.sweep(trace, x.rows(b, b + 1), np.zeros((1, T)), goes_on[b : b + 1]) for b in range(B))
        return np.array([peak for _, peak in sweeps])
    decay, ratio, cap = normal_form(trace, x)
    lags = lag_caps(trace, T)
    if trace.per_decision and not len(lags):
        c = goes_on[:, :-1] * decay[:, 1:] * ratio[:, 1:]
        best = np.ones((B, T))  # the largest β from each start
        with np.errstate(over="ignore"):
            for k in range(T - 2, -1, -1):
                best[:, k] = np.maximum(1.0, np.where(c[:, k] > 0, c[:, k] * best[:, k + 1], 0.0))
        return best.max(axis=1)
    goes_on[:, :-1] *= decay[:, 1:]
    return gradients.largest(goes_on, ratio, cap, lags, trace.recursive)


def adapt(
    trace: T,
    *,
    terminated: Array,
    truncated: Array,
    gamma: float,
    log_pi: Array,
    log_mu: Array,
    valid: Array | None = None,
    time_major: Option = None,
) -> T:
    """One Robbins–Monro step of C-trace: measure the contraction rate on trajectories of μ, and move the mix towards `rate`.

    The rate of a start is 1 − (1−γ) Σ_t γ^t β_{k:t}, the row sum of Z where the recursive condition holds (Ze = γe − (1−γ)S);
    the estimate is its mean over the starts, while the modulus is a maximum. Sums end with the trajectory, which makes the
    rate look slower: prefer rows longer than 1/(1−γ).

    >>> import numpy as np, offtrace as ot
    >>> no, log_mu = np.zeros(50, bool), np.log(np.full(50, 0.5))
    >>> log_pi = np.log(np.tile([0.9, 0.1], 25))
    >>> trace = ot.CTrace(rate=0.9, mix=0.5, step_size=0.5)
    >>> row = dict(terminated=no, truncated=no, log_pi=log_pi, log_mu=log_mu)
    >>> round(ot.adapt(trace, **row, gamma=0.9).mix, 3)
    0.609
    """
    if not as_trace(trace).adaptive:
        raise TypeError(f"adapt moves the mix of a CTrace, got {trace!r}")
    if not number("gamma", gamma, 0.0, 1.0) < 1:
        raise ValueError(f"gamma must lie in [0, 1) for a contraction rate, got {gamma!r}")
    arrays = {"terminated": terminated, "truncated": truncated, "log_pi": log_pi, "log_mu": log_mu, "valid": valid}
    _, rows = layout_of(arrays, time_major).into(trace, as_numpy(arrays))
    x = laid_out(agree(NUMPY, {**rows, "gamma": gamma}))
    if x.valid is not None and not x.valid.any():
        raise ValueError("there is no valid step to measure a rate on")
    magnitude = _summed(trace, x, np.ones(x.terminated.shape), gamma)
    return trace.moved(1 - (1 - gamma) * float(magnitude.mean(where=True if x.valid is None else x.valid)))


def credit_figure(
    traces: Sequence[Trace],
    *,
    terminated: Array,
    truncated: Array,
    log_pi: Array | None = None,
    log_mu: Array | None = None,
    valid: Array | None = None,
    pair: Array | None = None,
    greedy: Array | None = None,
    title: str = "",
) -> Figure:
    """For one trajectory, β_{k:t} of several traces side by side as heat maps: how each assigns credit. Extra `[plot]`.

    Row k is a start, column t the step whose TD error it receives; above each map the ratios ρ_t, orange above 1, else blue.

    >>> import numpy as np, offtrace as ot
    >>> no, zero = np.zeros(4, bool), np.zeros(4)
    >>> row = {"terminated": no, "truncated": no, "log_pi": zero, "log_mu": zero}
    >>> figure = ot.credit_figure([ot.Retrace(0.9), ot.RBIS(0.9)], **row)  # doctest: +SKIP
    >>> figure.savefig("credit.png")  # doctest: +SKIP
    """
    if not traces:
        raise ValueError("traces is empty: there is nothing to draw")
    given = {"terminated": terminated, "truncated": truncated, "log_pi": log_pi, "log_mu": log_mu}
    given = as_numpy(given | {"valid": valid, "pair": pair, "greedy": greedy})
    matrices = [(_label(trace), coefficients(trace, **given)) for trace in traces]
    above = None
    if log_pi is not None and log_mu is not None:
        above = "ρ", np.exp(np.subtract(given["log_pi"], given["log_mu"], dtype=float))
    ends = np.asarray(given["terminated"], bool) | np.asarray(given["truncated"], bool)
    return figures.heat_maps(matrices, above=above, ends=ends, title=title)


def _label(trace: Trace) -> str:
    """The title with the parameters that are not at their defaults."""
    given: list[str] = []
    for f in fields(trace):
        value = getattr(trace, f.name)
        if f.name in ("title", "reads") or not isinstance(value, float | int | tuple) or value == f.default:
            continue
        name = {"lam": "λ", "horizon": "n"}.get(f.name, f.name)
        given.append(f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}")
    return trace.title + (f", {', '.join(given)}" if given else "")
