"""What an evaluation found: estimates side by side with their intervals, and what they rest on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from offtrace._shared import notebook
from offtrace._shared.number_text import four_digits
from offtrace.logs.checks import Check
from offtrace.logs.container import Logs
from offtrace.logs.importance import kish, shares
from offtrace.logs.intervals import Conservative
from offtrace.logs.on_policy import Observed
from offtrace.logs.policies import Policy
from offtrace.logs.registry import ESTIMATORS
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
    gain: float = float("nan")
    """V̂(π) − V(μ), V(μ) as observed; NaN where other first states were given."""
    gain_low: float = float("nan")
    """The bootstrap interval of the difference, episode by episode."""
    gain_high: float = float("nan")
    checks: tuple[Check, ...] = ()
    """What can go wrong with this estimator, and what was found."""

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.failed)

    @property
    def of_behavior(self) -> float:
        """V̂(μ), where a model was asked for it, to be compared with V(μ) as observed; else NaN."""
        return next((check.number for check in self.checks if check.kind == "V(μ)"), float("nan"))


RULE = (
    "the headline is the first that passes all its checks of: the fit with the trace that was asked for, the direct method, "
    "weighted doubly robust, weighted per-decision importance sampling, and the others; where none passes, the one that fails "
    "fewest"
)
"""How the headline is chosen."""


def rank(row: Row) -> tuple[int, int]:
    """The rank of a row by the rule: the least is the headline."""
    return len(row.failed) + 10 * (not np.isfinite(row.estimate)), ESTIMATORS[row.estimator].preference


def instead(rows: Mapping[str, Sequence[Row]], named: Row) -> str:
    """Where another estimator is named than the one which the rule prefers: which, and why; else nothing.

    `rows`: all estimates by policy, whose name is empty where there is one alone.
    """
    first = {policy: min(each, key=lambda row: rank(row)[1]) for policy, each in rows.items()}
    if any(row.estimator == named.estimator for row in first.values()):
        return ""
    why = [
        f"{f'of {policy}, ' if policy else ''}{check.words}" for policy, row in first.items() for check in row.failed
    ]
    title = next(iter(first.values())).title
    return f"**The estimate is by {named.title}, not by {title}**, which fails its checks: {'; '.join(why)}"


def chosen(rows: Sequence[Row]) -> Row:
    """The headline, by the rule."""
    return min(rows, key=rank)


@dataclass(frozen=True)
class Overlap:
    """How much the logs have of an action that the target takes."""

    action: int | str
    steps: int
    """So many steps with it were logged."""
    logged: float
    """Their share of all steps."""
    target: float
    """How often the target takes it in the logged states."""
    effective: float
    """(Σρ)² / Σρ² over its steps, ρ = π/μ: the effective steps behind it; NaN where μ is not known."""


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What the answer rests on."""

    log_weights: np.ndarray | None
    """log W [E], W the product of ratios of a whole episode, which soon is no float; None where μ is not known."""
    effective_by_step: np.ndarray | None
    """Kish's effective number of episodes for the products up to each step [T]."""
    outside: float
    """The share of what π does at the logged states that was never logged there (for features: never at all; for real-valued
    actions: that is outside of their range)."""
    overlap: tuple[Overlap, ...]
    """Action by action; empty where actions are real numbers."""

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
    observed: Observed
    """V(μ), the value of the policy that made the logs, as they have it."""
    conservative: Conservative | None
    """The conservative interval for V(π), the same for all estimators; None where μ is not known or starts were given."""
    diagnosis: Diagnosis
    warnings: tuple[str, ...]
    """What one should know before relying on the headline."""
    notes: tuple[str, ...]
    """What was decided for you, and why."""
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
    q: Callable[..., np.ndarray]
    """States → Q^π [n, A] of the fitted estimate; where actions are real numbers, states and actions [n, k] → Q^π [n]."""
    sweeps: int
    """How many sweeps the fitted estimate took."""
    logs: Logs
    """The logs, with μ as it was used."""
    policy: Policy
    """The target policy."""
    call: str
    """The call of `evaluate` with all its arguments, to repeat it."""
    cluster: np.ndarray | None = None
    """Which episodes belong together [E]; None: each is by itself."""
    segments: Mapping[str, Result | str] = field(default_factory=dict[str, "Result | str"])
    """The result of each segment (`by`), from its own episodes; or why there is none, in words."""
    gammas: Mapping[float, Result] = field(default_factory=dict[float, "Result"])
    """The result at other discounts."""
    contributions: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    """What each episode contributes to each estimate [E], by the names of the estimators."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the estimators."""
        return tuple(row.estimator for row in self.estimates)

    def __getitem__(self, estimator: str) -> Row:
        for row in self.estimates:
            if row.estimator == estimator:
                return row
        raise KeyError(f"{estimator!r} was not estimated: there are {', '.join(self.names)}")

    @property
    def headline(self) -> Row:
        """The estimate to name first: one that passes all its checks, by the rule `offtrace.logs.result.RULE`."""
        return chosen(self.estimates)

    @property
    def instead(self) -> str:
        """Where the headline is not the fitted estimate although there is one: that it is another one, and why; else nothing."""
        return instead({"": self.estimates}, self.headline)

    @property
    def value(self) -> float:
        """V̂(π) of the headline."""
        return self.headline.estimate

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
                "difference": row.gain,
                "difference_low": row.gain_low,
                "difference_high": row.gain_high,
                "behavior_observed": self.observed.estimate,
                "behavior_found": row.of_behavior,
                "headline": row is self.headline,
                "failed": "; ".join(check.words for check in row.failed),
            }
            for row in self.estimates
        ]

    def parts(self) -> list[dict[str, Any]]:
        """The headline of each segment and of each other discount: one dictionary each."""
        segments: list[tuple[str, Result | str]] = [(name, part) for name, part in self.segments.items()]
        lines: list[dict[str, Any]] = []
        for name, part in [*segments, *((f"γ = {gamma:g}", part) for gamma, part in self.gammas.items())]:
            if isinstance(part, str):
                lines.append({"part": name, "failed": part})
                continue
            row = next(row for row in part.rows() if row["headline"])
            lines.append({"part": name, "episodes": part.episodes, **row})
        return lines

    def as_json(self) -> dict[str, object]:
        """What there is to know in numbers and texts, for `json.dumps`; what is not finite is None."""
        seen, bounds, d = self.observed, self.conservative, self.diagnosis
        return finite({
            "headline": self.headline.estimator,
            "instead": self.instead or None,
            "value": self.value,
            "passes": not self.headline.failed,
            "behavior": {"value": seen.estimate, "low": seen.low, "high": seen.high, "beyond": seen.beyond},
            "estimates": [
                {**row, "checks": [vars(check) for check in self[str(row["estimator"])].checks]} for row in self.rows()
            ],
            "conservative": None if bounds is None else vars(bounds),
            "parts": self.parts(),
            "overlap": [vars(each) for each in d.overlap],
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "trace": repr(self.trace),
            "gamma": self.gamma,
            "confidence": self.confidence,
            "episodes": self.episodes,
            "steps": self.steps,
            "mu": self.behavior,
            "kernel": self.policy.kernel,
            "states": list(self.logs.state_names) or None,
            "actions": list(self.logs.action_names) or None,
            "effective_episodes": d.effective,
            "mean_weight": d.mean_weight,
            "dropped": 0 if self.logs.report is None else self.logs.report.dropped,
            "call": self.call,
        })  # fmt: skip

    def plain(self, who: str = "the new policy") -> str:
        """The answer in one sentence, without Greek letters."""
        row, E = self.headline, f"{self.episodes:,}"
        kind, whole = ("episodes", E) if self.cluster is None else ("clusters", f"{int(self.cluster.max()) + 1:,}")
        begin = who[0].upper() + who[1:] if who.startswith("the ") else who
        if row.failed:
            return f"These {E} episodes do not say what {who} would earn: {row.failed[0].words}."
        if np.isnan(row.low):
            return f"{begin} would earn about {four_digits(row.estimate)} an episode; how sure that is cannot be said."
        rests = (
            f"{row.effective:,.0f} effective {kind} of {whole} support this" if row.effective == row.effective else ""
        )
        low, high = row.gain_low, row.gain_high
        if np.isnan(low):
            earns = f"would earn {four_digits(row.low)} to {four_digits(row.high)} an episode"
        elif low > 0:
            earns = f"would earn {four_digits(low)} to {four_digits(high)} more per episode than today's"
        elif high < 0:
            earns = f"would earn {four_digits(-high)} to {four_digits(-low)} less per episode than today's"
        else:
            earns = f"may earn up to {four_digits(-low)} less or {four_digits(high)} more per episode than today's"
        return f"{begin} {earns}{f'; {rests}' if rests else ''}."

    def said(self) -> str:
        """The headline in one line of symbols."""
        row = self.headline
        text = f"V(π) ≈ {four_digits(row.estimate)} {ends(row.low, row.high)} by {row.title}"
        if not np.isnan(row.gain_low):
            text += f"; V(π) − V(μ) = {four_digits(row.gain)} {ends(row.gain_low, row.gain_high)}"
        if row.failed:
            text += f"; NO estimator passes its checks, and this one fails {len(row.failed)}"
        return text

    def _repr_html_(self) -> str:
        return notebook.words(repr(self))

    def __repr__(self) -> str:
        d, percent = self.diagnosis, f"{100 * self.confidence:g} %"
        kind = "episodes" if self.cluster is None else "clusters"
        width = max(len(row.title) for row in self.estimates)
        seen = self.observed
        kernel = f"; π by {self.policy.kernel}" if self.policy.kernel else ""
        lines = [
            self.plain(),
            *([self.instead] if self.instead else []),
            f"  {self.said()}",
            f"  V(μ) = {four_digits(seen.estimate)} {ends(seen.low, seen.high)}, as logged"
            + (f"; {100 * seen.beyond:.2g} % of it is a model's, beyond the cut of episodes" if seen.beyond else ""),
            f"  from {self.episodes:,} episodes, {self.steps:,} steps; γ = {self.gamma:g}; μ {self.behavior}{kernel}",
            *(f"  {what} in the order: {order}" for what in ("states", "actions") if (order := self.logs.order(what))),
            f"  {'':<{width}}  {'estimate':>10}  {percent + ' bootstrap interval':^25}  {'V(π) − V(μ)':^25}  effective {kind}",
        ]
        reasons: dict[str, int] = {}
        for row in self.estimates:
            rests = "" if np.isnan(row.effective) else f"{row.effective:,.0f}"
            marks = "".join(f" ✗{reasons.setdefault(check.words, len(reasons) + 1)}" for check in row.failed)
            lines.append(
                f"  {row.title:<{width}}  {four_digits(row.estimate):>10}  {ends(row.low, row.high):^25}  "
                f"{ends(row.gain_low, row.gain_high):^25}  {rests}{marks}"
            )
        lines += [f"  ✗{number} {words}" for words, number in reasons.items()]
        lines += [
            f"  · {check.words}" for check in self.headline.checks if check.kind == "dropped" and not check.failed
        ]
        if self.conservative is not None:
            c = self.conservative
            lines += [f"  conservative interval for V(π): {_bounded(c)}, given", f"    {c.assumes}"]
        if d.weights is not None:
            share = f", largest share {100 * d.largest:.2g} %" if d.effective else ""
            lines.append(f"  weights: {d.effective:,.1f} effective episodes, mean {d.mean_weight:.3g}{share}")
        lines += self._parts_in_words() + [f"  · {note}" for note in self.notes]
        lines += [f"  ! {warning}" for warning in self.warnings]
        return "\n".join(lines)

    def _parts_in_words(self) -> list[str]:
        """The segments and the other discounts, a line each."""
        parts = self.parts()
        width = max((len(part["part"]) for part in parts), default=0)
        lines: list[str] = []
        for i, part in enumerate(parts):
            if i in (0, len(self.segments)):
                lines.append(
                    "  each segment from its own episodes" if i < len(self.segments) else "  at other discounts"
                )
            if "estimate" not in part:
                lines.append(f"    {part['part']:<{width}}  {part['failed']}")
                continue
            gain = f"{ends(part['difference_low'], part['difference_high'])} more than today's"
            said = f"{four_digits(part['estimate'])} {ends(part['low'], part['high'])}, {gain}"
            failed = f"  ✗ {part['failed']}" if part["failed"] else ""
            lines.append(f"    {part['part']:<{width}}  {said} ({part['episodes']:,} episodes){failed}")
        return lines


def _bounded(bounds: Conservative) -> str:
    """A conservative interval in words."""
    return "empty" if bounds.empty else f"[{four_digits(bounds.low)}, {four_digits(bounds.high)}]"


def ends(low: float, high: float) -> str:
    """An interval in words."""
    return "no interval" if np.isnan(low) or np.isnan(high) else f"[{four_digits(low)}, {four_digits(high)}]"


def finite(value: object) -> Any:
    """The same in what JSON knows: None for what is not finite, lists for tuples, numbers of Python for those of NumPy.

    >>> finite({"a": (np.float64("inf"), np.bool_(True))})
    {'a': [None, True]}
    """
    if isinstance(value, dict):
        return {str(key): finite(each) for key, each in cast("dict[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in cast("list[object]", value)]
    plain: object = cast("Any", value).item() if isinstance(value, np.generic) else value
    return None if isinstance(plain, float) and not np.isfinite(plain) else plain
