"""Charts → PNG and PDF files for papers, with matplotlib."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offtrace import figures
from offtrace.reports.report_files import put
from offtrace.reports.study import method_names
from offtrace.reports.study.charts import Chart, charts
from offtrace.reports.study.views import Cloud, Line, Views
from offtrace.reports.study.words import metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"sweeps": "lambda", "ages": "age", "aged": "age-compared"}
"""What files are called, where not as the figure of the page."""


def write(shown: Views, folder: str | Path) -> list[Path]:
    """All figures of a study, each as PNG and as PDF. What the study has nothing for is left out."""
    paths: list[Path] = []
    for name, figure in draw(shown).items():
        for kind in ("png", "pdf"):
            path = Path(folder) / f"{name}.{kind}"
            # No date in the PDF: the same records give the same file.
            about = {"CreationDate": None} if kind == "pdf" else {}
            content = io.BytesIO()
            figure.savefig(content, format=kind, metadata=about)
            put(content.getvalue(), path)
            paths.append(path)
    return paths


def draw(shown: Views) -> dict[str, Figure]:
    """The figures by name."""
    looks = dict(zip(shown.summary.methods, method_names.styles(shown.summary.methods), strict=True))
    drawn: dict[str, Figure] = {}
    for chart in charts(shown):
        panels: Any = chart.panels
        name = NAMES.get(chart.key, chart.key)
        if chart.kind == "bars":
            bars = [(panel.says, [bar[:4] for bar in panel.bars], panel.reference) for panel in panels.values()]
            drawn[name] = figures.interval_bars(bars[:1] if chart.key == "difference" else bars, looks=looks)
        elif chart.kind == "points":
            clouds = [(title, [_path(cloud) for cloud in panel]) for title, panel in panels.items()]
            drawn[name] = figures.band_panels(
                clouds, xlabel="contraction", ylabel=chart.ylabel, looks=looks, logarithmic=True
            )
        elif chart.kind == "lines":
            drawn |= {f"{name}{further}": figure for further, figure in _lines(chart, looks).items()}
        elif chart.kind == "cells":
            for title, grids in panels.items():
                maps = [(g.method, g.lam, g.alpha, np.array(g.values, dtype=float), g.chosen) for g in grids]
                file = "alpha-lambda-" + "".join(c if c.isalnum() else "-" for c in title.lower())
                file = file if file not in drawn else f"{file}-{len(drawn)}"
                options: Any = {"label": metric(shown.facts), "brighter_is_higher": shown.summary.better > 0}
                drawn[file] = figures.cell_maps(maps, xlabel="λ", ylabel="α", **options)
    return drawn


def _lines(chart: Chart, looks: dict[str, int]) -> dict[str, Figure]:
    """One figure; or, of learning curves whose data have ages, one for each age, by what its name has in addition."""
    panels: Any = chart.panels
    ages = {line.age for lines in panels.values() for line in lines if line.age is not None}
    drawn: dict[str, Figure] = {}
    for age in sorted(ages) or [None]:
        of_age = {title: [line for line in lines if line.age == age] for title, lines in panels.items()}
        bands = [(title, _bands(lines)) for title, lines in of_age.items()]
        used = {m: look for m, look in looks.items() if any(band[0] == m for _, part in bands for band in part)}
        figure = figures.band_panels(
            bands, xlabel=chart.xlabel, ylabel=chart.ylabel, looks=used, x_logarithmic=chart.logarithmic
        )
        drawn["" if age is None else f"-age-{age:.0f}"] = figure
    return drawn


def _bands(lines: list[Line]) -> list[figures.Band]:
    """Each method at its best λ; one without λ runs across."""
    across = [x for line in lines if not line.level for x in line.x]
    bands: list[figures.Band] = []
    for line in lines:
        if line.level and across:
            y, low, high = ([part[0]] * 2 for part in (line.y, line.low, line.high))
            bands.append((line.method, [min(across), max(across)], y, low, high))
        elif line.best:
            bands.append((line.method, line.x, line.y, line.low, line.high))
    return bands


def _path(cloud: Cloud) -> figures.Band:
    x = np.array(cloud.x, dtype=float)
    none = np.full(len(x), np.nan)
    return cloud.method, x, cloud.y, none, none
