"""The table of all learning methods: what each does, where it is from, what is proven of it, what it needs, and how it is made.

The facts are those of the methods' classes and, for traces by themselves, of the rules: nothing is listed here.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from offtrace.learners.methods.registry import listed_methods
from offtrace.traces import Rule, Trace, rules


class Row(NamedTuple):
    """One method, as the table prints it."""

    name: str
    values: str
    """ "state", "action", or "action, state"."""
    equation: str
    proven: str
    needs: str
    citation: str
    call: str
    """One line of code that makes it."""


TITLES = ("method", "values", "equation", "proven", "needs", "source", "made by")


def rows() -> list[Row]:
    """The methods with a name of their own, then every trace by itself.

    >>> [row.name for row in rows()][:2]
    ['ETD(λ)', 'ETD(λ, β)']
    """
    named = [
        Row(m.name, m.values, m.equation, m.proven, m.needs, m.citation, m.call())
        for m in sorted(listed_methods(), key=lambda m: m.values, reverse=True)
    ]
    return named + [_of_rule(rule) for rule in rules() if not rule.per_step]


def _of_rule(rule: type[Rule]) -> Row:
    reads = [letter for letter, names in (("π", ("pi", "rho")), ("μ", ("mu", "rho"))) if {*names} & {*rule.reads}]
    given = [
        f"{name}={value}" for name, value in (("lam", "0.9"), ("zeta", "0.5"), ("n", "3")) if name in _fields(rule)
    ]
    name = next(name for name in (rule.title, *rule.aliases, rule.__name__) if name.isascii()).lower()
    needs = "the greedy action" if rule.needs_greedy else " and ".join(reads) or "π in δ"
    if not issubclass(rule, Trace):
        call = f'method("{name}", {", ".join(["alpha=0.1", *given])})'
        return Row(rule.title, "action", rule.formula, "not of Q^π, unless π = μ", needs, rule.citation, call)
    proven = {True: "a contraction, with a table: β_t ≤ β_{t-1} ρ_t", False: "not β_t ≤ β_{t-1} ρ_t", None: ""}
    words = "; ".join(w for w in (rule.proven, "" if rule.proven else proven[rule.recursive_condition]) if w)
    made = ", ".join(["alpha=0.1", *given, 'values="action"'])
    return Row(
        rule.title, "action, state", f"β_t = {rule.formula}", words, needs, rule.citation, f'method("{name}", {made})'
    )


def _fields(rule: type[Rule]) -> tuple[str, ...]:
    return tuple(rule.__dataclass_fields__)


def as_json(shown: list[Row]) -> str:
    """The rows as JSON.

    >>> as_json(rows()[:1])[:20]
    '[{"name": "ETD(λ)", '
    """
    return json.dumps([row._asdict() for row in shown], ensure_ascii=False)


def as_markdown(shown: list[Row]) -> str:
    """The table of the documentation.

    >>> as_markdown(rows()).splitlines()[0]
    '| method | values | equation | proven | needs | source | made by |'
    """
    lines = ["| " + " | ".join(TITLES) + " |", "|" + "---|" * len(TITLES)]
    for row in shown:
        cells = [*(cell.replace("|", "\\|") for cell in row[:-1]), f"`{row.call}`"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def as_text(shown: list[Row]) -> str:
    """The same for a terminal: a few lines for each method.

    >>> print(as_text(rows()[:1]))
    ETD(λ)                                  (state values)
        F = γρ₋F + 1;  m = λ + (1−λ)F;  z = ρ(γλz + mx);  w += α δ z
        proven   converges with linear features, off-policy too (Yu 2015)
        needs    π and μ
        source   Sutton, Mahmood, White (2016), An emphatic approach to the problem of off-policy ...
        made by  method("etd", alpha=0.1, lam=0.9)
    """
    parts: list[str] = []
    for row in shown:
        lines = [f"{row.name:<40}({row.values} values)", f"    {row.equation}"]
        named = (("proven", row.proven), ("needs", row.needs), ("source", row.citation), ("made by", row.call))
        lines += [f"    {title:<9}{text}" for title, text in named if text]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
