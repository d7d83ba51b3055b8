"""Views → the page of a study."""

from __future__ import annotations

import json
from html import escape
from typing import Any

import polars as pl

from offtrace._shared.number_text import duration, interval, number, with_interval
from offtrace.reports.html.document import bold, cell, figure, pairs, table, whole
from offtrace.reports.study import statistics
from offtrace.reports.study.views import Views
from offtrace.reports.study.words import age_label, answer, curve, metric, of_ages, scaled, settings


def render(rows: pl.DataFrame, curves: pl.DataFrame, facts: dict[str, Any]) -> str:
    """The page of a study's records."""
    return html(Views(rows, curves, facts))


def html(shown: Views) -> str:
    """The page of what is shown."""
    facts = shown.facts
    return whole(
        kind="study",
        title=str(facts.get("question") or facts.get("name") or "A study"),
        head=_head(shown),
        sections=[part for part in (maker(shown) for maker in SECTIONS) if part],
        data=_data(shown),
        version=str(facts.get("versions", {}).get("offtrace", "")),
    )


def _data(shown: Views) -> dict[str, Any]:
    """What the script draws: the views, with five significant digits."""
    summary = shown.summary
    methods = [
        {"name": m, "style": s} for m, s in zip(summary.methods, statistics.styles(summary.methods), strict=True)
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


def _head(shown: Views) -> str:
    facts, summary = shown.facts, shown.summary
    *said, care = answer(shown)
    direction = "higher is better" if summary.better > 0 else "lower is better"
    environments = len(summary.environments)
    cells = [
        ("Metric", f"{escape(metric(facts))} <small>{direction}</small>"),
        ("Environments", str(environments)),
        ("Traces", str(len(summary.methods))),
        ("Runs", f"{shown.rows:,}"),
        ("Time", duration(facts.get("seconds"))),
    ]
    boxes = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in cells)
    paragraphs = "".join(f"<p>{bold(text)}</p>" for text in said) + f'<p class="care">{escape(care)}</p>'
    return f"""<p class="eyebrow">{escape(str(facts.get("name", "")))}</p>
<h1>{escape(str(facts.get("question") or facts.get("name") or "A study"))}</h1>
<div class="answer" id="answer">{paragraphs}</div>
<dl class="facts">{boxes}</dl>
<noscript><p>The figures are drawn by a script; the tables below hold the numbers.</p></noscript>
<div class="legend" role="group" aria-label="Traces shown in the figures"></div>
"""


def _standing(shown: Views) -> tuple[str, str, str] | None:
    if shown.facts.get("task") == "map" or len(shown.summary.iqm) < 2:
        return None
    return (
        "standing",
        "Standing",
        figure(
            "Which trace is ahead",
            f"Each trace at its own {settings(shown)}. Scores are scaled in each environment: {scaled(shown)}. Bars are 95% "
            "intervals by a stratified bootstrap, which resamples the seeds within each environment.",
            "standing",
            "standing",
        ),
    )


def _learning(shown: Views) -> tuple[str, str, str] | None:
    if not shown.learning:
        return None
    lams = sorted({line.lam for lines in shown.learning.values() for line in lines if line.lam is not None})
    options = '<option value="best">each trace’s best λ</option>'
    options += "".join(f'<option value="{lam:g}">λ = {lam:g}</option>' for lam in lams)
    control = f'<label>Show <select data-control="learning">{options}</select></label>' if len(lams) > 1 else ""
    ages = sorted({line.age for lines in shown.learning.values() for line in lines if line.age is not None})
    if len(ages) > 1:
        options = "".join(f'<option value="{age:.0f}">{age:,.0f}</option>' for age in ages)
        control += f'<label>{escape(age_label(shown.facts))} <select data-control="age">{options}</select></label>'
    at = ", at the tuned α" if "α" in settings(shown) else ""
    lead = f"{curve(shown.facts)} while learning{at}. Bands are 95% intervals of the mean over seeds."
    return "learning", "Learning", figure("How learning goes", lead, "learning", "", control)


def _sweeps(shown: Views) -> tuple[str, str, str] | None:
    if not shown.sweeps:
        return None
    lead = "Each point is at the α that was best for its trace and λ in tuning. Bands are 95% intervals of the mean."
    if "α" not in settings(shown):
        lead = "The mean over seeds and ages, with its 95% interval."
    if shown.facts.get("task") == "map":
        lead = "The mean over MDPs, with its 95% interval."
    return "sweeps", "λ", figure("What λ does", lead, "sweeps")


