"""Views → the page of a study: the finding, its figures, tables, and what was run."""

from __future__ import annotations

import json

import polars as pl

from offtrace._shared.number_text import duration
from offtrace.reports.html.document import (
    Fact,
    Figure,
    Folded,
    Heading,
    Items,
    Page,
    Pairs,
    Paragraph,
    Part,
    Section,
    Text,
)
from offtrace.reports.study import method_names, page_tables
from offtrace.reports.study.charts import Chart, charts
from offtrace.reports.study.views import Facts, Views
from offtrace.reports.study.words import answer, concerns, finding, metric


def render(rows: pl.DataFrame, curves: pl.DataFrame, facts: Facts) -> str:
    """The page of a study's records."""
    return html(Views(rows, curves, facts))


def html(shown: Views) -> str:
    """The page of what is shown."""
    facts, summary, drawn = shown.facts, shown.summary, charts(shown)
    question = str(facts.get("question") or facts.get("name") or "A study")
    *said, care = answer(shown)
    paragraphs = finding(shown)
    head = [chart for chart in drawn if chart.key in ("difference", "maps", "tradeoff")]
    if not paragraphs:  # without a baseline the scaled standing is the answer
        paragraphs, said = said, []
    return Page(
        kind="study",
        title=question,
        eyebrow=str(facts.get("name", "")),
        question=question,
        answer=paragraphs,
        care=care,
        warnings=[*concerns(shown), *_set_aside(facts)],
        beside=[_figure(chart) for chart in head],
        facts=[
            Fact("Metric", metric(facts), "higher is better" if summary.better > 0 else "lower is better"),
            Fact("Environments", str(len(summary.environments))),
            Fact("Traces", str(len(summary.methods))),
            Fact("Runs", f"{shown.rows:,}"),
            Fact("Time", duration(facts.get("seconds"))),
        ],
        legend=True,
        sections=[
            *_sections(shown, [chart for chart in drawn if chart not in head], said),
            _numbers(shown),
            _run(shown),
        ],
        data=_data(shown, drawn),
        version=str(facts.get("versions", {}).get("offtrace", "")),
    ).html()


def _figure(chart: Chart) -> Figure:
    return Figure(chart.title, chart.lead, chart.key, chart.size, chart.controls, scale=chart.kind == "cells")


def _sections(shown: Views, drawn: list[Chart], said: list[str]) -> list[Section]:
    """A section for each chart that has a word for the navigation; the others follow in the section before them."""
    sections: list[tuple[str, str, list[Part]]] = []
    for chart in drawn:
        parts: list[Part] = [_figure(chart)]
        if chart.key == "standing":
            parts += [Paragraph(text) for text in said]
        if chart.key == "aged":
            parts += page_tables.aged(shown)
        if chart.word:
            sections.append((f"figure-{chart.key}", chart.word, parts))
        else:
            sections[-1][2].extend(parts)
    return [Section(*section) for section in sections]


def _set_aside(facts: Facts) -> list[str]:
    """Which units could not be run, and why."""
    failed = [str(words) for words in facts.get("failed") or ()]
    if not failed:
        return []
    units = "1 unit was" if len(failed) == 1 else f"{len(failed)} units were"
    return [f"{units} set aside; the rows are missing on this page, and the next run tries again.", *failed]


def _data(shown: Views, drawn: list[Chart]) -> dict[str, object]:
    """What the script draws."""
    summary = shown.summary
    looks = zip(summary.methods, method_names.styles(summary.methods), strict=True)
    pairs = [] if shown.facts.get("task") == "map" else summary.improvement.to_dicts()
    return {
        "methods": [{"name": method, "style": look} for method, look in looks],
        "better": summary.better,
        "metric": metric(shown.facts),
        "charts": {chart.key: chart.data() for chart in drawn},
        "pairs": {"names": summary.iqm["method"].to_list(), "pairs": pairs},
    }


def _numbers(shown: Views) -> Section:
    parts: list[Part] = [Heading(f"{metric(shown.facts)} in numbers")]
    if shown.tradeoff and shown.facts.get("task") == "map":
        lead = "Means over MDPs. Unbeaten: no other unbiased setting is better in both. Click a heading to sort."
        parts += [Paragraph(lead), page_tables.of_map(shown)]
    else:
        lead = (
            "Each trace at its best λ. **★** marks the best mean of an environment, **≈** those that the runs do not tell apart "
            "from it, compared in pairs of the same seed; “edge”: the tuned α is the smallest or largest that was tried. "
            "Click a heading to sort."
        )
        parts += [Paragraph(lead), page_tables.by_environment(shown)]
        parts.append(Folded(f"Every λ ({len(shown.summary.table)} rows)", page_tables.every_lambda(shown)))
    return Section("numbers", "Numbers", parts)


def _run(shown: Views) -> Section:
    facts = shown.facts
    code = facts.get("code") or {}
    about = {"Study": facts.get("name"), "Task": facts.get("task"), "Machine": facts.get("machine")}
    about |= {"Time": duration(facts.get("seconds")), "Environments": " · ".join(shown.declared)}
    about |= {str(name).capitalize(): value for name, value in dict(facts.get("counts") or {}).items()}
    versions = dict(facts.get("versions") or {})
    if commit := code.get("commit"):
        versions["commit"] = commit[:12]
    parts: list[Part] = [Heading("What was run")]
    if facts.get("about"):
        parts.append(Paragraph(str(facts["about"])))
    parts.append(Pairs([about, versions]))
    if problems := [str(problem) for problem in facts.get("problems") or ()]:
        parts += [Paragraph("Not read, and so not on this page:", "note"), Items(problems)]
    if words := code.get("words"):
        parts.append(
            Paragraph(f"The rows were computed by other code than that which wrote this page: {words}.", "note")
        )
    if declaration := facts.get("declaration"):
        whole = isinstance(declaration, str)
        text = declaration if whole else json.dumps(declaration, indent=2, ensure_ascii=False, default=str)
        parts.append(Folded("The declaration", Text(text)))
    parts.append(Paragraph(METHODS, "note"))
    return Section("run", "Run", parts)


METHODS = (
    "Intervals of means, and of mean differences in pairs of the same seed, are Student’s t. Interquartile means are scipy’s "
    "`trim_mean` by a quarter at both ends of all runs of a trace. The probability of improvement is P(X better than Y) + "
    "½ P(equal) for two runs of one environment, averaged over environments. Both as in Agarwal et al. (2021), with scipy’s "
    "`bootstrap`; for differences of interquartile means the seeds are resampled, and the runs of both traces with them. "
    "A line less that of a chosen trace has the interval of two independent means."
)
"""How the numbers of the page are computed."""
