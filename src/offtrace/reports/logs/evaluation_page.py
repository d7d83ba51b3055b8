"""The result of an evaluation from logs → one page: the answer, what to mind, estimates side by side, and what they rest on."""

from __future__ import annotations

import numpy as np

from offtrace._shared.number_text import count, counted, listed, number, percent
from offtrace.logs.description import describe
from offtrace.logs.registry import ESTIMATORS, NEEDS
from offtrace.logs.result import RULE, Result, Row
from offtrace.reports.html.document import (
    AnyCell,
    Cell,
    Fact,
    Figure,
    Folded,
    Heading,
    Page,
    Pairs,
    Paragraph,
    Part,
    Section,
    Table,
    Text,
)
from offtrace.reports.logs.figures import Words, data, drawable, passed
from offtrace.studies import provenance

ACTIONS = 50  # are listed


def html(result: Result, command: str | None = None) -> str:
    """The page; `command` is the command line that it came from, if any."""
    versions, drawn, d = provenance.versions("evaluation"), data(result), result.diagnosis
    empty = {
        _overlap: not d.overlap,
        _parts: not result.parts(),
    }
    sections = [make(result) for make in SECTIONS if not empty.get(make)]
    weighed = Fact("Effective episodes", count(result.headline.effective), f"of {result.episodes:,}")
    return Page(
        kind="values from logs",
        title=f"V(π) ≈ {Words(result).number(result.value)}: what the target policy is worth",
        eyebrow="Off-policy evaluation",
        question="What is the target policy worth?",
        answer=answer(result),
        warnings=[_sentence(text) for text in result.warnings if text not in _said_above(result)],
        beside=[_side_by_side(result)],
        facts=[
            Fact("Episodes", f"{result.episodes:,}", f"{result.steps:,} steps"),
            Fact("Discount γ", f"{result.gamma:g}"),
            Fact("Behaviour policy μ", "estimated" if result.mu_estimated else result.behavior),
            Fact("V(μ), as logged", Words(result).number(result.observed.estimate)),
            weighed,
        ],
        sections=[*sections, _repeat(result, command, versions)],
        data=drawn,
        version=versions["offtrace"],
    ).html()


# --- the head ---------------------------------------------------------------------------------------------------------


def answer(result: Result) -> list[str]:
    """The headline, V(μ), and whether the other estimators agree."""
    first = result.headline
    others = [row for row in result.estimates if row is not first]
    level, say, seen = percent(result.confidence), Words(result), result.observed
    said = [result.plain()]
    said.append(f"**V(π) ≈ {say.number(first.estimate)}** by {first.title.replace('fitted, ', 'fitted values with ')}")
    if not np.isnan(first.low):
        said[1] += f"; {level} bootstrap interval {say.interval(first.low, first.high)}"
    said[1] += "."
    if result.instead:
        said.insert(0, f"{result.instead}.")
    said += [_sentence(note) for note in result.notes]
    observed = (
        f"The policy that made the logs got V(μ) = {say.number(seen.estimate)} {say.interval(seen.low, seen.high)}"
    )
    if not np.isnan(first.gain_low):
        observed += f", so that V(π) − V(μ) = {say.number(first.gain)} {say.interval(first.gain_low, first.gain_high)}"
    if seen.beyond:
        observed += f"; {percent(seen.beyond)} of V(μ) lies beyond the cut of episodes, and is a model’s"
    said.append(f"{observed}.")
    if result.logs.report is not None and result.logs.report.loss:
        said.append(f"**{_sentence(result.logs.report.loss)}**")
    known = [row for row in others if row.low < row.high and not row.failed]
    apart = [row for row in known if row.high < first.low or row.low > first.high]
    if known and first.low < first.high:
        names = listed([f"{row.title} {say.interval(row.low, row.high)}" for row in apart])
        all_of = f"all {len(known)} other estimators"
        if len(known) < len(others):
            all_of = f"the other estimators that pass their checks ({len(known)} of {len(others)})"
        agree = f"The intervals of {all_of} overlap that of the first."
        said.append(f"It is **not what all estimators say**: {names} {_lie(apart)} apart from it." if apart else agree)
    return said


def _said_above(result: Result) -> list[str]:
    """Warnings that the answer says already."""
    report = result.logs.report
    return [] if report is None else [report.loss]


def _lie(rows: list[Row]) -> str:
    return "lies" if len(rows) == 1 else "lie"


def _sentence(text: str) -> str:
    first = text[0].upper() if text[0].isascii() else text[0]  # μ stays μ
    return f"{first}{text[1:]}."


# --- sections ---------------------------------------------------------------------------------------------------------


