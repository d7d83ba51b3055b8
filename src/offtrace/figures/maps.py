"""Numbers as colours: heat maps of coefficients, and maps of cells."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from offtrace.figures import frames

if TYPE_CHECKING:
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


def heat_maps(
    matrices: Sequence[tuple[str, np.ndarray]],
    *,
    above: tuple[str, np.ndarray] | None = None,
    ends: np.ndarray | None = None,
    title: str = "",
    columns: int = 4,
    floor: float = 1e-3,
) -> Figure:
    """Upper-triangular matrices side by side on one logarithmic colour scale: blue up to 1, orange above; 0 is white.

    `above` is a named series over time that is drawn over every column of maps (say, the ratios that made them); `ends` [T]
    marks the steps after which an episode ended. Values below `floor` take its colour.
    """
    plt, colors = frames.pyplot_and_colors()
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
    image: AxesImage | None = None
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
                head.set_ylabel(frames.literal(label), fontsize=8, rotation=0, ha="right", va="center", labelpad=4)
            for spine in head.spines.values():
                spine.set_visible(False)
        head.set_title(frames.literal(name), fontsize=9, pad=3)
    bar_axes = figure.add_axes(
        ((width - right + 0.18) / width, bottom / height, 0.14 / width, (height - top - bottom) / height)
    )
    bar = figure.colorbar(image, cax=bar_axes, extend="min")
    bar.ax.tick_params(labelsize=7)
    bar.ax.set_title("β", fontsize=9)
    if title:
        figure.text(left / width, 1 - 0.2 / height, frames.literal(title), fontsize=10, va="center")
    return frames.for_return(figure)


def cell_maps(
    maps: Sequence[tuple[str, Sequence[float], Sequence[float], np.ndarray, Sequence[int | None]]],
    *,
    xlabel: str,
    ylabel: str,
    label: str,
    brighter_is_higher: bool = True,
    columns: int = 4,
) -> Figure:
    """Maps on one colour scale: (title, x of columns, y of rows, values [rows, columns], the row marked in each column)."""
    rows, columns = frames.shape(len(maps), columns)
    figure, all_axes = frames.grid(rows, columns, (1.4, 1.2), (0.4, 0.5), (0.5, 0.85, 0.3, 0.45))
    found = np.concatenate([np.asarray(values, dtype=float).ravel() for *_, values, _ in maps])
    found = found[np.isfinite(found)]
    ends = (0.1, 1.0) if brighter_is_higher else (0.0, 0.9)  # the worst tenth shares a colour
    low, high = np.quantile(found, ends) if len(found) else (0.0, 1.0)
    palette = "cividis" if brighter_is_higher else "cividis_r"
    image: Any = None
    for axes, (title, x, y, values, marked) in zip(all_axes.flat, maps, strict=False):
        image = axes.imshow(values, origin="lower", aspect="auto", cmap=palette, vmin=low, vmax=high)
        stops = [(j, i) for j, i in enumerate(marked) if i is not None]
        if stops:
            axes.plot(
                *zip(*stops, strict=True),
                "o",
                color="white",
                markersize=3.6,
                markeredgecolor="black",
                markeredgewidth=0.6,
            )
        for axis, numbers in ((axes.xaxis, x), (axes.yaxis, y)):
            every = -(-len(numbers) // 6)
            axis.set_ticks(range(0, len(numbers), every), labels=[f"{v:g}" for v in numbers[::every]])
        axes.set_title(frames.literal(title), fontsize=8, loc="left")
        axes.tick_params(labelsize=6.5, length=2)
    frames.labels(all_axes, len(maps), xlabel, ylabel)
    width, height = figure.get_size_inches()
    bar = figure.colorbar(
        image, cax=figure.add_axes((1 - 0.72 / width, 0.45 / height, 0.12 / width, 1 - 0.75 / height))
    )
    bar.set_label(frames.literal(label), fontsize=8)
    bar.ax.tick_params(labelsize=6.5, length=2)
    return figure


def _palette(plt: ModuleType, colors: ModuleType, floor: float, largest: float) -> ListedColormap:
    """Blue for (floor, 1], orange for what exceeds 1: on a logarithmic scale, each its share."""
    steps = 512
    low = round(steps * np.log(1 / floor) / np.log(largest / floor))
    blues = plt.get_cmap("Blues")(np.linspace(0.1, 0.95, low))
    oranges = plt.get_cmap("Oranges")(np.linspace(0.45, 1.0, steps - low))
    return colors.ListedColormap(np.vstack([blues, oranges])).with_extremes(bad="white")
