"""Views → PNG and PDF files for papers, with matplotlib."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from offtrace import figures
from offtrace.reports.report_files import put
from offtrace.reports.study import method_names
from offtrace.reports.study.views import Cloud, Line, Views
from offtrace.reports.study.words import age_label, curve, metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Bars = tuple[str, list[tuple[str, float, float, float]], float | None]
"""The label of x, (name, value, low, high) of each method, and a reference."""


def write(shown: Views, folder: str | Path) -> list[Path]:
    """All figures of a study, each as PNG and as PDF. What the study has nothing for is left out."""
    folder = Path(folder)
    paths: list[Path] = []
    for name, figure in draw(shown).items():
        for kind in ("png", "pdf"):
            path = folder / f"{name}.{kind}"
            # No date in the PDF: the same records give the same file.
            about = {"CreationDate": None} if kind == "pdf" else {}
            made = io.BytesIO()
            figure.savefig(made, format=kind, metadata=about)
            put(made.getvalue(), path)
            paths.append(path)
    return paths


def draw(shown: Views) -> dict[str, Figure]:
    """The figures by name."""
    looks = dict(zip(shown.summary.methods, method_names.styles(shown.summary.methods), strict=True))
    what = metric(shown.facts)
    found: dict[str, Figure] = {}
    if len(shown.summary.iqm) > 1 and shown.facts.get("task") != "map":
        found["standing"] = _standing(shown, looks)
    panels: list[tuple[str, dict[str, list[Line]], str, str]] = [
        *(
            (name, views, str(shown.facts.get("step", "step")), curve(shown.facts))
            for name, views in _learning(shown).items()
        ),
        ("lambda", shown.sweeps, "λ", what),
        ("age", shown.ages, age_label(shown.facts), what),
        ("age-compared", shown.aged, age_label(shown.facts), ""),
    ]
    for name, views, xlabel, ylabel in panels:
        if views:
            lines = [(title, _bands(view)) for title, view in views.items()]
            used = {
                method: looks[method]
                for method in looks
                if any(line[0] == method for _, part in lines for line in part)
            }
            far = name.startswith("age") and shown.ages_apart
            found[name] = figures.band_panels(lines, xlabel=xlabel, ylabel=ylabel, looks=used, x_logarithmic=far)
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


def _standing(shown: Views, looks: dict[str, int]) -> Figure:
    """Interquartile means, and the first method against each other."""
    iqm = [(r["method"], r["iqm"], r["low"], r["high"]) for r in shown.summary.iqm.iter_rows(named=True)]
    first = iqm[0][0]
    pairs = shown.summary.improvement.filter(better=first).iter_rows(named=True)
    chances = [(r["worse"], r["probability"], r["low"], r["high"]) for r in pairs]
    bars: list[Bars] = [("interquartile mean of scaled scores", iqm, None), (f"P({first} better)", chances, 0.5)]
    reference = shown.summary.reference
    if reference not in (None, first):
        pairs = {r["better"]: r for r in shown.summary.improvement.filter(worse=reference).iter_rows(named=True)}
        over = [(m, *(pairs[m][k] for k in ("probability", "low", "high"))) for m, *_ in iqm if m in pairs]
        bars.append((f"P(better than {reference})", over, 0.5))
    return figures.interval_bars(bars, looks=looks)


def _learning(shown: Views) -> dict[str, dict[str, list[Line]]]:
    """One figure; or, where data have ages, one for each age."""
    ages = sorted({line.age for lines in shown.learning.values() for line in lines if line.age is not None})
    if not ages:
        return {"learning": shown.learning}
    return {
        f"learning-age-{age:.0f}": {
            title: [line for line in lines if line.age == age] for title, lines in shown.learning.items()
        }
        for age in ages
    }


def _bands(lines: list[Line]) -> list[figures.Band]:
    """Each method at its best λ; one without λ runs across."""
    across = [x for line in lines if not line.level for x in line.x]
    found: list[figures.Band] = []
    for line in lines:
        if line.level and across:
            y, low, high = ([part[0]] * 2 for part in (line.y, line.low, line.high))
            found.append((line.method, [min(across), max(across)], y, low, high))
        elif line.best:
            found.append((line.method, line.x, line.y, line.low, line.high))
    return found


def _path(cloud: Cloud) -> figures.Band:
    x = np.array(cloud.x, dtype=float)
    none = np.full(len(x), np.nan)
    return cloud.method, x, cloud.y, none, none