def _side_by_side(result: Result) -> Figure:
    """The estimates with their intervals, for the head of the page."""
    lead = f"Bars are {percent(result.confidence)} bootstrap intervals over episodes, points the estimates."
    if not any(np.isfinite(row.high - row.low) for row in result.estimates):
        lead = "Points are the estimates. None has an interval, and the checks below say why."
    return Figure("Estimates side by side", f"{lead} An arrow marks what lies outside the axis.", "estimates")


def _estimates(result: Result) -> Section:
    level, bounds, say = percent(result.confidence), result.conservative, Words(result)
    lines: list[list[AnyCell]] = []
    for row in result.estimates:
        error, effective = (say.number(row.standard_error), row.standard_error), (count(row.effective), row.effective)
        largest = percent(row.largest), row.largest
        value, *intervals = say.value_cells(row)
        lines.append([row.title, value, error, *intervals, effective, largest, passed(row)])
    heads = ["Estimator", "V(π)", "Error", f"{level} bootstrap", "V(π) − V(μ)", "Effective episodes", "Largest share"]
    parts: list[Part] = [Heading("The estimates in numbers"), Paragraph("Click a heading to sort.")]
    parts.append(Table([*heads, "Checks"], lines))
    if bounds is not None:
        kind = "would be the guaranteed one, were μ known" if result.mu_estimated else "needs no large sample"
        why = f": {bounds.empty}" if bounds.empty else ""
        said = f"The conservative {level} interval, which {kind}, is {say.conservative(bounds)}{why}."
        parts.append(Paragraph(f"{said} It takes for given: {bounds.assumes}.", "note"))
    parts += [Paragraph(RESTS, "note"), Folded("What each estimator computes", _equations(result))]
    return Section("estimates", "Estimates", parts)


def _checks(result: Result) -> Section:
    """Every check of every estimator, those that failed first."""
    lines: list[list[AnyCell]] = []
    for row in result.estimates:
        name = row.title + (" (headline)" if row is result.headline else "")
        for check in sorted(row.checks, key=lambda each: not each.failed):
            verdict = "✗" if check.failed else "✓", int(not check.failed)
            lines.append([name, check.kind, verdict, Cell(check.words, check.words, "t words")])
    lead = f"Each estimator is looked at for its own kinds of failure. By a stated rule, {RULE}."
    table = Table(["Estimator", "Check", "Passed", "Found"], lines, texts=2)
    return Section("checks", "Checks", [Heading("What can go wrong, and what the checks say"), Paragraph(lead), table])


def _equations(result: Result) -> Table:
    """The entries of the registry that this page shows."""
    entries = [(row.title, ESTIMATORS[row.estimator]) for row in result.estimates]
    lines = [[title, e.equation, listed([NEEDS[need] for need in e.needs]) or "no μ"] for title, e in entries]
    return Table(["Estimator", "V(π)", "Needs"], lines, texts=3)


RESTS = (
    "An estimate is the mean of what its episodes contribute; its error is the standard error of that mean. Its effective "
    "episodes are (Σ|d|)² / Σd², where d is an episode’s contribution less the estimate; the largest share is that of one "
    "episode in Σ|d|."
)


def _weights(result: Result) -> Section:
    d, title = result.diagnosis, "What the episodes weigh"
    if d.weights is None:
        said = "Not known, since μ is not: no estimator here uses weights."
        return Section("weights", "Weights", [Heading(title), Paragraph(said)])
    lead = (
        f"An episode weighs W = ∏ π(a|s) / μ(a|s). The {result.episodes:,} of these logs are worth {d.effective:,.1f} of the "
        f"target policy’s own, (ΣW)² / ΣW² effective episodes; the heaviest has {percent(d.largest)} of ΣW. The mean of W is "
        f"{number(d.mean_weight)}, and would be 1 with enough data."
    )
    return Section("weights", "Weights", [Figure(title, lead, "weights", "standing")])


def _leaving(result: Result) -> Section:
    """How much of what the target does was never logged, and which pairs that matter most."""
    share, logs = result.diagnosis.outside, result.logs
    where = "in that state" if logs.tabular else "anywhere (states are features: whether there, is not known)"
    said = f"{percent(share)} of what the target policy does at logged states was never logged {where}."
    if logs.continuous:
        said = f"{percent(share)} of what the target policy does at logged states lies outside the range of logged actions."
    if share and (target := describe(logs, result.policy).target) is not None and target.unseen:
        said += f" Of that the data say nothing. {target.unseen:,} of the {target.pairs:,} pairs (s, a) that it takes never occur"
        said += f": {', '.join(target.first_unseen)}{' …' * (target.unseen > len(target.first_unseen))}."
    return Section("leaving", "Support", [Heading("Where the target policy leaves the data"), Paragraph(said)])


