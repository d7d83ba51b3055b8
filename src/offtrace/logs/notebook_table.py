"""A result in a notebook: one table, in which each estimate and its interval are drawn on one axis. It needs nothing else."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from offtrace._shared.number_text import decimals_on_axis, fixed, fixed_interval

if TYPE_CHECKING:
    from offtrace.logs.result import Result

WIDTH, HEIGHT = 320, 22
"""Of a drawing, in pixels."""
BLUE, GREY, ORANGE = "#0072b2", "#8a9098", "#d55e00"


def span(result: Result) -> tuple[float, float]:
    """The part of the axis to draw: all estimates and intervals, but not further than three usual widths from the first one.

    One estimate whose weights have exploded would otherwise press all others into a point.
    """
    rows = [row for row in result.estimates if np.isfinite(row.estimate)]
    if not rows:
        return -1.0, 1.0
    ends = np.array([(row.low, row.high) if np.isfinite(row.high - row.low) else [row.estimate] * 2 for row in rows])
    ends = np.column_stack([ends, [row.estimate for row in rows]])
    widths = np.ptp(ends, axis=1)
    reach = 3 * float(np.median(widths[widths > 0])) if (widths > 0).any() else np.inf
    low, high = max(ends.min(), ends[0].min() - reach), min(ends.max(), ends[0].max() + reach)
    pad = 0.05 * (high - low) or 0.05 * abs(low) or 0.5
    return float(low - pad), float(high + pad)


def html(result: Result) -> str:
    """The table."""
    low, high = span(result)
    digits = decimals_on_axis(high - low)
    lines = []
    for i, row in enumerate(result.estimates):
        drawn = _drawn(row.low, row.high, row.estimate, low, high, BLUE if i == 0 else GREY)
        rests = "" if np.isnan(row.effective) else f"{row.effective:,.0f}"
        lines.append(
            _line(
                row.title,
                f"<b>{fixed(row.estimate, digits)}</b>",
                fixed_interval(row.low, row.high, digits),
                drawn,
                rests,
            )
        )
    if (c := result.conservative) is not None:
        drawn = _drawn(c.low, c.high, float("nan"), low, high, GREY)
        lines.append(
            _line("conservative", "", "empty" if c.empty else fixed_interval(c.low, c.high, digits), drawn, "")
        )
    heads = ("", "V(π)", f"{100 * result.confidence:g} % interval", _axis(low, high, digits), "rests on episodes")
    head = "".join(
        f'<th style="text-align:{"left" if i == 0 else "right"}">{text}</th>' for i, text in enumerate(heads)
    )
    about = f"{result.episodes:,} episodes, {result.steps:,} steps; γ = {result.gamma:g}; μ {result.behavior}"
    given = "" if c is None else f"<div>The conservative interval takes for given: {escape(c.assumes)}</div>"
    warned = "".join(f'<div><b style="color:{ORANGE}">!</b> {escape(text)}</div>' for text in result.warnings)
    return (
        f"<div><div>V(π) from {escape(about)}</div><table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
        f"{given}{warned}</div>"
    )


def _line(title: str, estimate: str, interval: str, drawn: str, rests: str) -> str:
    cells = "".join(f'<td style="text-align:right">{text}</td>' for text in (estimate, interval, drawn, rests))
    return f'<tr><td style="text-align:left">{escape(title)}</td>{cells}</tr>'


def _drawn(low: float, high: float, at: float, first: float, last: float, colour: str) -> str:
    """An interval as a bar, the estimate as a point; arrows where they leave the axis."""

    def x(value: float) -> float:
        return float(np.clip((value - first) / (last - first), 0, 1)) * (WIDTH - 20) + 10

    middle, parts = HEIGHT / 2, []
    if not (np.isnan(low) or np.isnan(high)):
        style = f'stroke="{colour}" stroke-width="{2 if np.isnan(at) else 7}" stroke-linecap="round" opacity="0.5"'
        parts.append(f'<line x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{middle}" y2="{middle}" {style}/>')
    for outside, tip in ((min(low, at) < first, 2), (max(high, at) > last, WIDTH - 2)):
        if outside:
            base = 8 if tip == 2 else WIDTH - 8
            parts.append(f'<path d="M{tip} {middle}L{base} {middle - 5}V{middle + 5}Z" fill="{colour}"/>')
    if first <= at <= last:
        parts.append(f'<circle cx="{x(at):.1f}" cy="{middle}" r="4.5" fill="{colour}"/>')
    return f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">{"".join(parts)}</svg>'


def _axis(first: float, last: float, digits: int) -> str:
    """The two ends of the axis, as a heading."""
    style = f'style="display:inline-flex;justify-content:space-between;width:{WIDTH}px;font-weight:normal"'
    return f"<span {style}><span>{fixed(first, digits)}</span><span>{fixed(last, digits)}</span></span>"
