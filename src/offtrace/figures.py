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
                head.set_ylabel(literal(label), fontsize=8, rotation=0, ha="right", va="center", labelpad=4)
            for spine in head.spines.values():
                spine.set_visible(False)
        head.set_title(literal(name), fontsize=9, pad=3)
    bar_axes = figure.add_axes(
        ((width - right + 0.18) / width, bottom / height, 0.14 / width, (height - top - bottom) / height)
    )
    bar = figure.colorbar(image, cax=bar_axes, extend="min")
    bar.ax.tick_params(labelsize=7)
    bar.ax.set_title("β", fontsize=9)
    if title:
        figure.text(left / width, 1 - 0.2 / height, literal(title), fontsize=10, va="center")
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
        axes.set_xlabel(literal(xlabel), fontsize=9)
        axes.tick_params(labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    all_axes[0][0].set_ylabel(literal(ylabel), fontsize=9)
    if top is not None and all_axes[0][0].get_ylim()[1] > top:
        all_axes[0][0].set_ylim(top=top)  # what rises above it leaves the picture
    rows = -(-len(handles) // 6)
    figure.legend(handles.values(), map(literal, handles), fontsize=8, ncols=6, loc="lower center", frameon=False)
    figure.tight_layout(rect=(0, 0.055 * rows, 1, 1))
    return figure


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


def band_panels(
    panels: Sequence[tuple[str, Sequence[tuple[Any, ...]]]],
    *,
    xlabel: str,
    ylabel: str,
    looks: dict[str, int],
    columns: int = 2,
    logarithmic: bool = False,
    x_logarithmic: bool = False,
) -> Any:
    """Panels of lines with bands, for a paper: (title, [(name, x, y, low, high), …]) each. None and NaN are gaps.

    `looks` numbers the look of each name. Lines far from all others (six interquartile ranges from the median) leave the panel.
    """
    rows, columns = _shape(len(panels), columns)
    across = 3 if columns > 1 else 2
    legend = 0.17 * -(-len(looks) // across) + 0.1
    figure, all_axes = _grid(rows, columns, (2.5, 1.75), (0.55, 0.5), (0.6, 0.15, 0.3, 0.45 + legend))
    handles: dict[str, Any] = {}
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
            _limit(axes, [np.asarray(part, dtype=float) for _, _, *parts in lines for part in parts])
        if x_logarithmic:
            axes.set_xscale("log")
        elif any(np.max(x, initial=0.0) >= 1e5 for _, x, *_ in lines):
            axes.xaxis.set_major_formatter(_short)  # no power of ten beside the axis
        axes.set_title(literal(title), fontsize=8.5, loc="left")
        _plain(axes)
    _labels(all_axes, len(panels), xlabel, ylabel)
    figure.legend(
        handles.values(),
        map(literal, handles),
        fontsize=7.5,
        ncols=across,
        loc="lower center",
        frameon=False,
        handlelength=3.2,
    )
    return figure


def cell_maps(
    maps: Sequence[tuple[str, Sequence[float], Sequence[float], np.ndarray, Sequence[int | None]]],
    *,
    xlabel: str,
    ylabel: str,
    label: str,
    brighter_is_higher: bool = True,
    columns: int = 4,
) -> Any:
    """Maps on one colour scale: (title, x of columns, y of rows, values [rows, columns], the row marked in each column)."""
    rows, columns = _shape(len(maps), columns)
    figure, all_axes = _grid(rows, columns, (1.4, 1.2), (0.4, 0.5), (0.5, 0.85, 0.3, 0.45))
    found = np.concatenate([np.asarray(values, dtype=float).ravel() for *_, values, _ in maps])
    found = found[np.isfinite(found)]
    ends = (0.1, 1.0) if brighter_is_higher else (0.0, 0.9)  # the worst tenth shares a colour
    low, high = np.quantile(found, ends) if len(found) else (0.0, 1.0)
    palette = "cividis" if brighter_is_higher else "cividis_r"
    image = None
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
        axes.set_title(literal(title), fontsize=8, loc="left")
        axes.tick_params(labelsize=6.5, length=2)
    _labels(all_axes, len(maps), xlabel, ylabel)
    width, height = figure.get_size_inches()
    bar = figure.colorbar(
        image, cax=figure.add_axes((1 - 0.72 / width, 0.45 / height, 0.12 / width, 1 - 0.75 / height))
    )
    bar.set_label(literal(label), fontsize=8)
    bar.ax.tick_params(labelsize=6.5, length=2)
    return figure


def interval_bars(
    panels: Sequence[tuple[str, Sequence[tuple[str, float, float, float]], float | None]], *, looks: dict[str, int]
) -> Any:
    """Intervals under one another: (label of x, [(name, value, low, high), …], a reference or None) each."""
    longest = max(len(rows) for _, rows, _ in panels)
    names = 0.25 + 0.06 * max(len(row[0]) for _, rows, _ in panels for row in rows)
    figure, all_axes = _grid(1, len(panels), (2.2, 0.24 * longest), (names, 0), (names, 0.15, 0.1, 0.45))
    for axes, (label, rows, reference) in zip(all_axes.flat, panels, strict=True):
        if reference is not None:
            axes.axvline(reference, color="0.6", linewidth=0.8, linestyle="--")
        for place, (name, value, low, high) in enumerate(rows):
            colour, _, marker = LOOKS[looks[name] % len(LOOKS)]
            axes.plot([low, high], [place, place], color=colour, linewidth=4.5, alpha=0.35, solid_capstyle="round")
            axes.plot([value], [place], marker=marker, color=colour, markersize=4.5)
        axes.set_yticks(range(len(rows)), labels=[literal(name) for name, *_ in rows], fontsize=7.5)
        axes.set_ylim(longest - 0.4, -0.6)
        axes.set_xlabel(literal(label), fontsize=8)
        _plain(axes)
        axes.tick_params(axis="y", length=0)
    return figure


def literal(text: str) -> str:
    r"""The text such that matplotlib shows it as it is: what stands between two dollars would be read as mathematics.

    >>> print(literal(r"$\foo$"))
    \$\foo\$
    """
    return text.replace("$", r"\$")


def _short(x: float, _: int) -> str:
    """`250k`, `1.5M`."""
    size = abs(x)
    return f"{x / 1e6:g}M" if size >= 1e6 else f"{x / 1e3:g}k" if size >= 1e3 else f"{x:g}"


def _shape(n: int, columns: int) -> tuple[int, int]:
    columns = max(1, min(columns, n))
    return -(-n // columns), columns


def _grid(
    rows: int,
    columns: int,
    panel: tuple[float, float],
    gap: tuple[float, float],
    margin: tuple[float, float, float, float],
) -> tuple[Any, Any]:
    """A figure and its axes in inches: the size of a panel, the gaps, the margins (left, right, top, bottom).

    Without pyplot there is nothing to close, no window, and the user's backend stays; given inches are many times faster than a
    layout engine.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'offtrace[plot]'") from error
    left, right, top, bottom = margin
    width = left + right + columns * panel[0] + (columns - 1) * gap[0]
    height = top + bottom + rows * panel[1] + (rows - 1) * gap[1]
    figure = Figure(figsize=(width, height), dpi=200)
    axes = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(
        left / width, bottom / height, 1 - right / width, 1 - top / height, gap[0] / panel[0], gap[1] / panel[1]
    )
    return figure, axes


def _limit(axes: Any, parts: Sequence[np.ndarray]) -> None:
    values = np.concatenate(parts)
    values = values[np.isfinite(values)]
    if not len(values):
        return
    first, middle, third = np.quantile(values, [0.25, 0.5, 0.75])
    reach = 6 * (third - first) or np.inf
    low, high = max(values.min(), middle - reach), min(values.max(), middle + reach)
    pad = 0.06 * (high - low) or 0.05 * abs(low) or 0.5
    axes.set_ylim(low - pad, high + pad)


def _labels(all_axes: Any, n: int, xlabel: str, ylabel: str) -> None:
    """At the left and lower edges only; what has no panel is not drawn."""
    columns = all_axes.shape[1]
    for i, axes in enumerate(all_axes.flat):
        if i >= n:
            axes.set_visible(False)
        if i + columns >= n:
            axes.set_xlabel(literal(xlabel), fontsize=8)
        if i % columns == 0:
            axes.set_ylabel(literal(ylabel), fontsize=8)


def _plain(axes: Any) -> None:
    axes.grid(axis="y", color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", labelsize=7, length=2.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


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