def _overlap(result: Result) -> Section:
    """How often each action was logged, and how often the target policy takes it."""
    lead = (
        "How often each action was logged, and how often the target policy takes it in the logged states. An action that it "
        "takes often and the logs rarely have is where an answer is weak; effective steps are (Σρ)² / Σρ² with ρ = π/μ."
    )
    actions = sorted(result.diagnosis.overlap, key=lambda each: -each.target)
    lines = [
        [
            Cell(str(each.action), each.action, "t", head=True),
            (f"{each.steps:,}", each.steps),
            (percent(each.logged), each.logged),
            (percent(each.target), each.target),
            (count(each.effective), each.effective),
        ]
        for each in actions[:ACTIONS]
    ]
    heads = ["Action", "Steps logged", "Share of steps", "Share under π", "Effective steps"]
    parts: list[Part] = [Heading("Overlap, action by action"), Paragraph(lead), Table(heads, lines)]
    if len(actions) > ACTIONS:
        rest = percent(sum(each.target for each in actions[ACTIONS:]))
        parts.append(
            Paragraph(f"The target policy takes {len(actions) - ACTIONS:,} more in {rest} of the steps.", "note")
        )
    return Section("overlap", "Overlap", parts)


def _parts(result: Result) -> Section:
    """Segments and other discounts."""
    say = Words(result)
    lines: list[list[AnyCell]] = []
    for part in result.parts():
        name = part["part"]
        if "estimate" not in part:
            lines.append([name, *["–"] * 5, Cell(part["failed"], 1, "t words")])
            continue
        row = result.segments.get(part["part"])
        level = say if row is None or isinstance(row, str) else Words(row)
        lines.append(
            [
                name,
                (f"{part['episodes']:,}", part["episodes"]),
                (level.number(part["estimate"]), drawable(part["estimate"])),
                (level.interval(part["low"], part["high"]), drawable(part["low"])),
                (level.interval(part["difference_low"], part["difference_high"]), drawable(part["difference"])),
                (count(part["effective_episodes"]), part["effective_episodes"]),
                Cell(f"✗ {part['failed']}" if part["failed"] else "✓", int(bool(part["failed"])), "t words"),
            ]
        )
    heads = ["Part", "Episodes", "V(π)", percent(result.confidence), "V(π) − V(μ)", "Effective episodes", "Checks"]
    lead = (
        f"Each segment is evaluated from its own episodes, each discount from all. Of {len(lines)} intervals of "
        f"{percent(result.confidence)} some may miss by chance."
    )
    return Section("parts", "Parts", [Heading("Segments and other discounts"), Paragraph(lead), Table(heads, lines)])


def _read(result: Result) -> Section:
    d = describe(result.logs)
    low, middle, high = d.lengths
    least, mean, most = d.rewards
    about = {
        "Source": None if d.report is None else d.report.source,
        "Episodes": d.episodes,
        "Steps": d.steps,
        "Lengths": f"{low:,} to {high:,}, median {middle:,g}",
        "Ended": f"{percent(d.terminated)} terminated, {percent(1 - d.terminated)} truncated",
        "Dropped": None
        if d.report is None
        else f"{counted(d.report.dropped, 'episode')}, {counted(d.report.dropped_rows, 'row')}",
    }
    more = {
        "States": f"{d.states_seen:,} of {d.states:,} occur" if d.states else f"{d.states_seen} features",
        "Actions": f"{d.actions_seen:,} of {d.actions:,} occur"
        if d.actions
        else counted(d.actions_seen, "real number"),
        "Order of states": d.state_order or None,
        "Order of actions": d.action_order or None,
        "Rewards": f"{least:.4g} to {most:.4g}, mean {mean:.4g}".replace("-", "−"),
        "μ": result.behavior + (", from these very data" if result.mu_estimated else ""),
        "μ(a|s)": "not known" if d.mu is None else f"least {d.mu[0]:.3g}, median {d.mu[1]:.3g}",
    }
    parts: list[Part] = [Heading("What was read"), Pairs([about, more])]
    if d.report is not None:
        parts.append(Folded("The report of reading", Text(str(d.report))))
    return Section("read", "Data", parts)


def _repeat(result: Result, command: str | None, versions: dict[str, str]) -> Section:
    call = f"{command}\n\n{result.call}" if command else result.call
    about = {"Trace": repr(result.trace), "Sweeps": result.sweeps, "Machine": provenance.machine()}
    return Section("repeat", "Repeat", [Heading("To repeat it"), Text(call), Pairs([about, versions], "after")])


SECTIONS = (_estimates, _parts, _checks, _weights, _overlap, _leaving, _read)
