"""The result of an evaluation from logs → one page: the answer, what to mind, estimates side by side, and what they rest on."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from offtrace._shared.number_text import count, listed, number, percent
from offtrace.logs.description import describe
from offtrace.logs.result import Result, Row
from offtrace.logs.warnings_of_result import gaps_of
from offtrace.reports.html.document import bold, cell, figure, pairs, table, whole
from offtrace.reports.logs.figures import Words, data, drawable
from offtrace.studies import provenance

TITLE = "What is the target policy worth?"
GAPS = 50  # are listed


def html(result: Result, command: str | None = None) -> str:
    """The page; `command` is the command line that it came from, if any."""
    versions, drawn = provenance.versions("evaluation"), data(result)
    sections = [maker(result) for maker in SECTIONS if maker is not _credit or drawn["credit"]]
    return whole(
        kind="values from logs",
        title=f"V(π) ≈ {Words(result).number(result.value)}: what the target policy is worth",
        head=_head(result),
        sections=[*sections, _repeat(result, command, versions)],
        data=drawn,
        version=versions["offtrace"],
    )


# --- the head ---------------------------------------------------------------------------------------------------------


def _head(result: Result) -> str:
    d = result.diagnosis
    weighed = "need μ" if d.weights is None else f"{d.effective:,.1f} <small>of {result.episodes:,} episodes</small>"
    cells = [
        ("Episodes", f"{result.episodes:,} <small>{result.steps:,} steps</small>"),
        ("Discount γ", f"{result.gamma:g}"),
        ("Behaviour policy μ", "estimated" if result.mu_estimated else escape(result.behavior)),
        ("Weights are worth", weighed),
        ("Effective horizon", f"{number(d.trace.horizon)} steps <small>{escape(result.trace.title)}</small>"),
    ]
    boxes = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in cells)
    paragraphs = "".join(f"<p>{bold(text)}</p>" for text in _answer(result))
    return f"""<p class="eyebrow">Off-policy evaluation</p>
