"""Views → the page of a study: its answer, figures and what was run. The tables are in `page_tables`."""

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
    Select,
    Text,
)
from offtrace.reports.study import method_names, page_tables
from offtrace.reports.study.views import Facts, Views
from offtrace.reports.study.words import age_label, answer, curve, metric, of_ages, scaled, settings


def render(rows: pl.DataFrame, curves: pl.DataFrame, facts: Facts) -> str:
    """The page of a study's records."""
    return html(Views(rows, curves, facts))


def html(shown: Views) -> str:
    """The page of what is shown."""
    facts, summary = shown.facts, shown.summary
    question = str(facts.get("question") or facts.get("name") or "A study")
    *said, care = answer(shown)
    return Page(
        kind="study",
        title=question,
        eyebrow=str(facts.get("name", "")),
        question=question,
        answer=said,
        care=care,
        warnings=_set_aside(facts),
        facts=[
            Fact("Metric", metric(facts), "higher is better" if summary.better > 0 else "lower is better"),
            Fact("Environments", str(len(summary.environments))),
            Fact("Traces", str(len(summary.methods))),
            Fact("Runs", f"{shown.rows:,}"),
            Fact("Time", duration(facts.get("seconds"))),
        ],
        legend=True,
        sections=[section for make in SECTIONS for section in _listed(make(shown))],
        data=_data(shown),
        version=str(facts.get("versions", {}).get("offtrace", "")),
    ).html()


def _set_aside(facts: Facts) -> list[str]:
    """Which units could not be run, and why."""
    failed = [str(words) for words in facts.get("failed") or ()]
    if not failed:
        return []
    units = "1 unit was" if len(failed) == 1 else f"{len(failed)} units were"
    return [f"{units} set aside; the rows are missing on this page, and the next run tries again.", *failed]


def _listed(made: Section | list[Section] | None) -> list[Section]:
    return made if isinstance(made, list) else [made] if made else []


def _data(shown: Views) -> dict[str, object]:
    """What the script draws: the views, with five significant digits."""
    summary = shown.summary
    methods = [
        {"name": m, "style": s} for m, s in zip(summary.methods, method_names.styles(summary.methods), strict=True)
    ]
    kinds = ("learning", "sweeps", "ages", "aged", "tradeoff", "heat")
    panels = {
        kind: [
            {"name": name, "lines": [line._asdict() for line in lines]} for name, lines in getattr(shown, kind).items()
        ]
        for kind in kinds
    }
    return {
        "methods": methods,
        "better": summary.better,
        "metric": metric(shown.facts),
        "curve": curve(shown.facts),
        "step": shown.facts.get("step", "step"),
        "age": {"label": age_label(shown.facts), "log": shown.ages_apart},
        "reference": summary.reference,
        "iqm": [] if shown.facts.get("task") == "map" else summary.iqm.to_dicts(),
        "improvement": [] if shown.facts.get("task") == "map" else summary.improvement.to_dicts(),
        **panels,
    }


def _standing(shown: Views) -> Section | None:
    if shown.facts.get("task") == "map" or len(shown.summary.iqm) < 2:
        return None
    lead = (
        f"Each trace at its own {settings(shown)}. Scores are scaled in each environment: {scaled(shown)}. Bars are 95% "
        "intervals by a stratified bootstrap, which resamples the seeds within each environment."
    )
    return Section("standing", "Standing", [Figure("Which trace is ahead", lead, "standing", "standing")])


def _learning(shown: Views) -> Section | None:
    if not shown.learning:
        return None
    controls: list[Select] = []
    lams = sorted({line.lam for lines in shown.learning.values() for line in lines if line.lam is not None})
    if len(lams) > 1:
        each = [(f"{lam:g}", f"λ = {lam:g}") for lam in lams]
        controls.append(Select("Show", "learning", [("best", "each trace’s best λ"), *each]))
    ages = sorted({line.age for lines in shown.learning.values() for line in lines if line.age is not None})
    if len(ages) > 1:
        controls.append(Select(age_label(shown.facts), "age", [(f"{age:.0f}", f"{age:,.0f}") for age in ages]))
    controls += _against(shown)
    at = ", at the tuned α" if "α" in settings(shown) else ""
    lead = f"{curve(shown.facts)} while learning{at}. Bands are 95% intervals of the mean over seeds."
    return Section("learning", "Learning", [Figure("How learning goes", lead, "learning", controls=controls)])


