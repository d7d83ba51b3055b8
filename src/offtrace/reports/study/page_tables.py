"""Views → the tables of a study's page."""

from __future__ import annotations

from collections.abc import Collection

from offtrace._shared.number_text import interval, number, with_interval
from offtrace.reports.html.document import AnyCell, Cell, Paragraph, Part, Table
from offtrace.reports.study.views import Row, Views, mean_and_half
from offtrace.reports.study.words import age_label

NONE = "–"


def aged(shown: Views) -> list[Part]:
    """Traces down, ages across: interquartile means, and what they are less that of the baseline."""
    baseline = shown.summary.baseline
    rows = {(row["method"], row["age"]): row for row in shown.at_each_age.iter_rows(named=True)}
    ages = sorted({age for _, age in rows})
    lines: list[list[AnyCell]] = []
    for method in shown.summary.methods:
        line: list[AnyCell] = [method]
        for age in ages:
            row = rows.get((method, age), {})
            line.append(_estimate(row, "iqm", "low", "high"))
            line.append(_estimate(row, "difference", "difference_low", "difference_high", signed=True))
        lines.append(line)
    heads = [head for age in ages for head in (f"{age:,.0f}", f"to {baseline}")]
    lead = (
        f"Interquartile means by {age_label(shown.facts)}, and differences to {baseline}: bold where the 95% interval "
    )
    return [Paragraph(f"{lead}leaves out 0."), Table(["Trace", *heads], lines)]


def by_environment(shown: Views) -> Table:
    """Traces down, environments across; each trace at its best λ."""
    scores = {row["method"]: row for row in shown.summary.iqm.iter_rows(named=True)}
    edges = {(r["method"], r["environment"], r["lam"]) for r in shown.edges().filter("edge").iter_rows(named=True)}
    means = shown.cells(lambda row: _mean(row, settings=True, edges=edges), NONE)
    lines = [[name, *cells, _estimate(scores.get(name, {}), "iqm", "low", "high")] for name, cells in means.items()]
    return Table(["Trace", *shown.summary.environments, "Interquartile mean"], lines)


def every_lambda(shown: Views) -> Table:
    """One line for each environment, trace and λ."""
    lines = [
        [
            row["environment"],
            row["method"],
            _parameter(row["lam"]),
            _parameter(row["alpha"]),
            _mean(row),
            (interval(row["low"], row["high"]), row["low"]),
            (str(row["n"]), row["n"]),
            ("tuned" if row["best_lam"] else "", int(row["best_lam"])),
        ]
        for row in shown.summary.table.iter_rows(named=True)
    ]
    heads = ["Environment", "Trace", "λ", "α", "Mean", "95% interval", "Seeds", "λ chosen"]
    return Table(heads, lines, texts=2)


def of_map(shown: Views) -> Table:
    """One line for each environment, trace and λ of a map: contraction, variance and bias."""
    lines: list[list[AnyCell]] = []
    for environment, clouds in shown.tradeoff.items():
        front = set(shown.front(environment))
        for cloud in clouds:
            points = zip(cloud.lam, cloud.lower, cloud.upper, cloud.y, cloud.bias, strict=True)
            for lam, lower, upper, y, bias in points:
                middle = None if lower is None or upper is None else (lower + upper) / 2
                unbeaten = (cloud.method, lam) in front
                numbers = [(number(x), x) for x in (middle, y, bias)]
                last = "yes" if unbeaten else "", int(unbeaten)
                lines.append([environment, cloud.method, _parameter(lam), *numbers, last])
    return Table(["Environment", "Trace", "λ", "Contraction", "Variance", "Bias", "Unbeaten"], lines, texts=2)


def _parameter(x: float | None) -> tuple[str, object]:
    return NONE if x is None else f"{x:g}", x


def _estimate(row: Row, name: str, low: str, high: str, *, signed: bool = False) -> Cell | str:
    """`0.93 [0.91, 0.95]`, the interval in small letters. A difference has its sign, and is bold if its interval leaves out 0."""
    value = row.get(name)
    if value is None:
        return NONE
    text, _, ends = with_interval(value, row[low], row[high]).partition(" ")
    apart = signed and (row[low] > 0 or row[high] < 0)
    return Cell("+" * (signed and value > 0) + text, value, small=ends, strong=apart)


def _mean(row: Row, *, settings: bool = False, edges: Collection[tuple[str, str, float | None]] = ()) -> AnyCell:
    """`1273 ± 19`, and in small letters its λ and α."""
    if row["failed"]:
        return Cell("failed ", small=f"{row['failed']} of {row['n']}")
    mean, half = mean_and_half(row)
    text = mean if half == NONE else f"{mean} ± {half}"
    at = [f"{name} {row[key]:g}" for name, key in (("λ", "lam"), ("α", "alpha")) if row[key] is not None]
    at += ["edge"] if (row["method"], row["environment"], row["lam"]) in edges else []
    return Cell(text, row["mean"], row["mark"], small=", ".join(at) if settings else "")