<h1>{TITLE}</h1>
<div class="answer" id="answer">{paragraphs}</div>
{_warnings(result)}
<dl class="facts">{boxes}</dl>
<noscript><p>The figures are drawn by a script; the tables below hold the numbers.</p></noscript>
"""


def _answer(result: Result) -> list[str]:
    """The first estimate, what the conservative interval says, and whether the others agree."""
    first, *others = result.estimates
    level, say = percent(result.confidence), Words(result)
    said = [f"**V(π) ≈ {say.number(first.estimate)}** by {first.title.replace('fitted, ', 'fitted values with ')}"]
    if not np.isnan(first.low):
        said[0] += f"; {level} bootstrap interval {say.interval(first.low, first.high)}"
    said[0] += "."
    if (c := result.conservative) is not None:
        kind = "would be the guaranteed one, were μ known" if result.mu_estimated else "needs no large sample"
        why = f": {c.empty}" if c.empty else ""
        said.append(f"The conservative {level} interval, which {kind}, is {say.conservative(c)}{why}.")
    known = [row for row in others if row.low < row.high]  # a point says nothing
    apart = [row for row in known if row.high < first.low or row.low > first.high]
    if known and first.low < first.high:
        names = listed([f"{row.title} {say.interval(row.low, row.high)}" for row in apart])
        all_of = f"all {len(known)} other estimators"
        if len(known) < len(others):
            all_of = f"the other estimators that have one ({len(known)} of {len(others)})"
        agree = f"The intervals of {all_of} overlap that of the first."
        said.append(f"It is **not what all estimators say**: {names} {_lie(apart)} apart from it." if apart else agree)
    return said


def _lie(rows: list[Row]) -> str:
    return "lies" if len(rows) == 1 else "lie"


def _warnings(result: Result) -> str:
    if not result.warnings:
        return ""
    items = "".join(f"<li>{escape(_sentence(text))}</li>" for text in result.warnings)
    return f'<aside class="warnings"><h2>Before relying on it</h2><ul>{items}</ul></aside>'


def _sentence(text: str) -> str:
    first = text[0].upper() if text[0].isascii() else text[0]  # μ stays μ
    return f"{first}{text[1:]}."


# --- sections ---------------------------------------------------------------------------------------------------------


def _estimates(result: Result) -> tuple[str, str, str]:
    level, bounds, say = percent(result.confidence), result.conservative, Words(result)
    lead = f"Bars are {level} bootstrap intervals over episodes, points the estimates"
    lead += "" if bounds is None or bounds.empty else "; shaded is the conservative interval, the same for all"
    lines = [
        [
            cell(row.title, row.title, "t", tag="th"),
            cell(say.number(row.estimate), drawable(row.estimate)),
            cell(say.number(row.standard_error), row.standard_error),
            cell(say.interval(row.low, row.high), drawable(row.low)),
            cell("–" if bounds is None else say.conservative(bounds)),
            cell(count(row.effective), row.effective),
            cell(percent(row.largest), row.largest),
        ]
        for row in result.estimates
    ]
    heads = ["Estimator", "V(π)", "Error", f"{level} bootstrap", f"{level} conservative"]
    body = figure("Estimates side by side", f"{lead}. An arrow stands where one leaves the axis.", "estimates")
    body += '<p class="lead">Click a heading to sort.</p>'
    body += table([*heads, "Rests on", "Largest share"], lines, first="t")
    if bounds is not None:
        body += f'<p class="note">The conservative interval takes for given: {escape(bounds.assumes)}.</p>'
    body += (
        '<p class="note">An estimate is the mean of what its episodes contribute; its error is the standard error of that mean. '
        "It rests on (Σ|d|)² / Σd² of them, where d is an episode’s contribution less the estimate; the largest share is that of "
        "one episode in Σ|d|.</p>"
    )
    return "estimates", "Estimates", body


def _weights(result: Result) -> tuple[str, str, str]:
    d = result.diagnosis
    if d.weights is None:
        said = "Not known, since μ is not: no estimator here uses weights."
        return "weights", "Weights", f'<h2>What the episodes weigh</h2><p class="lead">{said}</p>'
    lead = (
        f"An episode weighs W = ∏ π(a|s) / μ(a|s). The {result.episodes:,} of these logs are worth {d.effective:,.1f} of the "
        f"target policy’s own, (ΣW)² / ΣW²; the heaviest has {percent(d.largest)} of ΣW. The mean of W is "
        f"{number(d.mean_weight)}, and would be 1 with enough data."
    )
    return "weights", "Weights", figure("What the episodes weigh", lead, "weights", "standing")


def _credit(result: Result) -> tuple[str, str, str]:
    t = result.diagnosis.trace
    lead = (
        f"{result.trace.title} has an effective horizon of {number(t.horizon)} steps: the mean lag of its credit, weighted by "
        f"γ^t β_t, plus one. {percent(t.cut)} of its traces are cut before their episode ends; the largest β is "
        f"{number(t.largest)}. The curve shows how much of all credit comes from the first n steps; that of β = 1 is what γ and "
        "the ends of episodes leave."
    )
    return "horizon", "Horizon", figure("How far credit reaches", lead, "credit")


def _leaving(result: Result) -> tuple[str, str, str]:
    gaps, share = gaps_of(result.logs, result.policy), result.diagnosis.support.share
    body = "<h2>Where the target policy leaves the data</h2>"
    if not gaps:
        what = "in every logged state it takes only actions that were logged there" if result.logs.tabular else ""
        what = what or "it takes only actions that occur in the logs (states are features: whether there, is not known)"
        return "leaving", "Support", f'{body}<p class="lead">Nowhere: {what}.</p>'
    there = "in that state" if result.logs.tabular else "anywhere"
    body += (
        f'<p class="lead">{percent(share)} of what the target policy does at logged states was never logged {there}. Of that the '
        "data say nothing. What matters most comes first: the share of all steps at which the target policy would do so.</p>"
    )
    lines = []
    for gap in gaps[:GAPS]:
        state = [] if gap.state is None else [cell(str(gap.state), gap.state, "t", tag="th")]
        known = [cell(str(gap.action), gap.action, "t"), cell(number(gap.probability), gap.probability)]
        lines.append([*state, *known, cell(f"{gap.visits:,}", gap.visits), cell(percent(gap.share), gap.share)])
    heads = ["State", "Action", "π(a|s)", "Steps in the state", "Share of all steps"]
    heads = heads if result.logs.tabular else ["Action", "mean π(a|s)", "Steps", "Share of all steps"]
    body += table(heads, lines, first="tt" if result.logs.tabular else "t")
    if len(gaps) > GAPS:
        rest = sum(gap.share for gap in gaps[GAPS:])
        body += f'<p class="note">{len(gaps) - GAPS:,} more have {percent(rest)} together.</p>'
    return "leaving", "Support", body


def _read(result: Result) -> tuple[str, str, str]:
    d = describe(result.logs)
    low, middle, high = d.lengths
    least, mean, most = d.rewards
    seen = f"{d.states_seen:,} of {d.states:,} occur" if d.states else f"{d.states_seen} features"
    about: dict[str, Any] = {
        "Source": None if d.report is None else d.report.source,
        "Episodes": d.episodes,
        "Steps": d.steps,
        "Lengths": f"{low:,} to {high:,}, median {middle:,g}",
        "Ended": f"{percent(d.terminated)} terminated, {percent(1 - d.terminated)} truncated",
        "Dropped": None if d.report is None else f"{d.report.dropped:,} episodes, {d.report.dropped_rows:,} rows",
    }
    more: dict[str, Any] = {
        "States": seen,
        "Actions": f"{d.actions_seen:,} of {d.actions:,} occur",
        "Rewards": f"{least:.4g} to {most:.4g}, mean {mean:.4g}".replace("-", "−"),
        "μ": result.behavior + (", from these very data" if result.mu_estimated else ""),
        "μ(a|s)": "not known" if d.mu is None else f"least {d.mu[0]:.3g}, median {d.mu[1]:.3g}",
    }
    body = f'<h2>What was read</h2><div class="run">{pairs(about)}{pairs(more)}</div>'
    if d.report is not None:
        body += f'<details><summary>The report of reading</summary><pre tabindex="0">{escape(str(d.report))}</pre></details>'
    return "read", "Data", body


def _repeat(result: Result, command: str | None, versions: dict[str, str]) -> tuple[str, str, str]:
    call = f"{command}\n\n{result.call}" if command else result.call
    about = {"Trace": repr(result.trace), "Sweeps": result.sweeps, "Machine": provenance.machine()}
    body = f'<h2>To repeat it</h2><pre tabindex="0">{escape(call)}</pre>'
    return "repeat", "Repeat", f'{body}<div class="run after">{pairs(about)}{pairs(versions)}</div>'


SECTIONS = (_estimates, _weights, _credit, _leaving, _read)
