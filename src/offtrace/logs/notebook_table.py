"""A result in a notebook: one table, in which each estimate and its interval are drawn on one axis. It needs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from offtrace._shared.html_templates import rendered
from offtrace._shared.number_text import count, decimals_on_axis, fixed, fixed_interval

if TYPE_CHECKING:
    from offtrace.logs.result import Result

WIDTH, HEIGHT = 320, 22
"""The size of a drawing, in pixels."""
BLUE, GREY = "#0072b2", "#8a9098"


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


def html(result: Result) -> str:
    """The table."""
    axis, best = span(result), result.headline
    digits = decimals_on_axis(axis[1] - axis[0])
    lines = [
        {
            "title": row.title + (" ✗" if row.failed else ""),
            "estimate": fixed(row.estimate, digits),
            "interval": fixed_interval(row.low, row.high, digits),
            "rests_on": "" if np.isnan(row.effective) else count(row.effective),
            **_drawn(row.low, row.high, row.estimate, axis, BLUE if row is best else GREY),
        }
        for row in result.estimates
    ]
    if (c := result.conservative) is not None:
        ends = "empty" if c.empty else fixed_interval(c.low, c.high, digits)
        drawn = _drawn(c.low, c.high, float("nan"), axis, GREY)
        lines.append({"title": "conservative", "estimate": "", "interval": ends, "rests_on": "", **drawn})
    return rendered(
        "offtrace.logs",
        "notebook_table.html",
        result=result,
        lines=lines,
        axis=[fixed(end, digits) for end in axis],
        width=WIDTH,
        height=HEIGHT,
    )


def _drawn(low: float, high: float, at: float, axis: tuple[float, float], colour: str) -> dict[str, object]:
    """A line's drawing, in pixels: the interval as a bar, the estimate as a point, arrows where they leave the axis."""
    first, last = axis

    def x(value: float) -> float:
        return float(np.clip((value - first) / (last - first), 0, 1)) * (WIDTH - 20) + 10

    arrows = [(2, 8)] * (min(low, at) < first) + [(WIDTH - 2, WIDTH - 8)] * (max(high, at) > last)  # tips and bases
    return {
        "colour": colour,
        "bar": None if np.isnan(low) or np.isnan(high) else (x(low), x(high)),
        "thickness": 2 if np.isnan(at) else 7,
        "point": x(at) if first <= at <= last else None,
        "arrows": arrows,
    }
