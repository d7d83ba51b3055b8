"""Views → PNG and PDF files for papers, with matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from offtrace import figures
from offtrace.reports import statistics
from offtrace.reports.views import Cloud, Line, Views
from offtrace.reports.words import curve, metric


def write(shown: Views, folder: str | Path) -> list[Path]:
    """All figures of a study, each as PNG and as PDF. What the study has nothing for is left out."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in draw(shown).items():
        for kind in ("png", "pdf"):
            path = folder / f"{name}.{kind}"
            # No date in the PDF: the same records give the same file.
            about = {"CreationDate": None} if kind == "pdf" else {}
            figure.savefig(path, metadata=about)
            paths.append(path)
    return paths


def draw(shown: Views) -> dict[str, Any]:
    """The figures by name."""
    looks = dict(zip(shown.summary.methods, statistics.styles(shown.summary.methods), strict=True))
    what = metric(shown.facts)
    found: dict[str, Any] = {}
    if len(shown.summary.iqm) > 1 and shown.facts.get("task") != "map":
        found["standing"] = _standing(shown, looks)
    panels: tuple[tuple[str, dict[str, list[Line]], str, str], ...] = (
        ("learning", shown.learning, "step", curve(shown.facts)),
        ("lambda", shown.sweeps, "λ", what),
        ("age", shown.ages, "age of the data", what),
    )
    for name, views, xlabel, ylabel in panels:
        if views:
            lines = [(title, _bands(view)) for title, view in views.items()]
            used = {
                method: looks[method]
                for method in looks
                if any(line[0] == method for _, part in lines for line in part)
            }
            found[name] = figures.band_panels(lines, xlabel=xlabel, ylabel=ylabel, looks=used)
    if shown.tradeoff:
        clouds = [(title, [_path(cloud) for cloud in view]) for title, view in shown.tradeoff.items()]
        found["tradeoff"] = figures.band_panels(
            clouds, xlabel="contraction", ylabel="variance", looks=looks, logarithmic=True
        )
    for title, grids in shown.heat.items():
        maps = [(g.method, g.lam, g.alpha, np.array(g.values, dtype=float), g.chosen) for g in grids]
        higher = shown.summary.better > 0
        name = "alpha-lambda-" + "".join(c if c.isalnum() else "-" for c in title.lower())
        name = name if name not in found else f"{name}-{len(found)}"
        found[name] = figures.cell_maps(maps, xlabel="λ", ylabel="α", label=what, brighter_is_higher=higher)
    return found


def _standing(shown: Views, looks: dict[str, int]) -> Any:
    """Interquartile means, and the first method against each other."""
    iqm = [(r["method"], r["iqm"], r["low"], r["high"]) for r in shown.summary.iqm.iter_rows(named=True)]
    first = iqm[0][0]
    pairs = shown.summary.improvement.filter(better=first).iter_rows(named=True)
    chances = [(r["worse"], r["probability"], r["low"], r["high"]) for r in pairs]
    label = f"P({first} better)"
    return figures.interval_bars(
        [("interquartile mean of scaled scores", iqm, None), (label, chances, 0.5)], looks=looks
    )


def _bands(lines: list[Line]) -> list[tuple[Any, ...]]:
    """Each method at its best λ; one without λ runs across."""
    across = [x for line in lines if not line.level for x in line.x]
    found = []
    for line in lines:
        if line.level and across:
            level = [[part[0]] * 2 for part in (line.y, line.low, line.high)]
            found.append((line.method, [min(across), max(across)], *level))
        elif line.best:
            found.append((line.method, line.x, line.y, line.low, line.high))
    return found


def _path(cloud: Cloud) -> tuple[Any, ...]:
    x = np.array(cloud.x, dtype=float)
    none = np.full(len(x), np.nan)
    return cloud.method, x, cloud.y, none, none
