"""Numbers → words: the answer in a few sentences that claim no more than the intervals allow."""

from __future__ import annotations

import math
from collections.abc import Sequence

import polars as pl

from offtrace._shared.number_text import counted, listed, number, with_interval
from offtrace.reports.study.views import Facts, Views, mean_and_half

METRICS = {
    "auc": "AUC",
    "return": "Final return",
    "mean return": "Mean return",
    "rms error": "RMS error",
    "mean rms error": "Mean RMS error",
    "weighted rms error": "Weighted RMS error",
}


def metric(facts: Facts) -> str:
    """The name of what was measured, as a heading."""
    name = str(facts.get("metric") or "value")
    return METRICS.get(name, name[:1].upper() + name[1:])


MEANINGS = {
    "auc": "the area under the learning curve: the return of evaluation episodes, summed over all steps",
    "return": "the return of evaluation episodes at the end of training",
    "rms error": "the root mean square of the errors of all values at the end",
}
"""What a metric is, where its name does not say it."""


def in_sentence(facts: Facts) -> str:
    """The name of what was measured, in the middle of a sentence."""
    name = metric(facts)
    return name if name[:2].isupper() else name[:1].lower() + name[1:]


def unit(facts: Facts) -> str:
    """The metric with what it is, for where it is first used."""
    meaning = MEANINGS.get(str(facts.get("metric")))
    return in_sentence(facts) + (f" ({meaning})" if meaning else "")


def curve(facts: Facts) -> str:
    """What a learning curve is of."""
    name = str(facts.get("metric")).lower()
    return str(facts.get("curve") or ("RMS error" if "error" in name else "Return"))


def settings(shown: Views) -> str:
    """What is chosen for each trace: "tuned λ and α", "best λ", or "λ" where there was nothing to choose."""
    table = shown.summary.table
    if table["alpha"].null_count() < len(table) or shown.heat:
        return "tuned λ and α"
    several = table.group_by("environment", "method").len()["len"].max()
    return "best λ" if several is not None and int(several) > 1 else "λ"  # pyright: ignore[reportArgumentType]


def scaled(shown: Views) -> str:
    """A sentence that says what the scores 0 and 1 stand for."""
    worst = "is a random policy" if shown.summary.zeros else "is the interquartile mean of the worst trace there"
    return f"0 {worst}, 1 {'is the interquartile mean' if shown.summary.zeros else 'that'} of the best"


def outside_scale(iqm: Sequence[float]) -> str:
    """A sentence that says why an interquartile mean is below that of the worst trace or above that of the best, where one is.

    >>> outside_scale([1.1, 0.5])
    ' It can be above 1, since the middle half is that of the runs of all environments together.'
    """
    outside = ["below 0"] * (min(iqm, default=0.0) < -1e-9) + ["above 1"] * (max(iqm, default=0.0) > 1 + 1e-9)
    together = "since the middle half is that of the runs of all environments together"
    return f" It can be {' or '.join(outside)}, {together}." if outside else ""


def age_label(facts: Facts) -> str:
    """What the age of the data is counted in, for an axis."""
    return "frames in the memory" if facts.get("task") == "deep" else "age of the data"


def of_ages(shown: Views) -> str:
    """A sentence that says what the age of the data means."""
    if shown.facts.get("task") != "deep":
        return "Age counts how long ago the behaviour policy was the current one."
    said = "The age of the data is the number of frames that the memory holds."
    per_update = shown.facts.get("frames per update")
    if per_update:
        ages = sorted(shown.summary.configurations["age"].drop_nulls().unique().to_list())
        updates = [f"{age / per_update:,.0f}" for age in ages]
        said += f" With an update every {per_update} frames the oldest are from the policy of {listed(updates)} updates ago."
    return said


def finding(shown: Views) -> list[str]:
    """The finding, in the metric's own units: differences from the baseline, and what λ does; nothing for maps."""
    summary = shown.summary
    places = {row["environment"] for row in summary.against.iter_rows(named=True)}
    of_mean = "" in places and shown.facts.get("task") != "deep"
    where = "" if of_mean else summary.environments[0]
    rows = summary.against.filter(environment=where).to_dicts()
    if shown.facts.get("task") == "map" or not rows or (len(summary.environments) > 1 and not of_mean):
        return []
    rows.sort(key=lambda row: -summary.better * row["difference"])
    if not math.isfinite(rows[0]["low"]):
        return [f"One seed gives no interval of the {unit(shown.facts)}, so that nothing can be told apart."]
    ends = "low" if summary.better > 0 else "high"
    ahead = [row for row in rows if summary.better * row[ends] > 0]
    behind = [row for row in rows if summary.better * row["high" if ends == "low" else "low"] < 0]
    over = f"over the {len(summary.environments)} environments" if of_mean and len(summary.environments) > 1 else "here"

    if ahead:
        mean = "" if in_sentence(shown.facts).startswith("mean ") else "mean "
        said = f"**{ahead[0]['method']}** has the best {mean}{unit(shown.facts)} {over}: "
        gap = abs(ahead[0]["difference"]), *sorted(abs(ahead[0][end]) for end in ("low", "high"))
        said += f"**{with_interval(*gap)}** {'above' if summary.better > 0 else 'below'} {summary.baseline}, "
        said += "in pairs of the same seed."
    else:
        said = f"No trace is ahead of **{summary.baseline}** {over} in {unit(shown.facts)}, beyond the 95% interval."
    level = [row for row in rows if row not in ahead and row not in behind]
    others = {
        f"Also ahead of {summary.baseline}": ahead[1:],
        "Behind it": behind[::-1],
        "Not told apart from it": level,
    }
    for words, group in others.items():
        if group:
            said += f" {words}: {listed([quoted(row['method']) for row in group])}."
    return [said, *_over_lambda(shown, rows[0]["method"] if ahead else summary.baseline)]


