"""Figures, axes, their labels and limits: what all kinds of figures share."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from offtrace._shared.extras import from_extra
from offtrace._shared.progress_bar import in_notebook

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def literal(text: str) -> str:
    r"""The text such that matplotlib shows it as it is: what stands between two dollars would be read as mathematics.

    >>> print(literal(r"$\foo$"))
    \$\foo\$
    """
    return text.replace("$", r"\$")


def short(x: float, _: int) -> str:
    """`250k`, `1.5M`."""
    size = abs(x)
    return f"{x / 1e6:g}M" if size >= 1e6 else f"{x / 1e3:g}k" if size >= 1e3 else f"{x:g}"


def shape(n: int, columns: int) -> tuple[int, int]:
    """Rows and columns of n panels, of which at most so many stand side by side."""
    columns = max(1, min(columns, n))
    return -(-n // columns), columns


def grid(
    rows: int,
    columns: int,
    panel: tuple[float, float],
    gap: tuple[float, float],
    margin: tuple[float, float, float, float],
) -> tuple[Figure, np.ndarray]:
    """A figure and its axes in inches: the size of a panel, the gaps, the margins (left, right, top, bottom).

    Without pyplot there is nothing to close, no window, and the user's backend stays; given inches are many times faster than a
    layout engine.
    """
    with from_extra("plot", "figures need"):
        from matplotlib.figure import Figure
    left, right, top, bottom = margin
    width = left + right + columns * panel[0] + (columns - 1) * gap[0]
    height = top + bottom + rows * panel[1] + (rows - 1) * gap[1]
    figure = Figure(figsize=(width, height), dpi=200)
    axes = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(
        left / width, bottom / height, 1 - right / width, 1 - top / height, gap[0] / panel[0], gap[1] / panel[1]
    )
    return figure, axes


def limit(axes: Axes, parts: Sequence[np.ndarray]) -> None:
    """Limit the axis of y to what most values need: a few that are far away must not squeeze the others."""
    values = np.concatenate(parts)
    values = values[np.isfinite(values)]
    if not len(values):
        return
    first, middle, third = np.quantile(values, [0.25, 0.5, 0.75])
    reach = 6 * (third - first) or np.inf
    low, high = max(values.min(), middle - reach), min(values.max(), middle + reach)
    pad = 0.06 * (high - low) or 0.05 * abs(low) or 0.5
    axes.set_ylim(low - pad, high + pad)


def labels(all_axes: np.ndarray, n: int, xlabel: str, ylabel: str) -> None:
    """Label the axes at the left and lower edges only, and hide the axes beyond the n panels."""
    columns = all_axes.shape[1]
    for i, axes in enumerate(all_axes.flat):
        if i >= n:
            axes.set_visible(False)
        if i + columns >= n:
            axes.set_xlabel(literal(xlabel), fontsize=8)
        if i % columns == 0:
            axes.set_ylabel(literal(ylabel), fontsize=8)


def plain(axes: Axes) -> None:
    """Draw a light grid, small labels, and no frame at the top and at the right."""
    axes.grid(axis="y", color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", labelsize=7, length=2.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def pyplot_and_colors() -> tuple[ModuleType, ModuleType]:
    """Import them, or say what to install."""
    with from_extra("plot", "figures need"):
        from matplotlib import colors
        from matplotlib import pyplot as plt
    return plt, colors


def for_return(figure: Figure) -> Figure:
    """The figure, as a function returns it: a notebook shows the value of a cell, and each figure that is open a second time."""
    if in_notebook():
        pyplot_and_colors()[0].close(figure)
    return figure
