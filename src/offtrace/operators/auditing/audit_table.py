"""Every lemma, theorem and convergence claim of the paper (Daley and Amato 2021) as a row, decided by computation.

"refuted" comes with the MDP that decides it. "holds on everything tried" is just that: some of those
have proofs (docs/theory.md), but no proof is run here. Nothing is stored: each verdict is computed when asked for.
"""

from __future__ import annotations

import json
import shutil
import textwrap
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from offtrace._shared.progress_bar import for_watchers
from offtrace.operators import check_proof
from offtrace.operators.auditing import claims
from offtrace.operators.proofs import write

REFUTED, HOLDS = "refuted", "holds on everything tried"


@dataclass(frozen=True)
class Row:
    """One statement of the paper and what became of it."""

    statement: str
    where: str
    """The place in the paper."""
    verdict: str
    """"refuted" or "holds on everything tried"."""
    numbers: str
    """What was computed."""
    decided_by: str
    """The MDP that decides it: a call of `offtrace.mdps`, or what was tried."""
    computed_by: str
    """The function of `operators/auditing/claims` that decides it: `module.function`."""
    seconds: float
    proofs: tuple[str, ...] = ()
    """The names of its proofs, which `offtrace audit --proofs FOLDER` writes; empty where none was asked for or there is none."""
    verified: tuple[str, ...] = ()
    """What another program has verified of it, if that was asked for; empty where there is no proof of its form."""

    @property
    def refuted(self) -> bool:
        """Whether there is a counterexample."""
        return self.verdict == REFUTED


def audit(
    progress: Callable[[int, int, str], None] | None = None, *, check: bool = False, proofs: Path | None = None
) -> list[Row]:
    """Decide every claim. `progress(done, total, statement)` is called before each and once at the end;
    without it a bar is shown in a terminal or a notebook.

    With `check` the counterexamples are put into proofs, which `check_proof` verifies; they are written into the folder `proofs`.

    >>> audit()[0].verdict  # doctest: +SKIP
    'holds'
    """
    claims.on_battery.cache_clear()
    rows: list[Row] = []
    total = len(claims.CLAIMS)
    with for_watchers() as bar:
        tell = progress or bar.show
        for i, (statement, where, decide) in enumerate(claims.CLAIMS):
            tell(i, total, statement)
            began = time.perf_counter()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="behavior = 0 where target > 0")
                refuted, numbers, decided_by, proposals = decide()
                documents = [propose() for propose in proposals] if check or proofs else []
            verified = tuple(sentence for each in documents for sentence in check_proof.check(each))
            names = tuple(f"{i + 1:02}-{j + 1}.json" for j in range(len(documents)))
            if proofs is not None:
                for name, each in zip(names, documents, strict=True):
                    write(proofs / name, each)
            spent = round(time.perf_counter() - began, 3)
            verdict, by = REFUTED if refuted else HOLDS, f"{decide.__module__.rpartition('.')[2]}.{decide.__name__}"
            rows.append(Row(statement, where, verdict, numbers, decided_by, by, spent, names, verified))
        tell(total, total, "")
    return rows


def as_json(rows: Sequence[Row]) -> str:
    """A list of objects with the fields of `Row`."""
    return json.dumps([asdict(row) for row in rows], ensure_ascii=False, indent=2)


def as_markdown(rows: Sequence[Row]) -> str:
    """A page for the documentation."""
    lines = [
        "# The paper, audited",
        "",
        "Made by `offtrace audit --markdown`: every row is computed, none is stored. *Holds on everything tried* is not a proof.",
        "",
        "| statement | in the paper | verdict | numbers | decided by | computed by; proofs |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        texts = (row.statement, row.where, row.numbers, row.decided_by)
        statement, where, numbers, decided_by = (text.replace("|", "\\|").replace("*", "\\*") for text in texts)
        verdict = f"**{row.verdict}**" if row.refuted else row.verdict
        by = "; ".join([f"`{row.computed_by}`", *([", ".join(row.proofs)] if row.proofs else [])])
        lines.append(f"| {statement} | {where} | {verdict} | {numbers} | {decided_by} | {by} |")
    return "\n".join(lines) + "\n"


def as_text(rows: Sequence[Row], width: int | None = None) -> str:
    """A table for a terminal of this width, or of the one that is there; texts are wrapped."""
    width = max(60, min(width or shutil.get_terminal_size((100, 24)).columns, 160))
    left, mark = 10, {True: "refuted", False: "holds"}
    statement = (width - left - 4) * 2 // 5
    columns = (left, statement, width - left - 4 - statement)
    rule = "─" * width
    lines = [_line(("verdict", "the paper", "computed"), columns), rule]
    for row in rows:
        cells = (
            [mark[row.refuted]],
            textwrap.wrap(row.statement, columns[1]) + textwrap.wrap(f"({row.where})", columns[1]),
            textwrap.wrap(row.numbers, columns[2])
            + textwrap.wrap(f"on: {row.decided_by}", columns[2])
            + [line for each in row.verified for line in textwrap.wrap(f"verified: {each}", columns[2])],
        )
        depth = max(map(len, cells))
        padded = [list(cell) + [""] * (depth - len(cell)) for cell in cells]
        lines += [_line(parts, columns) for parts in zip(*padded, strict=True)]
        lines.append(rule)
    count, spent = sum(row.refuted for row in rows), sum(row.seconds for row in rows)
    held = len(rows) - count
    lines.append(
        f"{len(rows)} statements: {count} refuted, {held} hold on everything tried, which is no proof. {spent:.1f} s."
    )
    return "\n".join(lines)


def _line(cells: Sequence[str], columns: Sequence[int]) -> str:
    return "  ".join(cell.ljust(size) for cell, size in zip(cells, columns, strict=True)).rstrip()