def _over_lambda(shown: Views, first: str) -> list[str]:
    """At which λ the first trace is best, and which traces collapse as λ grows."""
    if not shown.sweeps:
        return []
    best = shown.best.filter(method=first).drop_nulls("lam")
    if best.is_empty():
        return []
    lams, counts = best["lam"].to_list(), len(best)
    common = max(sorted(set(lams)), key=lams.count)
    at = f"λ = {common:g}" + (
        "" if lams.count(common) == counts else f" in {lams.count(common)} of {counts} environments"
    )
    said = f"{first} is best at {at}"
    falls, base = shown.falls(), shown.summary.baseline
    if first in falls:
        said += f", and collapses from **λ = {falls.pop(first):g}** on: there it is behind {base} at the same λ"
        said += " in every environment" if len(shown.sweeps) > 1 else ""
    said += "."
    if falls:
        others = listed([f"{quoted(method)} from λ = {lam:g} on" for method, lam in falls.items()])
        said += f" {others} {'is' if len(falls) == 1 else 'are'} behind {base} at the same λ."
    return [said]


def concerns(shown: Views) -> list[str]:
    """What a reader must know before relying on the numbers."""
    edges = shown.edges()
    at_edge = edges.filter("edge")
    if len(at_edge) * 4 <= len(edges):
        return []
    tried = sorted(shown.summary.configurations["alpha"].drop_nulls().unique().to_list())
    each = at_edge["alpha"].value_counts().sort("alpha").iter_rows()
    which = listed([f"α = {alpha:g} in {n}" for alpha, n in each])
    return [
        f"In {len(at_edge)} of {len(edges)} settings the tuned step size is the smallest or the largest of "
        f"{listed([f'{alpha:g}' for alpha in tried])} ({which}): a wider grid could change the numbers, and the order."
    ]


def answer(shown: Views) -> list[str]:
    """The answer to the study's question, in a few paragraphs."""
    if shown.tradeoff and shown.facts.get("task") == "map":
        return [*_front(shown), _care(shown)]
    parts = (_standing(shown), _aged(shown), _care(shown))
    return [part for part in parts if part]


def _standing(shown: Views) -> str:
    """Who leads by the interquartile mean, and whether the data can tell."""
    iqm, table = shown.summary.iqm, shown.best
    if len(shown.summary.methods) == 1 or iqm.is_empty():
        means = [f"{mean_and_half(row)[0]} in {row['environment']}" for row in table.iter_rows(named=True)]
        return f"{listed(shown.summary.methods)}: {metric(shown.facts)} {listed(means)}."
    first, *rest = iqm.iter_rows(named=True)
    place = _places(len(shown.summary.environments))
    score = with_interval(first["iqm"], first["low"], first["high"])
    equal = [row["method"] for row in rest if first["iqm"] - row["iqm"] < 1e-9]
    who = f"**{first['method']}** has" if not equal else f"**{listed([first['method'], *equal])}** share"
    said = f"{who} the highest interquartile mean {place}: **{score}**"
    said += f" on a scale where, in each environment, {scaled(shown)}.{outside_scale([first['iqm']])}"
    leaders = [method for method in shown.summary.leaders()[1:] if method not in equal]
    others = len(rest) - len(equal)
    if not math.isfinite(first["low"]):
        return said + " One seed gives no interval: nothing can be told apart."
    if not others:
        return f"All {len(iqm)} traces have the same interquartile mean: these runs do not tell the traces apart."
    if shown.summary.differences["in_pairs"].all():
        by = "Compared in pairs of the same seed"
    else:
        by = "Compared as a whole, since not all have the same seeds"
    it = "it" if not equal else "they"
    if not leaders:
        ahead = f"{it} {'is' if not equal else 'are'} ahead of {f'each of the other {others}' if others > 1 else 'the other'}"
        return f"{said} {by}, {ahead}: the 95% interval of {'each' if others > 1 else 'the'} difference lies above 0."
    if len(leaders) == others:
        by = by[0].lower() + by[1:]
        return f"{said} But {by}, these runs do not tell the traces apart: the 95% interval of each difference holds 0."
    names = listed([quoted(name) for name in leaders])
    return said + f" {by}, {it} {'is' if not equal else 'are'} not told apart from {names}: the order is not certain."


