"""The result of an evaluation from logs → what the figures of its page show, and its numbers in words."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from offtrace._shared.number_text import decimals_on_axis, fixed, fixed_interval
from offtrace.logs.intervals import Conservative
from offtrace.logs.registry import ESTIMATORS, FITTED_VALUES, IMPORTANCE, MODEL
from offtrace.logs.result import Result, Row
from offtrace.reports.html.document import AnyCell

Drawn = dict[str, object]
"""What the script draws, as JSON has it."""
FAMILIES = {FITTED_VALUES: 0, IMPORTANCE: 1, MODEL: 2}
"""The families of estimators, and how they look."""
OTHERS = 4
"""How the estimators of other families look."""
WEIGHTS, EPISODES = "importance weights", "episodes"
STYLES = FAMILIES | {EPISODES: 7, WEIGHTS: 1}
BINS = 24  # of the weights, at most
POINTS = 200  # of a line, at most


class Bins(TypedDict):
    """A histogram of weights on a logarithmic axis."""

    first: float
    """Where the axis begins, as a power of ten."""
    width: float
    episodes: list[float]
    """The share of the episodes in each bin."""
    weight: list[float]
    """The share of ΣW in each bin."""
    zero: float
    """The share of the episodes that weigh 0."""


def span(result: Result) -> tuple[float, float]:
    """The part of the axis to draw: all estimates and intervals, but no further from the headline than three typical distances.

    The distance of a row is the width of its interval, or how far its estimate lies from the headline. One estimate whose weights
    have exploded would otherwise press all others into a point.
    """
    rows = [row for row in result.estimates if np.isfinite(row.estimate)]
    if not rows:
        return -1.0, 1.0
    ends = np.array([(row.low, row.high) if np.isfinite(row.high - row.low) else [row.estimate] * 2 for row in rows])
    ends = np.column_stack([ends, [row.estimate for row in rows]])
    first = ends[next((i for i, row in enumerate(rows) if row is result.headline), 0)]
    distances = np.maximum(np.ptp(ends, axis=1), np.abs(ends[:, -1] - first[-1]))
    reach = 3 * float(np.median(distances[distances > 0])) if (distances > 0).any() else np.inf
    low, high = max(ends.min(), first.min() - reach), min(ends.max(), first.max() + reach)
    pad = 0.05 * (high - low) or 0.05 * abs(low) or 0.5
    return float(low - pad), float(high + pad)


def data(result: Result) -> Drawn:
    """What the script draws."""
    low, high = span(result)
    say = Words(result)
    styles = STYLES | {result.trace.title: 0}
    rows = [
        {**say.bar(row), "method": row.title, "family": ESTIMATORS[row.estimator].family} for row in result.estimates
    ]
    methods = {row["method"]: FAMILIES.get(row["family"], OTHERS) for row in rows} | styles
    return {
        "methods": [{"name": name, "style": style} for name, style in methods.items()],
        "better": 1,
        "estimates": {"rows": rows, "domain": [low, high], "percent": f"{100 * result.confidence:g}%"},
        "weights": _weights(result),
    }


def passed(row: Row) -> AnyCell:
    """A cell that says how many checks of an estimate failed."""
    return f"✗ {len(row.failed)}" if row.failed else "✓", len(row.failed)


def drawable(x: float) -> float:
    """An open end lies beyond every axis; JSON knows no infinity."""
    return float(np.clip(x, -1e300, 1e300))


def _weights(result: Result) -> Drawn | None:
    """Of whole episodes: how they are spread, what the heaviest hold, and what all are worth up to each step."""
    d = result.diagnosis
    if d.log_weights is None or d.effective_by_step is None:
        return None
    share = np.broadcast_to(np.nan_to_num(d.shares), d.log_weights.shape)
    heaviest = [_heaviest(WEIGHTS, share)]
    pull = result.contributions[result.headline.estimator]
    pull = np.abs(pull - pull.mean())
    if 0 < pull.sum() < np.inf:
        heaviest.append(_heaviest(result.headline.title, pull / pull.sum()))
    steps = np.unique(np.linspace(0, len(d.effective_by_step) - 1, POINTS).astype(int))
    effective = _line(WEIGHTS, steps, d.effective_by_step[steps])
    return {
        "bins": bins(d.log_weights, share),
        "heaviest": heaviest,
        "effective": [effective] if len(steps) > 1 else [],
    }


def bins(log_weight: np.ndarray, share: np.ndarray) -> Bins:
    """A histogram of weights on a logarithmic axis: of each bin its share of the episodes and of ΣW.

    Weights of 0 are counted separately.
    """
    at = log_weight / np.log(10)
    zero = at == -np.inf
    low, high = (float(at[~zero].min()), float(at[~zero].max())) if not zero.all() else (0.0, 0.0)
    width = next((w for w in (1 / 8, 1 / 4, 1 / 2, 1, 2, 5, 10, 20, 50, 100) if (high - low) / w < BINS - 1), 1000)
    whole = max(1, width)  # the axis begins and ends at powers of ten
    first, last = np.floor(low / whole) * whole, (np.floor(high / whole) + 1) * whole
    n = round((last - first) / width)
    index = np.floor((np.where(zero, low, at) - first) / width).astype(int)
    return {
        "first": float(first),
        "width": width,
        "episodes": (np.bincount(index[~zero], minlength=n) / len(at)).tolist(),
        "weight": np.bincount(index[~zero], share[~zero], n).tolist(),
        "zero": float(zero.mean()),
    }


def _heaviest(name: str, share: np.ndarray) -> Drawn:
    """What the n heaviest episodes have together, for n = 1, 2, … E, fewer and fewer of them."""
    total = np.cumsum(np.sort(share)[::-1])
    n = np.unique(np.geomspace(1, len(share), POINTS).astype(int))
    return _line(name, n, total[n - 1])


def _line(name: str, x: np.ndarray, y: np.ndarray) -> Drawn:
    return {"method": name, "x": x.tolist(), "y": y.tolist(), "low": [], "high": []}


class Words:
    """Values in words, all with the same decimals: those of the notebook's table."""

    def __init__(self, result: Result) -> None:
        low, high = span(result)
        self.digits = decimals_on_axis(high - low)

    def number(self, x: float) -> str:
        """`−0.487`; ∞, and – for NaN."""
        return fixed(x, self.digits)

    def interval(self, low: float, high: float) -> str:
        """`[0.91, 0.95]`, or –."""
        return fixed_interval(low, high, self.digits) or "–"

    def bar(self, row: Row) -> Drawn:
        """An estimate with its interval, as the figure of estimates has it."""
        ends = {"low": drawable(row.low), "high": drawable(row.high), "said": self.interval(row.low, row.high)}
        return {"value": row.estimate, "shown": self.number(row.estimate), **ends}

    def value_cells(self, row: Row) -> list[AnyCell]:
        """An estimate, its interval, and that of what it is above V(μ)."""
        return [
            (self.number(row.estimate), drawable(row.estimate)),
            (self.interval(row.low, row.high), drawable(row.low)),
            (self.interval(row.gain_low, row.gain_high), drawable(row.gain)),
        ]

    def conservative(self, bounds: Conservative) -> str:
        """The same, or that it is empty."""
        return "empty" if bounds.empty else self.interval(bounds.low, bounds.high)
