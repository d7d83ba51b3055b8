"""The learning methods that are listed. `method` finds one by name; whatever goes over all of them asks `listed_methods`.

Every trace of `offtrace.rules()` is a method too: on state values it is the TD method with that trace's eligibility vector.

`rows` is the table of all of them: what each does, where it is from, what is proven of it, what it needs, how to create it. The
facts are those of the methods' classes and, for traces by themselves, of the rules: nothing is listed here.
"""

from __future__ import annotations

import json
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
    return _rules().get(key(name))


def _rules() -> dict[str, type[Rule]]:
    """The traces by their names and aliases; the first that was listed keeps a name."""
    return {key(name): r for r in reversed(rules()) for name in (r.__name__, r.title, *r.aliases)}


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
    cls, rule, given = method_named(name), rule_named(name), dict(parameters)
    if cls is not None and (rule is None or given.get("values", cls.values) == cls.values):
        if given.get("values") == cls.values:
            del given["values"]
        return _instance(cls, cls.parameters(), given)
    if rule is None:
        names = {k: m.name for k, m in listed.items()} | {k: r.title for k, r in _rules().items()}
        near = closest(key(name), names)
        hint = ending(None if near is None else names[near])
        known = ", ".join(sorted({m.name for m in listed_methods()} | {r.title for r in rules()}))
        raise ValueError(f"there is no learning method named {name!r}{hint} Known: {known}")
    alpha, values = given.pop("alpha", None), given.pop("values", "action" if rule.uncorrected else "state")
    return of_rule(_instance(rule, ("alpha", "values", *_fields(rule)), given), values, alpha)


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
TYPICAL = {"lam": 0.9, "zeta": 0.5, "eta": 1.0, "beta": 0.8, "kappa": 1.0, "n": 3}
"""The parameters in a row's call."""


def rows() -> list[Row]:
    """The methods with a name of their own, then every trace by itself.

    >>> [row.name for row in rows()][:2]
    ['TD(λ)', 'Tree Backup(λ) on states']
    """
    named = [
        Row(m.name, m.values, m.equation, m.proven, m.needs, m.citation, m.call or _call(m.aliases[0], m.parameters()))
        for m in sorted(listed_methods(), key=lambda m: m.values, reverse=True)
    ]
    return named + [_of_rule(rule) for rule in rules() if not rule.per_step]


def _call(name: str, parameters: tuple[str, ...], *more: str) -> str:
    given = [f"{name}={TYPICAL[name]}" for name in parameters if name in TYPICAL]
    return f"method({', '.join([repr(name), 'alpha=0.1', *given, *more])})".replace("'", '"')


def _of_rule(rule: type[Rule]) -> Row:
    name = next(name for name in (rule.title, *rule.aliases, rule.__name__) if name.isascii()).lower()
    reads = [letter for letter, names in (("π", ("pi", "rho")), ("μ", ("mu", "rho"))) if {*names} & {*rule.reads}]
    needs = "the greedy action" if rule.needs_greedy else " and ".join(reads) or "π in δ"
    parameters = tuple(n for n in _fields(rule) if n in ("lam", "zeta", "n"))
    if not issubclass(rule, Trace):
        proven = "not of Q^π, unless π = μ"
        return Row(rule.title, "action", rule.formula, proven, needs, rule.citation, _call(name, parameters))
    condition = {True: "a contraction, with a table: β_t ≤ β_{t-1} ρ_t", False: "not β_t ≤ β_{t-1} ρ_t", None: ""}
    proven, call = rule.proven or condition[rule.recursive_condition], _call(name, parameters, 'values="action"')
    return Row(rule.title, "action, state", f"β_t = {rule.formula}", proven, needs, rule.citation, call)


def _fields(rule: type[Rule]) -> tuple[str, ...]:
    return tuple(rule.__dataclass_fields__)


def as_json(shown: list[Row]) -> str:
    """The rows as JSON."""
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
    return "\n\n".join(
        "\n".join(
            [f"{row.name:<40}({row.values} values)", f"    {row.equation}"]
            + [f"    {title:<9}{text}" for title, text in zip(TITLES[3:], row[3:], strict=True) if text]
        )
        for row in shown
    )