def quoted(name: str) -> str:
    """A name in a sentence: in quotes if it has a comma, so that a list of names can be read.

    >>> quoted("prefix, cap 2"), quoted("Q(σ) (σ = 1, λ = 0)")
    ('“prefix, cap 2”', 'Q(σ) (σ = 1, λ = 0)')
    """
    return f"“{name}”" if "," in name.partition(" (")[0] else name


def _aged(shown: Views) -> str:
    """Whether the differences to the baseline are there at each age."""
    frame = shown.at_each_age
    if frame.is_empty() or not frame["low"].is_finite().any():
        return ""
    said, what = [], "frames in the memory" if shown.facts.get("task") == "deep" else "age"
    for (age,), part in frame.group_by("age", maintain_order=True):
        ahead = [quoted(name) for name in part.filter(pl.col("difference_low") > 0)["method"]]
        behind = [quoted(name) for name in part.filter(pl.col("difference_high") < 0)["method"]]
        words = [f"{listed(names)} {way}" for names, way in ((ahead, "ahead"), (behind, "behind")) if names]
        said.append(f"{age:,.0f}: {', '.join(words) if words else 'none'}")
    differs = f"differs from that of {shown.summary.baseline} (the 95% interval does not hold 0)"
    return f"By age ({what}) the traces whose interquartile mean {differs}: {'; '.join(said)}."


def _front(shown: Views) -> list[str]:
    """For maps: what contracts fastest, and what nothing else beats. What ends elsewhere than at Q^π is no rival."""
    said = []
    for environment in shown.tradeoff:
        points = shown.points(environment)
        fair = [point[:4] for point in points if not point[4]]
        if not fair:
            continue
        x, y, method, lam = min(fair, key=lambda point: point[:2])
        counts: dict[str, int] = {}
        for name, _ in (front := shown.front(environment)):
            counts[name] = counts.get(name, 0) + 1
        names = [f"{name} ({n})" for name, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
        where = f"**{environment}.** " if len(shown.tradeoff) > 1 else ""
        all_finite = all(None not in cloud.y for cloud in shown.tradeoff[environment])
        among = "" if all_finite else " of what has a finite variance"
        text = f"{where}**{method}**{_at(lam)} contracts fastest{among}, by a factor of **{number(x)}**, "
        text += f"at a variance of {number(y)}. "
        text += f"Of {len(fair)} settings {len(front)} are beaten by none in both contraction and variance: {listed(names)}."
        if len(fair) < len(points):
            text += f" {len(points) - len(fair)} further settings are biased, and so not compared."
        said.append(text)
    return said


def _care(shown: Views) -> str:
    """What a reader must know to weigh the numbers."""
    table, summary = shown.summary.table, shown.summary
    seeds = int(table["n"].min() or 0), int(table["n"].max() or 0)  # pyright: ignore[reportArgumentType]
    span = f"{seeds[0]}" if seeds[0] == seeds[1] else f"{seeds[0]} to {seeds[1]}"
    what = "MDP" if summary.final == "map" else "seed"
    parts = [f"Each mean is over {span} {what}{'' if span == '1' else 's'}."]
    if shown.facts.get("finished") is False:
        parts.append("The study is not finished: this page shows what is there.")
    own = table.filter(table["chosen_on"] != "tuning")
    if summary.final == "tuning":
        parts.append("The test phase has not been run: these are the tuning seeds themselves, and so too favourable.")
    elif len(own) == len(table) and settings(shown) != "λ":
        chosen = "λ and α were" if "α" in settings(shown) else "λ was"
        parts.append(
            f"There was no tuning phase: {chosen} chosen on the reported seeds, which favours every trace a little."
        )
    elif summary.final == "test" and len(own) < len(table):
        parts.append("λ and α were chosen on the tuning seeds, which are none of these.")
    edges = shown.edges()
    if (n := int(edges["edge"].sum())) and not concerns(shown):
        parts.append(f"In {n} of {len(edges)} settings the tuned α is the smallest or largest that was tried.")
    of_lam = shown.edges("lam")
    if n := int(of_lam["edge"].sum()):
        parts.append(
            f"In {n} of {len(of_lam)} settings the tuned λ is the smallest or largest that was tried, and not 0 or 1."
        )
    failed = int(table["failed"].sum())
    if failed:
        parts.append(
            f"{failed:,} of {int(table['n'].sum()):,} runs{' at a tuned α' * ('α' in settings(shown))} failed (not finite); "
            "a failed run counts as the worst one."
        )
    if summary.diverged:
        at = " at a tuned α" * ("α" in settings(shown))
        parts.append(f"The learner diverged in {counted(summary.diverged, 'run')}{at}, over all λ.")
    if not shown.at_each_age.is_empty():
        parts.append("Each interval is for one comparison; of many, some leave out zero by chance.")
    left_out = [method for method in summary.methods if method not in summary.iqm["method"].to_list()]
    if left_out and not summary.iqm.is_empty():
        parts.append(f"{listed(left_out)} lacks some environments and is left out of the comparison.")
    return " ".join(parts)


def _places(n: int) -> str:
    return "over all runs" if n == 1 else f"over the {n} environments"


def _at(lam: float | None) -> str:
    return "" if lam is None else f" at λ = {lam:g}"
