"""What `offtrace logs evidence` measured → one page: for each case RMSE and coverage over λ, and the table of all estimators."""

from __future__ import annotations

from collections.abc import Sequence

from offtrace._shared.number_text import number, percent
from offtrace.logs.cases import tables
from offtrace.logs.cases.measuring import DIRECT, Measured, Score
from offtrace.reports.html.document import (
    Cell,
    Fact,
    Figure,
    Heading,
    Page,
    Pairs,
    Paragraph,
    Part,
    Section,
    Table,
    Text,
)
from offtrace.studies import provenance
from offtrace.traces import rules

LEVELS = {"weighted IS": 5, "doubly robust": 8}
"""Estimators without a λ that are drawn beside the traces, and how they look."""


def html(found: Sequence[Measured], command: str | None = None) -> str:
    """The page; `command` is the command line that it came from, if any."""
    versions = provenance.versions("evaluation")
    repeat = Section(
        "repeat",
        "Repeat",
        [
            Heading("To repeat it"),
            Text(command or "offtrace logs evidence"),
            Pairs([{"Machine": provenance.machine()}, versions], "after"),
        ],
    )
    return Page(
        kind="values from logs",
        title="When do traces help to evaluate a policy from logs?",
        eyebrow="Off-policy evaluation where the truth is known",
        question="When do traces help, and when not?",
        answer=[_said(each) for each in found],
        care="Each repetition has logs of its own. ± are standard errors; brackets at a coverage are what chance allows, at the "
        "95% level. λ = 0 is the direct method, whatever the trace. A trace helps where its squared errors are smaller than "
        "those of the direct method on the same logs, by two standard errors.",
        facts=[
            Fact("Cases", str(len(found)), f"{sum(each.case.misspecified for each in found)} with a wrong model of Q"),
            Fact("Repetitions", f"{sum(each.repetitions for each in found):,}", "in all"),
            Fact("Estimators", str(len(found[0].scores)), "with every λ"),
        ],
        sections=[*(_section(each) for each in found), repeat],
        data=data(found),
        version=versions["offtrace"],
        legend=True,
    ).html()


def _said(found: Measured) -> str:
    """Whether the default trace helps, in numbers."""
    direct, traced, best = found[DIRECT], found.default(), found.best()
    name = traced.title.removeprefix("fitted, ")
    text = f"**{found.case.title}: {name} {found.verdict(traced)}.** RMSE {_rmse(direct)} by the direct method, {_rmse(traced)} "
    text += f"with the trace; intervals: {_covers(direct)} and {_covers(traced)}."
    return f"{text} The smallest RMSE, seen after the fact: {best.title}, {_rmse(best)}, {_covers(best)}."


def _rmse(score: Score) -> str:
    return number(score.rmse, score.rmse_error)


def _covers(score: Score) -> str:
    """How many intervals hold the truth, if there is one in most repetitions."""
    if 2 * score.given < len(score.errors):
        return "none given" if not score.given else f"given in {score.given} of {len(score.errors)} repetitions"
    return f"{percent(round(score.coverage[0], 2))} covered"


def _section(found: Measured) -> Section:
    right = "its model cannot be right" if found.case.misspecified else "its model is right"
    lead = f"{tables.about(found)}. Lines are fitted estimates by their trace, over λ; {right}."
    parts: list[Part] = [
        Figure(found.case.title, lead, "evidence"),
        Paragraph("Click a heading to sort."),
        Table([head.replace(" %", "%") for head in tables.HEADS], [_line(score) for score in found.scores], texts=1),
    ]
    return Section(found.case.name, found.case.name.capitalize(), parts)


def _line(score: Score) -> list[Cell]:
    values = (score.title, score.bias, score.rmse, score.coverage[0], score.width, score.passed)
    texts = tables.cells(score)
    return [
        Cell(text.replace(" %", "%") if i else text, value, "" if i else "t", head=not i)
        for i, (text, value) in enumerate(zip(texts, values, strict=True))
    ]


def data(found: Sequence[Measured]) -> dict[str, object]:
    """What the script draws."""
    used = list(dict.fromkeys(score.rule for each in found for score in each.scores if score.rule))
    looks = {rule.title: rule.look for rule in rules() if rule.look is not None}
    styles = {rule: looks.get(rule, i) for i, rule in enumerate(used)}
    return {
        "methods": [{"name": name, "style": style} for name, style in (styles | LEVELS).items()],
        "better": -1,
        "evidence": [_drawn(each, used) for each in found],
    }


def _drawn(found: Measured, used: Sequence[str]) -> dict[str, object]:
    curves = {rule: found.curve(rule) for rule in used}
    levels = {score.title: [score] for score in found.scores if score.title in LEVELS}
    shown = [("rmse", _with_error), ("coverage", lambda score: score.coverage)]
    drawn: dict[str, object] = {"name": found.case.title}
    for key, of in shown:
        lines = []
        for name, scores in (curves | levels).items():
            y, low, high = zip(*map(of, scores), strict=True)
            lam = [score.lam or 0.0 for score in scores]
            lines.append({"method": name, "x": lam, "y": y, "low": low, "high": high, "level": name in levels})
        drawn[key] = lines
    return drawn


def _with_error(score: Score) -> tuple[float, float, float]:
    return score.rmse, score.rmse - score.rmse_error, score.rmse + score.rmse_error
