"""Several target policies from the same logs → one page: their ranks, what separates them, and each one's estimates."""

from __future__ import annotations

from offtrace._shared.number_text import count, percent
from offtrace.logs.comparing import Comparison
from offtrace.reports.html.document import AnyCell, Fact, Figure, Heading, Page, Paragraph, Section, Table, Text
from offtrace.reports.logs import figures
from offtrace.reports.logs.figures import Words, drawable, passed
from offtrace.studies import provenance


def html(comparison: Comparison, command: str | None = None) -> str:
    """The page; `command` is the command line that it came from, if any."""
    versions = provenance.versions("evaluation")
    results = comparison.results
    best = next(iter(results.values()))
    level, seen = percent(best.confidence), best.observed
    return Page(
        kind="values from logs",
        title=f"{len(results)} target policies, ranked from logs",
        eyebrow="Off-policy evaluation",
        question="Which policy is worth most?",
        answer=answer(comparison),
        warnings=list(dict.fromkeys(warning for result in results.values() for warning in result.warnings)),
        beside=[
            Figure(
                "Policies side by side",
                f"Bars are {level} bootstrap intervals over episodes, points estimates.",
                "estimates",
            )
        ],
        facts=[
            Fact("Policies", f"{len(results)}"),
            Fact("Episodes", f"{best.episodes:,}", f"{best.steps:,} steps"),
            Fact("Discount γ", f"{best.gamma:g}"),
            Fact("V(μ), as logged", Words(best).number(seen.estimate)),
        ],
        sections=[_ranks(comparison), *(_estimates(name, comparison) for name in results), _repeat(best.call, command)],
        data={**figures.data(best), "estimates": _drawn(comparison)},
        version=versions["offtrace"],
    ).html()


def answer(comparison: Comparison) -> list[str]:
    """Which is first, whether that is clear, and what each is worth compared with today's policy."""
    (first, best), *_ = comparison.results.items()
    said = [f"{comparison.instead}."] if comparison.instead else []
    if comparison.rows[first].failed:
        said.append("**The logs do not say**: no policy's estimate passes its checks.")
    elif comparison.differences and not comparison.rows[comparison.differences[0].worse].failed:
        d, say = comparison.differences[0], Words(best)
        more = f"{say.number(d.estimate)} {say.interval(d.low, d.high)} more than {d.worse}"
        said.append(
            f"**{first}** comes first, with {more}"
            + ("." if d.clear else ", which is **not clear**: the interval has 0 in it.")
        )
    said += [result.plain(name) for name, result in comparison.results.items()]
    return said


def _drawn(comparison: Comparison) -> dict[str, object]:
    """The estimator of the ranking for each policy, as the figure of estimates has them."""
    rows, best = comparison.rows, next(iter(comparison.results.values()))
    say = Words(best)
    ends = [x for row in rows.values() for x in (row.estimate, row.low, row.high) if abs(x) < float("inf")]
    pad = 0.05 * (max(ends) - min(ends)) or 0.5
    return {
        "rows": [{**say.bar(row), "method": name, "family": "fitted"} for name, row in rows.items()],
        "domain": [min(ends) - pad, max(ends) + pad],
        "percent": f"{100 * best.confidence:g}%",
    }


def _ranks(comparison: Comparison) -> Section:
    lines: list[list[AnyCell]] = []
    for i, (name, row) in enumerate(comparison.rows.items()):
        say, less = Words(comparison.results[name]), ""
        if i < len(comparison.differences):
            d = comparison.differences[i]
            level = "" if d.clear else " ≈"
            less = f"{say.number(d.estimate)} {say.interval(d.low, d.high)}{level}", drawable(d.estimate)
        lines.append([name, *say.value_cells(row), less, (count(row.effective), row.effective), passed(row)])
    heads = ["Policy", "V(π)", "Interval", "V(π) − V(μ)", "More than the next", "Effective episodes", "Checks"]
    title = next(iter(comparison.rows.values())).title
    lead = f"All by {title}, from the same episodes, so that differences are taken episode by episode; ≈: 0 is in the interval."
    return Section("ranks", "Ranking", [Heading("The ranking in numbers"), Paragraph(lead), Table(heads, lines)])


def _estimates(name: str, comparison: Comparison) -> Section:
    result = comparison.results[name]
    key = f"policy-{list(comparison.results).index(name)}"
    return Section(key, name, [Heading(name), Text(repr(result))])


def _repeat(call: str, command: str | None) -> Section:
    return Section("repeat", "Repeat", [Heading("To repeat it"), Text(f"{command}\n\n{call}" if command else call)])
