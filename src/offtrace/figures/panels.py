"""Lines, bands and intervals, in panels side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from offtrace.figures import frames

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Numbers = Sequence[float | None] | np.ndarray
"""None and NaN are gaps."""
Band = tuple[str, Sequence[float] | np.ndarray, Numbers, Numbers, Numbers]
"""A line with a band: (name, x, y, low, high)."""

LOOKS = (
    ("#0072b2", "-", "o"),
    ("#d55e00", (0, (4, 1.6)), "s"),
    ("#009e73", (0, (1.2, 1.6)), "^"),
    ("#c98300", (0, (5, 1.5, 1.2, 1.5)), "D"),
    ("#b5528c", (0, (2.6, 1.4)), "v"),
    ("#3aa0dc", (0, (0.8, 1.8)), "P"),
    ("#857600", (0, (7, 1.6)), ">"),
    ("#6c737d", (0, (4, 1.2, 1, 1.2, 1, 1.2)), "X"),
    ("#111418", (0, (1.8, 1)), "*"),
)
"""Colour, dash and marker, so that lines are told apart without colours too. After Okabe and Ito, the light ones darker."""


def line_panels(
    panels: Sequence[tuple[str, Mapping[str, Sequence[tuple[float, float]]]]],
    ylabel: str,
    *,
    level: float | None = None,
    top: float | None = None,
) -> Figure:
    """Panels side by side, each (label of x, {name: points (x, y)}), with one legend. Points that are not finite are left out."""
    plt, _ = frames.pyplot_and_colors()
    n = len(panels)
    figure, (row,) = plt.subplots(
        1, n, figsize=(4.1 * n, 4.6), dpi=150, sharey=True, squeeze=False, layout="constrained"
    )
    names = list(dict.fromkeys(name for _, lines in panels for name in lines))
    handles: dict[str, Line2D] = {}
    for axes, (xlabel, lines) in zip(row, panels, strict=True):
        for name, points in lines.items():
            if shown := [point for point in points if np.isfinite(point).all()]:
                colour = plt.get_cmap("tab20")(names.index(name) % 20)
                (handles[name],) = axes.plot(*zip(*shown, strict=True), "o-", ms=3.5, lw=1.2, color=colour)
        if level is not None:
            axes.axhline(level, color="0.6", linewidth=0.6)
        axes.set_xlabel(frames.literal(xlabel), fontsize=9)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    row[0].set_ylabel(frames.literal(ylabel), fontsize=9)
    if top is not None and row[0].get_ylim()[1] > top:
        row[0].set_ylim(top=top)  # what rises above it leaves the picture
    labels = map(frames.literal, handles)
    figure.legend(handles.values(), labels, fontsize=8, ncols=2 * n, loc="outside lower center", frameon=False)
    return frames.for_return(figure)


def band_panels(
    panels: Sequence[tuple[str, Sequence[Band]]],
    *,
    xlabel: str,
    ylabel: str,
    looks: dict[str, int],
    columns: int = 2,
    logarithmic: bool = False,
    x_logarithmic: bool = False,
) -> Figure:
    """Panels of lines with bands, for a paper: (title, [(name, x, y, low, high), …]) each. None and NaN are gaps.

    `looks` numbers the look of each name. Lines far from all others (six interquartile ranges from the median) leave the panel.
    """
    rows, columns = frames.shape(len(panels), columns)
    across = 3 if columns > 1 else 2
    legend = 0.17 * -(-len(looks) // across) + 0.1
    figure, all_axes = frames.grid(rows, columns, (2.5, 1.75), (0.55, 0.5), (0.6, 0.15, 0.3, 0.45 + legend))
    handles: dict[str, Line2D] = {}
    for axes, (title, lines) in zip(all_axes.flat, panels, strict=False):
        for name, x, *ys in lines:
            y, low, high = (np.asarray(part, dtype=float) for part in ys)
            colour, dash, marker = LOOKS[looks[name] % len(LOOKS)]
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
            every = (looks[name] % 3, max(1, len(x) // 8)) if len(x) > 20 else None
            (handles[name],) = axes.plot(
                x, y, color=colour, linestyle=dash, linewidth=1.1, marker=marker, markersize=3.2, markevery=every
            )
        if logarithmic:
            axes.set_yscale("log")
        else:
            frames.limit(axes, [np.asarray(part, dtype=float) for _, _, *parts in lines for part in parts])
            for name, x, y, *_ in lines:
                _mark_leaving(axes, np.asarray(x, float), np.asarray(y, float), LOOKS[looks[name] % len(LOOKS)][0])
        if x_logarithmic:
            axes.set_xscale("log")
        elif any(np.max(x, initial=0.0) >= 1e5 for _, x, *_ in lines):
            axes.xaxis.set_major_formatter(frames.short)  # no power of ten beside the axis
        axes.set_title(frames.literal(title), fontsize=8.5, loc="left")
        frames.plain(axes)
    frames.labels(all_axes, len(panels), xlabel, ylabel)
    figure.legend(
        handles.values(),
        map(frames.literal, handles),
        fontsize=7.5,
        ncols=across,
        loc="lower center",
        frameon=False,
        handlelength=3.2,
    )
    return figure


def _mark_leaving(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str) -> None:
    """A triangle at the edge where a line leaves its panel."""
    for edge, marker in zip(axes.get_ylim(), "v^", strict=True):
        for i in np.flatnonzero((y[:-1] - edge) * (y[1:] - edge) < 0):
            at = x[i] + (edge - y[i]) / (y[i + 1] - y[i]) * (x[i + 1] - x[i])
            axes.plot([at], [edge], marker, color=colour, markersize=4, clip_on=False)


def interval_bars(
    panels: Sequence[tuple[str, Sequence[tuple[str, float, float, float]], float | None]], *, looks: dict[str, int]
) -> Figure:
    """Intervals under one another: (label of x, [(name, value, low, high), …], a reference or None) each."""
    longest = max(len(rows) for _, rows, _ in panels)
    names = 0.25 + 0.06 * max(len(row[0]) for _, rows, _ in panels for row in rows)
    figure, all_axes = frames.grid(1, len(panels), (2.2, 0.24 * longest), (names, 0), (names, 0.15, 0.1, 0.45))
    for axes, (label, rows, reference) in zip(all_axes.flat, panels, strict=True):
        if reference is not None:
            axes.axvline(reference, color="0.6", linewidth=0.8, linestyle="--")
        for place, (name, value, low, high) in enumerate(rows):
            colour, _, marker = LOOKS[looks[name] % len(LOOKS)]
            axes.plot([low, high], [place, place], color=colour, linewidth=4.5, alpha=0.35, solid_capstyle="round")
            axes.plot([value], [place], marker=marker, color=colour, markersize=4.5)
        axes.set_yticks(range(len(rows)), labels=[frames.literal(name) for name, *_ in rows], fontsize=7.5)
        axes.set_ylim(longest - 0.4, -0.6)
        axes.set_xlabel(frames.literal(label), fontsize=8)
        frames.plain(axes)
        axes.tick_params(axis="y", length=0)
    return figure
