"""What was measured on a case, as cells of tables, as Markdown and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from evidence.measure import Measured, Score
from offtrace._shared.number_text import number
from offtrace.logs.result import finite

HEADS = ("Estimator", "Bias", "RMSE", "Coverage of the 95 % interval", "Width", "Passed its checks")


def cells(score: Score) -> tuple[str, ...]:
    """The texts of a row."""
    rmse = f"{number(score.rmse, score.rmse_error)} ± {number(score.rmse_error, score.rmse_error)}"
    n = len(score.errors)
    return (
        score.title,
        number(score.bias, score.rmse_error),
        rmse,
        coverage(score),
        number(score.width, score.width / 10),
        f"{100 * score.passed / n:.0f} %" if n else "–",
    )


def coverage(score: Score) -> str:
    """The share, what it may be by chance, and how often there was no interval.

    >>> coverage(Score("direct method", "", None, (0.1, 0.2), 2, 2, 0.5, 2))
    '100 % [16, 100]'
    """
    share, low, high = score.coverage
    if math.isnan(share):
        return "no interval"
    text = f"{100 * share:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
    return text if score.given == len(score.errors) else f"{text} of {score.given}"


def about(found: Measured) -> str:
    """The case and its truth, in sentences."""
    error = f", with a standard error of {found.truth_error:.2g}" if found.truth_error else ", exactly"
    return (
        f"{found.case.words}. γ = {found.case.gamma:g}, {found.case.episodes} episodes of together "
        f"{found.steps:,.0f} steps, which are worth {found.effective:.0f} by their weights; V(π) = {number(found.truth)}{error}; "
        f"V(μ) = {number(found.behavior)}; {found.repetitions} repetitions"
    )


def markdown(found: Sequence[Measured]) -> str:
    """What each case is, and three tables with a column for each: RMSE, bias and coverage; the best RMSE in bold."""
    lines = [f"- **{each.case.title}** (`{each.case.name}`): {about(each)}." for each in found]
    shown: dict[str, Callable[[Score], str]] = {
        "RMSE": lambda score: f"{number(score.rmse, score.rmse_error)} ± {number(score.rmse_error, score.rmse_error)}",
        "Bias": lambda score: number(score.bias, score.rmse_error),
        "Coverage": coverage,
    }
    for head, text in shown.items():
        lines += ["", f"| {head} | {' | '.join(each.case.name for each in found)} |", "|---|" + "---:|" * len(found)]
        most_first = sorted(found, key=lambda each: -len(each.scores))  # some cases lack an estimator
        for title in dict.fromkeys(score.title for each in most_first for score in each.scores):
            row = [_cell(each, title, text, bold=head == "RMSE") for each in found]
            lines.append(f"| {title} | {' | '.join(row)} |")
    return "\n".join(lines)


def _cell(found: Measured, title: str, text: Callable[[Score], str], bold: bool) -> str:
    score = next((score for score in found.scores if score.title == title), None)
    if score is None or not score.errors:
        return "–"
    return f"**{text(score)}**" if bold and score is found.best() else text(score)


def as_json(found: Measured) -> dict[str, object]:
    """Everything, errors of each repetition too."""
    return {
        "case": found.case.name,
        "truth": found.truth,
        "truth_error": found.truth_error,
        "behavior": found.behavior,
        "steps": found.steps,
        "effective": found.effective,
        "repetitions": found.repetitions,
        "scores": [
            {
                "estimator": score.title,
                "rule": score.rule,
                "lam": score.lam,
                "bias": finite(score.bias),
                "rmse": finite(score.rmse),
                "errors": list(score.errors),
                "held": score.held,
                "given": score.given,
                "width": finite(score.width),
                "passed": score.passed,
            }
            for score in found.scores
        ],
    }
