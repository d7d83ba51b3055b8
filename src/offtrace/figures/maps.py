"""Numbers as colours: heat maps of coefficients, and maps of cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from offtrace.figures import frames

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
    rows, columns = frames.shape(len(matrices), columns)
    parts = [0.15, 1.0] if above is not None else [1.0]
    size = (1.5 + 2.5 * columns, 0.7 + rows * (2.6 + 0.4 * len(parts)))
    figure, grid = plt.subplots(
        rows * len(parts),
        columns,
        figsize=size,
        dpi=150,
        squeeze=False,
        layout="constrained",
        height_ratios=parts * rows,
    )
    maps, strips = grid[len(parts) - 1 :: len(parts)], grid[:: len(parts)]
    largest = min(1e12, max(1.0, *(float(m.max()) for _, m in matrices)))
    blue = round(
        512 * np.log(1 / floor) / np.log(largest / floor)
    )  # each colour has its share of the logarithmic scale
    shades = [
        plt.get_cmap("Blues")(np.linspace(0.1, 0.95, blue)),
        plt.get_cmap("Oranges")(np.linspace(0.45, 1, 512 - blue)),
    ]
    palette = colors.ListedColormap(np.vstack(shades)).with_extremes(bad="white")
    image: Any = None
    for i, (axes, strip) in enumerate(zip(maps.flat, strips.flat, strict=True)):
        if i >= len(matrices):
            axes.set_visible(False)
            strip.set_visible(False)
            continue
        name, matrix = matrices[i]
        shown = np.where(matrix > 0, np.maximum(matrix, floor), np.nan)
        scale = colors.LogNorm(vmin=floor, vmax=largest)
        image = axes.imshow(shown, norm=scale, cmap=palette, interpolation="nearest", aspect="auto")
        for t in np.flatnonzero(ends[:-1]) if ends is not None else ():
            axes.axvline(t + 0.5, color="0.6", linewidth=0.6)
            axes.axhline(t + 0.5, color="0.6", linewidth=0.6)
        axes.tick_params(labelsize=7, length=2, labelleft=i % columns == 0)
        if above is not None:
            _strip(strip, *above, labelled=i % columns == 0)
        strip.set_title(frames.literal(name), fontsize=9, pad=3)
    frames.labels(maps, len(matrices), "step t", "start k")
    bar = figure.colorbar(image, ax=maps, extend="min", aspect=40, pad=0.02)
    bar.ax.tick_params(labelsize=7)
    bar.ax.set_title("β", fontsize=9)
    if title:
        figure.suptitle(frames.literal(title), fontsize=10, x=0.02, ha="left")
    return frames.for_return(figure)


def _strip(axes: Axes, label: str, series: np.ndarray, *, labelled: bool) -> None:
    """A series over time on a logarithmic scale, as bars up and down from 1."""
    colours = np.where(series > 1, "#d55e00", "#0072b2")
    axes.bar(np.arange(len(series)), np.log10(np.clip(series, 1e-2, 1e2)), width=0.85, color=colours)
    axes.axhline(0, color="0.3", linewidth=0.5)
    axes.set(xlim=(-0.5, len(series) - 0.5), ylim=(-1.6, 1.6), xticks=[])
    axes.set_yticks([-1, 1], labels=[".1", "10"] if labelled else ["", ""], fontsize=6)
    if labelled:
        axes.set_ylabel(frames.literal(label), fontsize=8, rotation=0, ha="right", va="center")
    axes.spines[:].set_visible(False)


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
    values = np.concatenate([np.asarray(part, dtype=float).ravel() for *_, part, _ in maps])
    values = values[np.isfinite(values)]
    ends = (0.1, 1.0) if brighter_is_higher else (0.0, 0.9)  # the worst tenth shares a colour
    low, high = np.quantile(values, ends) if len(values) else (0.0, 1.0)
    palette = "cividis" if brighter_is_higher else "cividis_r"
    image: Any = None
    for axes, (title, x, y, part, marked) in zip(all_axes.flat, maps, strict=False):
        image = axes.imshow(part, origin="lower", aspect="auto", cmap=palette, vmin=low, vmax=high)
        stops = np.array([(j, i) for j, i in enumerate(marked) if i is not None]).reshape(-1, 2)
        axes.plot(*stops.T, "o", color="white", markersize=3.6, markeredgecolor="black", markeredgewidth=0.6)
        for axis, numbers in ((axes.xaxis, x), (axes.yaxis, y)):
            every = -(-len(numbers) // 6)
            axis.set_ticks(range(0, len(numbers), every), labels=[f"{v:g}" for v in numbers[::every]])
        axes.set_title(frames.literal(title), fontsize=8, loc="left")
        axes.tick_params(labelsize=6.5, length=2)
    frames.labels(all_axes, len(maps), xlabel, ylabel)
    width, height = figure.get_size_inches()
    place = (1 - 0.72 / width, 0.45 / height, 0.12 / width, 1 - 0.75 / height)
    bar = figure.colorbar(image, cax=figure.add_axes(place))
    bar.set_label(frames.literal(label), fontsize=8)
    bar.ax.tick_params(labelsize=6.5, length=2)
    return figure
