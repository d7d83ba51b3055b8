"""Arrays → matplotlib. Imported lazily, knows nothing of the rest of offtrace. Extra `[plot]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def heat_maps(
    matrices: Sequence[tuple[str, np.ndarray]],
    *,
    above: tuple[str, np.ndarray] | None = None,
    ends: np.ndarray | None = None,
    title: str = "",
    columns: int = 4,
    floor: float = 1e-3,
) -> Any:
    """Upper-triangular matrices side by side on one logarithmic colour scale: blue up to 1, orange above; 0 is white.

    `above` is a named series over time that is drawn over every column of maps (say, the ratios that made them); `ends` [T]
    marks the steps after which an episode ended. Values below `floor` take its colour.
    """
    plt, colors = _matplotlib()
    T = len(matrices[0][1])
    n = len(matrices)
    columns = min(columns, n)
    rows = -(-n // columns)
    strip = 0.35 if above is not None else 0.0
    # Explicit inches, so that one map or twenty look alike.
    side, gap, left, right, top, bottom = 2.35, 0.42, 0.62, 0.95, 0.62, 0.62
    width = left + columns * side + (columns - 1) * gap + right
    block = side + strip + 0.62
    height = top + rows * block
    figure = plt.figure(figsize=(width, height), dpi=150)
    largest = min(1e12, max(1.0, *(float(m.max()) for _, m in matrices)))
    scale = colors.LogNorm(vmin=floor, vmax=largest)
    palette = _palette(plt, colors, floor, largest)
    image = None
    for i, (name, matrix) in enumerate(matrices):
        row, column = divmod(i, columns)
        x = left + column * (side + gap)
        y = height - top - row * block - strip - side
        axes = figure.add_axes((x / width, y / height, side / width, side / height))
        shown = np.where(matrix > 0, np.maximum(matrix, floor), np.nan)
        image = axes.imshow(shown, norm=scale, cmap=palette, interpolation="nearest", aspect="auto")
        if ends is not None:
            for t in np.flatnonzero(ends[:-1]):
                axes.axvline(t + 0.5, color="0.6", linewidth=0.6)
                axes.axhline(t + 0.5, color="0.6", linewidth=0.6)
        axes.tick_params(labelsize=7, length=2)
        if column == 0:
            axes.set_ylabel("start k", fontsize=8)
        else:
            axes.set_yticklabels([])
        if i + columns >= n:
            axes.set_xlabel("step t", fontsize=8)
        head = axes
        if above is not None:
            head = figure.add_axes((x / width, (y + side + 0.04) / height, side / width, strip / height))
            label, series = above
            visible = np.clip(series, 1e-2, 1e2)
            head.bar(np.arange(T), np.log10(visible), width=0.85, color=np.where(series > 1, "#d55e00", "#0072b2"))
            head.axhline(0, color="0.3", linewidth=0.5)
            head.set_xlim(-0.5, T - 0.5)
            head.set_ylim(-1.6, 1.6)
            head.set_xticks([])
            head.set_yticks([-1, 1], labels=[".1", "10"] if column == 0 else ["", ""], fontsize=6)
            head.tick_params(length=2)
            if column == 0:
                head.set_ylabel(label, fontsize=8, rotation=0, ha="right", va="center", labelpad=4)
            for spine in head.spines.values():
                spine.set_visible(False)
        head.set_title(name, fontsize=9, pad=3)
    bar_axes = figure.add_axes(
        ((width - right + 0.18) / width, bottom / height, 0.14 / width, (height - top - bottom) / height)
    )
    bar = figure.colorbar(image, cax=bar_axes, extend="min")
    bar.ax.tick_params(labelsize=7)
    bar.ax.set_title("β", fontsize=9)
    if title:
        figure.text(left / width, 1 - 0.2 / height, title, fontsize=10, va="center")
    return figure


def line_panels(
    panels: Sequence[tuple[str, Any]], ylabel: str, *, level: float | None = None, top: float | None = None
) -> Any:
    """Panels side by side, each (label of x, {name: points (x, y)}), with one legend. Points that are not finite are left out."""
    plt, _ = _matplotlib()
    figure, all_axes = plt.subplots(
        1, len(panels), figsize=(4.1 * len(panels), 4.6), dpi=150, sharey=True, squeeze=False
    )
    names = list(dict.fromkeys(name for _, lines in panels for name in lines))
    colours = plt.get_cmap("tab20")
    handles = {}
    for axes, (xlabel, lines) in zip(all_axes[0], panels, strict=True):
        for name, points in lines.items():
            shown = [(x, y) for x, y in points if np.isfinite(x) and np.isfinite(y)]
            if shown:
                colour = colours(names.index(name) % 20)
                (handles[name],) = axes.plot(
                    *zip(*shown, strict=True), marker="o", markersize=3.5, linewidth=1.2, color=colour
                )
        if level is not None:
            axes.axhline(level, color="0.6", linewidth=0.6)
        axes.set_xlabel(xlabel, fontsize=9)
        axes.tick_params(labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    all_axes[0][0].set_ylabel(ylabel, fontsize=9)
    if top is not None and all_axes[0][0].get_ylim()[1] > top:
        all_axes[0][0].set_ylim(top=top)  # what rises above it leaves the picture
    rows = -(-len(handles) // 6)
    figure.legend(handles.values(), handles.keys(), fontsize=8, ncols=6, loc="lower center", frameon=False)
    figure.tight_layout(rect=(0, 0.055 * rows, 1, 1))
    return figure


def _palette(plt: Any, colors: Any, floor: float, largest: float) -> Any:
    """Blue for (floor, 1], orange for what exceeds 1: on a logarithmic scale, each its share."""
    steps = 512
    low = round(steps * np.log(1 / floor) / np.log(largest / floor))
    blues = plt.get_cmap("Blues")(np.linspace(0.1, 0.95, low))
    oranges = plt.get_cmap("Oranges")(np.linspace(0.45, 1.0, steps - low))
    return colors.ListedColormap(np.vstack([blues, oranges])).with_extremes(bad="white")


def _matplotlib() -> tuple[Any, Any]:
    try:
        from matplotlib import colors
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'offtrace[plot]'") from error
    return plt, colors
