"""What the figures of a study are: each is defined once, and drawn by a script on the page and by matplotlib for a paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from offtrace import mdps
from offtrace._shared.number_text import number
from offtrace.mdps.gallery import BIFURCATIONS
from offtrace.reports.html.document import Select
from offtrace.reports.study.views import Cloud, Grid, Line, Row, Views
from offtrace.reports.study.words import age_label, curve, in_sentence, metric, of_ages, scaled, settings


class Bar(NamedTuple):
    """A method's number with its interval."""

    method: str
    value: float
    low: float
    high: float
    shown: str | None = None
    """The number as text; by default with two decimals."""


class Bars(NamedTuple):
    """Numbers under one another."""

    bars: list[Bar]
    xlabel: str
    says: str
    """What a number is."""
    note: str = ""
    reference: float | None = None


class Map(NamedTuple):
    """A gridworld: a row of marks for each row of cells: G goal, S start, X blocked, ! cliff, `.` free."""

    rows: Sequence[str]


@dataclass(frozen=True)
class Chart:
    """One figure: its panels by their titles."""

    key: str
    kind: Literal["lines", "points", "bars", "cells", "maps"]
    title: str
    lead: str
    panels: Mapping[str, Sequence[Line] | Sequence[Cloud] | Sequence[Grid] | Bars | Map]
    xlabel: str = ""
    ylabel: str = ""
    word: str = ""
    """The word for the navigation; a figure without one belongs to the section before it."""
    controls: Sequence[Select] = ()
    logarithmic: bool = False
    """Whether the axis of x is."""
    size: str = ""

    def data(self) -> dict[str, object]:
        """What the page's script draws."""
        panels: list[dict[str, object]] = []
        for name, panel in self.panels.items():
            if isinstance(panel, Bars):
                panels.append({"name": name, **panel._asdict(), "bars": [bar._asdict() for bar in panel.bars]})
            elif isinstance(panel, Map):
                panels.append({"name": name, **panel._asdict()})
            else:
                panels.append({"name": name, "lines": [line._asdict() for line in panel]})
        labels = {"xlabel": self.xlabel, "ylabel": self.ylabel, "log": self.logarithmic}
        return {"kind": self.kind, **labels, "panels": panels}


def charts(shown: Views) -> list[Chart]:
    """All figures that the study has something for, in their order on the page."""
    parts = (_head, _standing, _tradeoff, _over_ages, _learning, _sweeps, _heat)
    return [chart for part in parts for chart in part(shown)]


def _head(shown: Views) -> list[Chart]:
    """By how much each trace differs from the baseline, and the gridworlds."""
    summary, figures = shown.summary, []
    per_place: dict[str, list[Bar]] = {}
    for row in summary.against.iter_rows(named=True):
        text = number(row["difference"], (row["high"] - row["low"]) / 2)
        bar = Bar(row["method"], row["difference"], row["low"], row["high"], "+" * (row["difference"] > 0) + text)
        per_place.setdefault(row["environment"], []).append(bar)
    if shown.facts.get("task") == "deep" or len(summary.environments) == 1:
        per_place.pop("", None)  # returns of different games have no mean that says anything
    if per_place and shown.facts.get("task") != "map":
        less = f"{metric(shown.facts)}, less {summary.baseline}"
        panels = {
            name or "mean over all": Bars(
                sorted(bars, key=lambda bar: -summary.better * bar.value), less, less, "", 0.0
            )
            for name, bars in per_place.items()
        }
        choice = Select("Environment", "difference", [(str(i), name) for i, name in enumerate(panels)])
        better = "right is better" if summary.better > 0 else "left is better"
        lead = f"Each trace less {summary.baseline}, in {in_sentence(shown.facts)}, each at its {settings(shown)}: "
        lead += f"means of pairs of the same seed with 95% intervals; {better}."
        if any(len(bars) < len(summary.methods) - 1 for bars in per_place.values()):
            lead += " A trace of which a run failed has no mean and is not shown."
        controls = [choice] if len(panels) > 1 else []
        figures.append(
            Chart("difference", "bars", f"Ahead of {summary.baseline}?", lead, panels, less, controls=controls)
        )
    maps = {
        title: Map(rows)
        for name, title in zip(shown.declared, summary.environments, strict=True)
        if (rows := _map(name))
    }
    if maps:
        lead = "The gridworlds: an episode starts at ● and ends at ✦; filled cells are blocked."
        figures.append(Chart("maps", "maps", "", lead, maps, size="tiny"))
    return figures


def _map(name: str) -> Sequence[str] | None:
    """The rows of a gridworld of the gallery; None where the environment is none."""
    kind, _, number = name.rpartition("-")
    if kind == "bifurcation" and number.isdecimal():
        return BIFURCATIONS.get(int(number))
    if name == "cliff":
        cells = {cell for cell in mdps.cliff().state_names or () if isinstance(cell, tuple)}
        rows, columns = (1 + max(cell[i] for cell in cells) for i in (0, 1))
        rows = ["".join("." if (i, j) in cells else "!" for j in range(columns)) for i in range(rows)]
        return [*rows[:-1], "S" + rows[-1][1:-1] + "G"]
    return None


