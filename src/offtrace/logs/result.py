"""What an evaluation found: estimates side by side with their intervals, and what they rest on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from offtrace._shared.number_text import four_digits
from offtrace.logs.container import Logs
from offtrace.logs.estimators.intervals import Conservative
from offtrace.logs.estimators.target_policy import Policy
from offtrace.returns.diagnosis import Statistics
from offtrace.traces import Trace


@dataclass(frozen=True)
class Row:
    """What one estimator found."""

    estimator: str
    """The name by which `evaluate` takes it."""
    title: str
    """The name to print."""
    estimate: float
    """V̂(π)."""
    standard_error: float
    low: float
    """The bootstrap interval over episodes."""
    high: float
    effective: float
    """How many episodes the estimate rests on: (Σ|d|)² / Σd², d = contribution − estimate. About 0.64 E where d is normal."""
    largest: float
    """The largest share of one episode in Σ|d|."""


@dataclass(frozen=True, eq=False)
class Support:
    """Where the target policy leaves the data."""

    share: float
    """The probability that π gives, at the logged states, to actions never logged there (for features: never at all)."""
    by_state: np.ndarray | None
    """The same for each state [S], NaN where a state does not occur; None for features."""
    visits: np.ndarray | None
    """How often each state occurs [S]; None for features."""


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What the answer rests on."""

    log_weights: np.ndarray | None
    """log W [E], W the product of ratios of a whole episode, which soon is no float; None where μ is not known."""
    effective_by_step: np.ndarray | None
    """Kish's effective number of episodes for the products up to each step [T]."""
    trace: Statistics
    """`offtrace.diagnose` of the trace on these logs: effective horizon, share of cut traces, …"""
    support: Support
    influence: np.ndarray | None
    """What each episode contributes to the fitted estimate [E]; None where that is not known or not asked for."""

    @property
    def weights(self) -> np.ndarray | None:
        """The weight W of each episode, [E]; None where μ is not known."""
        with np.errstate(over="ignore"):
            return None if self.log_weights is None else np.exp(self.log_weights)

    @property
    def shares(self) -> np.ndarray:
        """W / ΣW [E]; NaN where μ is not known or all W are 0."""
        return np.array([np.nan]) if self.log_weights is None else shares(self.log_weights)

    @property
    def effective(self) -> float:
        """Kish's effective number of episodes, (ΣW)² / ΣW²; 0 where all W are 0."""
        return float("nan") if self.log_weights is None else kish(self.shares)

    @property
    def largest(self) -> float:
        """The largest share of one episode in ΣW."""
        return float(self.shares.max())

    @property
    def mean_weight(self) -> float:
        """The mean of W, whose expectation is 1: far below where the data lack what π does."""
        return float("nan") if self.weights is None else float(self.weights.mean())


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What `evaluate` returns; prints as a table."""

    estimates: tuple[Row, ...]
    conservative: Conservative | None
    """The conservative interval for V(π), the same for all estimators; None where μ is not known or starts were given."""
    diagnosis: Diagnosis
    warnings: tuple[str, ...]
    """What one should know before relying on the numbers."""
    trace: Trace
    gamma: float
    confidence: float
    episodes: int
    steps: int
    behavior: str
    """Where μ comes from, in words."""
    mu_estimated: bool
    state_values: np.ndarray | None
    """V^π(s) [S] of the fitted estimate; NaN where a table has nothing logged. None for features."""
    values: Callable[[np.ndarray], np.ndarray]
    """States → V^π [n] of the fitted estimate."""
    q: Callable[[np.ndarray], np.ndarray]
    """States → Q^π [n, A] of the fitted estimate."""
    sweeps: int
    """How many sweeps the fitted estimate took."""
    logs: Logs
    """The logs, with μ as it was used."""
    policy: Policy
    """The target policy."""
    call: str
    """The call of `evaluate` with all its arguments, to repeat it."""

    def __getitem__(self, estimator: str) -> Row:
        for row in self.estimates:
            if row.estimator == estimator:
                return row
        raise KeyError(
            f"{estimator!r} was not estimated: there are {', '.join(row.estimator for row in self.estimates)}"
        )

    @property
    def value(self) -> float:
        """V̂(π): the first estimate, which is the fitted one unless others were asked for."""
        return self.estimates[0].estimate

    def rows(self) -> list[dict[str, str | float]]:
        """One dictionary for each estimator, for tables and files."""
        bounds = self.conservative
        return [
            {
                "estimator": row.estimator,
                "estimate": row.estimate,
                "standard_error": row.standard_error,
                "low": row.low,
                "high": row.high,
                "conservative_low": float("nan") if bounds is None else bounds.low,
                "conservative_high": float("nan") if bounds is None else bounds.high,
                "effective_episodes": row.effective,
                "largest_share": row.largest,
            }
            for row in self.estimates
        ]

    def _repr_html_(self) -> str:
        """For notebooks: the table, with the intervals drawn beside it."""
        from offtrace.logs import notebook_table

        return notebook_table.html(self)

    def __repr__(self) -> str:
        d, percent = self.diagnosis, f"{100 * self.confidence:g} %"
        width = max(len(row.title) for row in self.estimates)
        lines = [
            f"V(π) from {self.episodes:,} episodes, {self.steps:,} steps; γ = {self.gamma:g}; μ {self.behavior}",
            f"  {'':<{width}}  {'estimate':>10}  {percent + ' bootstrap interval':^25}  rests on",
        ]
        for row in self.estimates:
            interval = f"[{four_digits(row.low)}, {four_digits(row.high)}]"
            rests = "" if np.isnan(row.effective) else f"{row.effective:,.0f} episodes"
            lines.append(f"  {row.title:<{width}}  {four_digits(row.estimate):>10}  {interval:^25}  {rests}")
        if self.conservative is not None:
            c = self.conservative
            ends = "empty" if c.empty else f"[{four_digits(c.low)}, {four_digits(c.high)}]"
            lines += [f"  conservative interval for V(π): {ends}, given", f"    {c.assumes}"]
        if d.weights is not None:
            share = f", largest share {100 * d.largest:.2g} %" if d.effective else ""
            lines.append(f"  weights: {d.effective:,.1f} effective episodes, mean {d.mean_weight:.3g}{share}")
        lines.append(f"  trace: effective horizon {d.trace.horizon:.3g} steps, {100 * d.trace.cut:.2g} % of traces cut")
        lines += [f"  ! {warning}" for warning in self.warnings]
        return "\n".join(lines)


def shares(log_weights: np.ndarray) -> np.ndarray:
    """W / ΣW, also where W itself is no float; NaN where all W are 0."""
    if log_weights.max() == -np.inf:
        return np.full(len(log_weights), np.nan)
    w = np.exp(log_weights - log_weights.max())
    return w / w.sum()


def kish(x: np.ndarray) -> float:
    """(Σ|x|)² / Σx², computed so that nothing overflows; 0 where there is nothing."""
    largest = np.abs(x).max()
    if not 0 < largest < np.inf:
        return 0.0
    y = np.abs(x / largest)
    return float(y.sum() ** 2 / (y**2).sum())
