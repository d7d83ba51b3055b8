"""The learning methods that are listed. `method` finds one by name; whatever goes over all of them asks `listed_methods`.

Every trace of `offtrace.rules()` is a method too: on state values it is the TD method with that trace's eligibility vector.

`rows` is the table of all of them: what each does, where it is from, what is proven of it, what it needs, and how it is made. The
facts are those of the methods' classes and, for traces by themselves, of the rules: nothing is listed here.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

from offtrace._shared.suggestions import closest, ending
from offtrace.learners.methods.base import Method, key, listed, listed_methods
from offtrace.learners.methods.traces import StateTraceLearner, TraceLearner, UncorrectedLearner
from offtrace.traces import Rule, Trace, rules

T = TypeVar("T", Method, Rule)


def method_named(name: str) -> type[Method] | None:
    """The class of the method of this name; None where there is none."""
    return listed.get(key(name))


def rule_named(name: str) -> type[Rule] | None:
    """The trace of this name, or None."""
    wanted = key(name)
    return next((r for r in rules() if wanted in map(key, (r.__name__, r.title, *r.aliases))), None)


def method(name: str, **parameters: object) -> Method:
    """Find a learning method by its name or an alias, and make it.

    - `name`: case, spaces and punctuation do not matter. The name of a trace makes the TD method on state values with that trace;
      with `values="action"`, the paper's Algorithm 1
    - `parameters`: what its constructor takes, such as `alpha`, `lam` or `eta`; for a trace, `alpha` and what the trace takes

    >>> from offtrace.learners import method
    >>> method("gtd2", alpha=0.01, lam=0.5, eta=0.5).title
    'GTD2(0.5)'
    >>> method("rbis", alpha=0.1, lam=0.9).trace
    RBIS(horizon=None, lam=0.9)
    """
    cls, rule = listed.get(key(name)), rule_named(name)
    if cls is not None and (rule is None or parameters.get("values", cls.values) == cls.values):
        return _instance(
            cls, cls.parameters(), {n: x for n, x in parameters.items() if n != "values" or x != cls.values}
        )
    if rule is None:
        known = {key(m.name): m.name for m in listed_methods()} | {key(r.title): r.title for r in rules()}
        names = {
            **{k: m.name for k, m in listed.items()},
            **{key(a): r.title for r in rules() for a in r.aliases},
            **known,
        }
        near = closest(key(name), names)
        hint = ending(None if near is None else names[near])
        raise ValueError(f"there is no learning method named {name!r}{hint} Known: {', '.join(sorted(known.values()))}")
    given = dict(parameters)
    alpha, values = given.pop("alpha", None), given.pop("values", "action" if rule.uncorrected else "state")
    instance = _instance(rule, ("alpha", "values", *(f.name for f in fields(rule))), given)
    return of_rule(instance, values, alpha)


def of_rule(rule: Rule, values: object = "action", alpha: Any = None) -> Method:
    """The method that a rule by itself stands for."""
    if values not in ("action", "state"):
        raise ValueError(f'values must be "action" or "state", got {values!r}')
    if isinstance(rule, Trace):
        return (TraceLearner if values == "action" else StateTraceLearner)(rule, alpha=alpha)
    if values == "state":
        raise ValueError(f"{rule.title} has no ratios, and no method on state values here: use values='action'")
    return UncorrectedLearner(rule, alpha=alpha)


def _instance(cls: type[T], allowed: tuple[str, ...], parameters: dict[str, object]) -> T:
    for given in parameters:
        if given not in allowed:
            hint = ending(closest(given, allowed))
            raise TypeError(f"{cls.__name__} has no parameter {given!r}{hint} It takes: {', '.join(allowed)}")
    make: Any = cls  # whose own checks follow
    return make(**parameters)


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
    ['TD(λ)', 'Tree Backup(λ) on states']
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
    arguments = ", ".join(["alpha=0.1", *given, 'values="action"'])
    return Row(
        rule.title,
        "action, state",
        f"β_t = {rule.formula}",
        words,
        needs,
        rule.citation,
        f'method("{name}", {arguments})',
    )


def _fields(rule: type[Rule]) -> tuple[str, ...]:
    return tuple(rule.__dataclass_fields__)


def as_json(shown: list[Row]) -> str:
    """The rows as JSON.

    >>> as_json(rows()[:1])[:20]
    '[{"name": "TD(λ)", "'
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
    TD(λ)                                   (state values)
        z = ρ(γλz + x);  w += α δ z
        proven   on-policy with linear features it converges (Tsitsiklis, Van Roy 1997); off-policy ...
        needs    π and μ
        source   Sutton (1988), Learning to predict by the methods of temporal differences; Precup, ...
        made by  method("td", alpha=0.1, lam=0.9)
    """
    parts: list[str] = []
    for row in shown:
        lines = [f"{row.name:<40}({row.values} values)", f"    {row.equation}"]
        named = (("proven", row.proven), ("needs", row.needs), ("source", row.citation), ("made by", row.call))
        lines += [f"    {title:<9}{text}" for title, text in named if text]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