def _heat(shown: Views) -> tuple[str, str, str] | None:
    if not shown.heat:
        return None
    options = "".join(f'<option value="{i}">{escape(name)}</option>' for i, name in enumerate(shown.heat))
    control = f'<label>Environment <select data-control="heat">{options}</select></label><span class="scale"></span>'
    lead = (
        "The mean over the tuning seeds for every λ and α. All traces share one colour scale, and brighter is better."
    )
    return (
        "step-sizes",
        "Step sizes",
        figure("How sensitive each trace is to its step size", lead, "heat", "small", control),
    )


def _ages(shown: Views) -> tuple[str, str, str] | None:
    if not shown.ages:
        return None
    lead = f"Each trace at its {settings(shown)}. {of_ages(shown)} Bands are 95% intervals"
    body = ""
    if shown.aged:
        over = f"{lead} by a stratified bootstrap. Scores are scaled as above: {scaled(shown)}, at all ages alike."
        body = figure("How the answer changes with the age of the data", over, "aged", "standing") + _aged_table(shown)
        lead = "The same in each environment, not scaled. Bands are 95% intervals"
    return "ages", "Age", body + figure("How far old data can be used", f"{lead} of the mean over seeds.", "ages")


def _aged_table(shown: Views) -> str:
    """Traces down, ages across: interquartile means, differences to the reference, and how much these grow."""
    reference = shown.summary.reference
    rows = {(row["method"], row["age"]): row for row in shown.at_each_age.iter_rows(named=True)}
    grown = {row["method"]: row for row in shown.changes.iter_rows(named=True)}
    ages, lines = sorted({age for _, age in rows}), []
    for method in shown.summary.methods:
        line = [cell(method, method, "t", tag="th")]
        for age in ages:
            row = rows.get((method, age), {})
            line.append(_estimate(row, "iqm", "low", "high"))
            line += (
                [_estimate(row, *(f"difference{end}" for end in ("", "_low", "_high")), signed=True)]
                if reference
                else []
            )
        line += [_estimate(grown.get(method, {}), "change", "low", "high", signed=True)] if grown else []
        lines.append(line)
    heads = [head for age in ages for head in (f"{age:,.0f}", *([f"to {reference}"] if reference else []))]
    heads += ["grows by"] if grown else []
    lead = f"Interquartile means by {age_label(shown.facts)}"
    lead += f", and differences to {reference}: bold where the 95% interval leaves out 0" if reference else ""
    lead += ". The last column is how much that difference grows from the youngest to the oldest data" if grown else ""
    return f'<p class="lead">{escape(lead)}.</p>' + table(["Trace", *heads], lines, first="t")


def _estimate(row: dict[str, Any], name: str, low: str, high: str, *, signed: bool = False) -> str:
    """`0.93 [0.91, 0.95]`, the interval in small; if signed, `+0.12`, and bold where the interval leaves out 0."""
    value = row.get(name)
    if value is None:
        return cell("–")
    text = with_interval(value, row[low], row[high])
    text = f"+{text}" if signed and value > 0 else text
    text = text.replace(" [", "<small>[").replace("]", "]</small>")
    return cell(f"<b>{text}</b>" if signed and (row[low] > 0 or row[high] < 0) else text, value, raw=True)


def _tradeoff(shown: Views) -> tuple[str, str, str] | None:
    if not shown.tradeoff:
        return None
    lead = (
        "Each point is a λ, each line a trace from small to large markers as λ grows. Left is faster, down is quieter: "
        "the lower left corner is best. The contraction is the middle of its guaranteed interval, averaged over MDPs."
    )
    return "tradeoff", "Contraction and variance", figure("What contraction costs in variance", lead, "tradeoff")


def _tables(shown: Views) -> tuple[str, str, str]:
    body = f"<h2>{escape(metric(shown.facts))} in numbers</h2>"
    if shown.tradeoff and shown.facts.get("task") == "map":
        body += (
            '<p class="lead">Means over MDPs. Unbeaten: no other unbiased setting is better in both. Click a heading to sort.</p>'
            + _map_table(shown)
        )
    else:
        body += (
            '<p class="lead">Each trace at its best λ. <b>★</b> marks the best mean of an environment, <b>≈</b> those whose '
            "95% interval overlaps its interval. Click a heading to sort.</p>" + _pivot(shown)
        )
        body += f"<details><summary>Every λ ({len(shown.summary.table)} rows)</summary>{_long(shown)}</details>"
    return "numbers", "Numbers", body


def _pivot(shown: Views) -> str:
    """Traces down, environments across."""
    names = shown.summary.environments
    cells = {(row["method"], row["environment"]): row for row in shown.at_best().iter_rows(named=True)}
    scores = {row["method"]: row for row in shown.summary.iqm.iter_rows(named=True)}
    lines = []
    for method in shown.summary.methods:
        score = scores.get(method)
        line = [cell(method, method, "t", tag="th")]
        line += [_mean(cells[method, name], settings=True) if (method, name) in cells else cell("–") for name in names]
        text = with_interval(score["iqm"], score["low"], score["high"]) if score else "–"
        text = text.replace(" [", "<small>[").replace("]", "]</small>")
        lines.append([*line, cell(text, score["iqm"] if score else None, raw=True)])
    return table(["Trace", *names, "Interquartile mean"], lines, first="t")


