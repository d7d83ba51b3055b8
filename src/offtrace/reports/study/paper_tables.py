"""The numbers of a study for a paper: CSV, LaTeX, and BibTeX of the works that its traces come from."""

from __future__ import annotations

import re
from pathlib import Path

from offtrace.reports.report_files import put
from offtrace.reports.study.views import Row, Views, mean_and_half
from offtrace.traces.registry import rules

COLUMNS = ["environment", "method", "lam", "alpha", "mean", "low", "high", "n", "failed", "mark"]
SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}
GREEK = {
    "λ": r"$\lambda$",
    "α": r"$\alpha$",
    "σ": r"$\sigma$",
    "ζ": r"$\zeta$",
    "β": r"$\beta$",
    "κ": r"$\kappa$",
    "ρ": r"$\rho$",
}
SIGNS = GREEK | {"−": "$-$", "–": "--", "’": "'", "“": "``", "”": "''", "½": r"$\frac12$", "¼": r"$\frac14$"}


def write(shown: Views, folder: Path) -> None:
    """`table.csv` and `table.tex`, each trace at its tuned λ and α, and `traces.bib`, into a folder."""
    put(shown.best.select(COLUMNS).write_csv().encode(), folder / "table.csv")
    put(latex(shown).encode(), folder / "table.tex")
    put(bibtex(shown.summary.methods).encode(), folder / "traces.bib")


def latex(shown: Views) -> str:
    """Traces down, environments across; bold is the best mean, underlined what is not distinguishable from it. Needs booktabs."""
    environments = shown.summary.environments
    lines = [
        "% Mean ± half of its 95% interval; bold: the best, underlined: not told apart from it in pairs of the same seed.",
        rf"\begin{{tabular}}{{l{'r' * len(environments)}}}",
        r"\toprule",
        " & ".join(["", *map(escaped, environments)]) + r" \\",
        r"\midrule",
    ]
    for method, cells in shown.cells(_cell, "--").items():
        lines.append(" & ".join([escaped(method), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _cell(row: Row) -> str:
    text = r" \pm ".join(mean_and_half(row)).replace("−", "-").replace(",", "{,}").replace("∞", r"\infty")
    wrapped = {"best": rf"\mathbf{{{text}}}", "level": rf"\underline{{{text}}}"}.get(str(row["mark"]), text)
    return f"${wrapped}$"


def escaped(text: str) -> str:
    r"""Text as LaTeX prints it.

    >>> escaped("Q(σ) 50% a_b")
    'Q($\\sigma$) 50\\% a\\_b'
    """
    return "".join(SPECIAL.get(c) or SIGNS.get(c, c) for c in text)


def bibtex(methods: list[str]) -> str:
    """An entry for each work that a trace of these methods cites; traces of the user's own that cite none have none."""
    entries: dict[str, str] = {}
    for rule in rules():
        if any(method == rule.title or method.startswith(f"{rule.title} (") for method in methods):
            for work in rule.citation.split("; "):
                entries.setdefault(*_entry(work))
    return "\n".join(entries[key] for key in sorted(entries))


def _entry(work: str) -> tuple[str, str]:
    """The key and the entry of "Authors (year), title, where it appeared": what is known is known only so far."""
    parsed = re.fullmatch(r"(.+?) \((\d{4})\)(?:, (.*))?", work)
    if not parsed:
        key = re.sub(r"\W", "", work)[:24] or "unknown"
        return key, f"@misc{{{key},\n  note = {{{escaped(work)}}},\n}}\n"
    authors, year, rest = parsed[1], parsed[2], parsed[3] or ""
    names = authors.replace(" et al.", ", others").split(", ")
    title, _, where = rest.partition(", ")
    key = re.sub(r"\W", "", names[0].split()[-1].lower()) + year + re.sub(r"\W.*", "", title.lower())
    lines = [f"  author = {{{' and '.join(map(escaped, names))}}}", f"  year = {{{year}}}"]
    lines += [f"  title = {{{escaped(title)}}}"] * bool(title) + [f"  note = {{{escaped(where)}}}"] * bool(where)
    return key, f"@misc{{{key},\n" + ",\n".join(lines) + ",\n}\n"