def _standing(shown: Views) -> list[Chart]:
    summary = shown.summary
    if shown.facts.get("task") == "map" or len(summary.iqm) < 2:
        return []

    def bars(rows: Sequence[Row], name: str, value: str) -> list[Bar]:
        return [Bar(row[name], row[value], row["low"], row["high"]) for row in rows]

    first = summary.iqm["method"][0]
    pairs = summary.improvement.filter(better=first).to_dicts()
    panels = {
        "Interquartile mean": Bars(
            bars(summary.iqm.to_dicts(), "method", "iqm"), "scaled score", "Interquartile mean",
            "Of the scaled scores of all runs",
        ),
        f"{first} against the others": Bars(
            bars(pairs, "worse", "probability"), "probability", f"P({first} better)",
            "Probability that a run of it is the better one", 0.5,
        ),
    }  # fmt: skip
    lead = (
        f"Each trace at its own {settings(shown)}. Scores are scaled in each environment: {scaled(shown)}. Bars are 95% "
        "intervals by a stratified bootstrap, which resamples the seeds within each environment."
    )
    return [Chart("standing", "bars", "Which trace is ahead", lead, panels, word="Standing", size="standing")]


def _tradeoff(shown: Views) -> list[Chart]:
    if not shown.tradeoff:
        return []
    lead = (
        "Each point is a λ, each line a trace from small to large markers as λ grows. Left is faster, down is quieter: "
        "the lower left corner is best. The contraction is the middle of its guaranteed interval, averaged over MDPs."
    )
    title = "What contraction costs in variance"
    return [Chart("tradeoff", "points", title, lead, shown.tradeoff, "contraction (0 fastest)", "variance")]


def _over_ages(shown: Views) -> list[Chart]:
    if not shown.ages:
        return []
    figures, label = [], age_label(shown.facts)
    lead = f"Each trace at its {settings(shown)}. {of_ages(shown)} Bands are 95% intervals"
    if shown.aged:
        over = f"{lead} by a stratified bootstrap. Scores are scaled as above: {scaled(shown)}, at all ages alike."
        title, apart = "How the answer changes with the age of the data", shown.ages_apart
        figures.append(Chart("aged", "lines", title, over, shown.aged, label, "", "Age", (), apart, "standing"))
        lead = "The same in each environment, not scaled. Bands are 95% intervals"
    title, lead = "How far old data can be used", f"{lead} of the mean over seeds."
    word = "" if figures else "Age"
    return [
        *figures,
        Chart("ages", "lines", title, lead, shown.ages, label, metric(shown.facts), word, (), shown.ages_apart),
    ]


def _learning(shown: Views) -> list[Chart]:
    if not shown.learning:
        return []
    lines = [line for lines in shown.learning.values() for line in lines]
    lams = sorted({line.lam for line in lines if line.lam is not None})
    ages = sorted({line.age for line in lines if line.age is not None})
    controls = []
    if len(lams) > 1:
        each = [(f"{lam:g}", f"λ = {lam:g}") for lam in lams]
        controls.append(Select("Show", "learning", [("best", "each trace’s best λ"), *each]))
    if len(ages) > 1:
        controls.append(Select(age_label(shown.facts), "age", [(f"{age:.0f}", f"{age:,.0f}") for age in ages]))
    at = ", at the tuned α" if "α" in settings(shown) else ""
    lead = f"{curve(shown.facts)} while learning{at}. Bands are 95% intervals of the mean over seeds."
    step, what = str(shown.facts.get("step", "step")), curve(shown.facts)
    controls += _against(shown)
    return [Chart("learning", "lines", "How learning goes", lead, shown.learning, step, what, "Learning", controls)]


def _sweeps(shown: Views) -> list[Chart]:
    if not shown.sweeps:
        return []
    lead = "Each point is at the α that was best for its trace and λ in tuning. Bands are 95% intervals of the mean."
    if "α" not in settings(shown):
        lead = "The mean over seeds and ages, with its 95% interval."
    if shown.facts.get("task") == "map":
        lead = "The mean over MDPs, with its 95% interval."
    lead += " A triangle at the edge marks where a line leaves its panel."
    return [Chart("sweeps", "lines", "What λ does", lead, shown.sweeps, "λ", metric(shown.facts), "λ", _against(shown))]


def _against(shown: Views) -> list[Select]:
    """A choice of the trace whose line is subtracted from the others, so that lines which overlap can be distinguished."""
    options = [("", "none"), *((method, method) for method in shown.summary.methods)]
    return [Select("Less the line of", "against", options)] if len(options) > 2 else []


def _heat(shown: Views) -> list[Chart]:
    if not shown.heat:
        return []
    choice = Select("Environment", "heat", [(str(i), name) for i, name in enumerate(shown.heat)])
    title = "How sensitive each trace is to its step size"
    lead = (
        "The mean over the tuning seeds for every λ and α. All traces share one colour scale, and brighter is better."
    )
    lead += " A ring at the lowest or highest α means that a better one may lie outside of the grid."
    return [Chart("heat", "cells", title, lead, shown.heat, "λ", "α", "Step sizes", [choice], size="small")]