def _long(shown: Views) -> str:
    """One line for each environment, trace and λ."""
    lines = [
        [
            cell(row["environment"], row["environment"], "t"),
            cell(row["method"], row["method"], "t"),
            cell("–" if row["lam"] is None else f"{row['lam']:g}", row["lam"]),
            cell("–" if row["alpha"] is None else f"{row['alpha']:g}", row["alpha"]),
            _mean(row),
            cell(interval(row["low"], row["high"]), row["low"]),
            cell(str(row["n"]), row["n"]),
            cell("tuned" if row["best_lam"] else "", int(row["best_lam"])),
        ]
        for row in shown.summary.table.iter_rows(named=True)
    ]
    heads = ["Environment", "Trace", "λ", "α", "Mean", "95% interval", "Seeds", "λ chosen"]
    return table(heads, lines, first="tt")


def _map_table(shown: Views) -> str:
    lines = []
    for environment, clouds in shown.tradeoff.items():
        front = set(shown.front(environment))
        for cloud in clouds:
            for lam, lower, upper, y, bias in zip(
                cloud.lam, cloud.lower, cloud.upper, cloud.y, cloud.bias, strict=True
            ):
                middle = None if lower is None or upper is None else (lower + upper) / 2
                lines.append(
                    [
                        cell(environment, environment, "t"),
                        cell(cloud.method, cloud.method, "t"),
                        cell("–" if lam is None else f"{lam:g}", lam),
                        cell(number(middle), middle),
                        cell(number(y), y),
                        cell(number(bias), bias),
                        cell("yes" if (cloud.method, lam) in front else "", int((cloud.method, lam) in front)),
                    ]
                )
    return table(["Environment", "Trace", "λ", "Contraction", "Variance", "Bias", "Unbeaten"], lines, first="tt")


def _run(shown: Views) -> tuple[str, str, str]:
    facts = shown.facts
    about = {"Study": facts.get("name"), "Task": facts.get("task"), "Machine": facts.get("machine")}
    about |= {"Time": duration(facts.get("seconds")), "Environments": " · ".join(shown.declared)}
    about |= {str(name).capitalize(): value for name, value in dict(facts.get("counts") or {}).items()}
    versions = dict(facts.get("versions") or {})
    if made := (facts.get("code") or {}).get("commit"):
        versions["commit"] = made[:12]
    said = f'<p class="lead">{escape(str(facts["about"]))}</p>' if facts.get("about") else ""
    body = f'<h2>What was run</h2>{said}<div class="run">{pairs(about)}{pairs(versions)}</div>'
    problems = [f"<li>{escape(str(problem))}</li>" for problem in facts.get("problems") or ()]
    body += (
        f'<p class="note">Not read, and so not on this page:</p><ul class="note">{"".join(problems)}</ul>'
        if problems
        else ""
    )
    if words := (facts.get("code") or {}).get("words"):
        body += (
            f'<p class="note">The rows were made by other code than that which wrote this page: {escape(words)}.</p>'
        )
    declaration = facts.get("declaration")
    if declaration:
        text = (
            declaration
            if isinstance(declaration, str)
            else json.dumps(declaration, indent=2, ensure_ascii=False, default=str)
        )
        body += f'<details><summary>The declaration</summary><pre tabindex="0">{escape(text)}</pre></details>'
    body += (
        '<p class="note">Intervals of means are Student’s t. Interquartile means are scipy’s <code>trim_mean</code> by a quarter '
        "at both ends of all runs of a trace. The probability of improvement is P(X better than Y) + ½ P(equal) for two runs of "
        "one environment, averaged over environments. Both as in Agarwal et al. (2021), with scipy’s <code>bootstrap</code>.</p>"
    )
    return "run", "Run", body


SECTIONS = (_standing, _tradeoff, _ages, _learning, _sweeps, _heat, _tables, _run)


def _mean(row: dict[str, Any], *, settings: bool = False) -> str:
    """`1273 ± 19`, and in small the λ and α it was found with."""
    if row["failed"]:
        return cell(f"failed <small>{row['failed']} of {row['n']}</small>", raw=True)
    half = (row["high"] - row["low"]) / 2
    text = number(row["mean"], half) + (f" ± {number(half, half)}" if half == half else "")
    if settings:
        at = [f"{name} {row[key]:g}" for name, key in (("λ", "lam"), ("α", "alpha")) if row[key] is not None]
        text += f"<small>{', '.join(at)}</small>"
    return cell(text, row["mean"], row["mark"], raw=True)