def _sweeps(shown: Views) -> Section | None:
    if not shown.sweeps:
        return None
    lead = "Each point is at the α that was best for its trace and λ in tuning. Bands are 95% intervals of the mean."
    if "α" not in settings(shown):
        lead = "The mean over seeds and ages, with its 95% interval."
    if shown.facts.get("task") == "map":
        lead = "The mean over MDPs, with its 95% interval."
    return Section("sweeps", "λ", [Figure("What λ does", lead, "sweeps", controls=_against(shown))])


def _against(shown: Views) -> list[Select]:
    """A choice of the trace whose line is taken off the others, so that lines which lie on each other can be told apart."""
    methods = shown.summary.methods
    return (
        [Select("Less the line of", "against", [("", "none"), *((m, m) for m in methods)])] if len(methods) > 1 else []
    )


def _heat(shown: Views) -> Section | None:
    if not shown.heat:
        return None
    choice = Select("Environment", "heat", [(str(i), name) for i, name in enumerate(shown.heat)])
    title = "How sensitive each trace is to its step size"
    lead = (
        "The mean over the tuning seeds for every λ and α. All traces share one colour scale, and brighter is better."
    )
    return Section("step-sizes", "Step sizes", [Figure(title, lead, "heat", "small", [choice], scale=True)])


def _ages(shown: Views) -> Section | None:
    if not shown.ages:
        return None
    lead = f"Each trace at its {settings(shown)}. {of_ages(shown)} Bands are 95% intervals"
    parts: list[Part] = []
    if shown.aged:
        over = f"{lead} by a stratified bootstrap. Scores are scaled as above: {scaled(shown)}, at all ages alike."
        title = "How the answer changes with the age of the data"
        parts += [Figure(title, over, "aged", "standing"), *page_tables.aged(shown)]
        lead = "The same in each environment, not scaled. Bands are 95% intervals"
    parts.append(Figure("How far old data can be used", f"{lead} of the mean over seeds.", "ages"))
    return Section("ages", "Age", parts)


def _tradeoff(shown: Views) -> Section | None:
    if not shown.tradeoff:
        return None
    lead = (
        "Each point is a λ, each line a trace from small to large markers as λ grows. Left is faster, down is quieter: "
        "the lower left corner is best. The contraction is the middle of its guaranteed interval, averaged over MDPs."
    )
    figure = Figure("What contraction costs in variance", lead, "tradeoff")
    return Section("tradeoff", "Contraction and variance", [figure])


def _numbers(shown: Views) -> Section:
    parts: list[Part] = [Heading(f"{metric(shown.facts)} in numbers")]
    if shown.tradeoff and shown.facts.get("task") == "map":
        lead = "Means over MDPs. Unbeaten: no other unbiased setting is better in both. Click a heading to sort."
        parts += [Paragraph(lead), page_tables.of_map(shown)]
    else:
        lead = (
            "Each trace at its best λ. **★** marks the best mean of an environment, **≈** those that the runs do not tell apart "
            "from it, compared in pairs of the same seed. Click a heading to sort."
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
    if made := code.get("commit"):
        versions["commit"] = made[:12]
    parts: list[Part] = [Heading("What was run")]
    if facts.get("about"):
        parts.append(Paragraph(str(facts["about"])))
    parts.append(Pairs([about, versions]))
    if problems := [str(problem) for problem in facts.get("problems") or ()]:
        parts += [Paragraph("Not read, and so not on this page:", "note"), Items(problems)]
    if words := code.get("words"):
        parts.append(Paragraph(f"The rows were made by other code than that which wrote this page: {words}.", "note"))
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

SECTIONS = (_standing, _tradeoff, _ages, _learning, _sweeps, _heat, _numbers, _run)
