"""Rules as JavaScript, printed from their own lines (`traces.symbols`): the page computes what every backend computes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import Field, fields
from typing import Any

from offtrace.traces import Trace
from offtrace.traces.symbols import Lines, Printer, Symbol, as_number

SEEN = ("pi", "mu", "rho")
"""What changes from step to step."""


class InJavaScript(Printer):
    """Prints expressions as lines of JavaScript. `least`, `most` and `power` treat NaN as NumPy does."""

    def number(self, value: float) -> str:
        """A constant."""
        if isinstance(value, bool):
            return str(value).lower()
        return repr(value).replace("inf", "Infinity").replace("nan", "NaN")

    def operation(self, operation: str, *parts: str) -> str:
        """One operation."""
        if operation == "**":
            return f"power({', '.join(parts)})"
        if operation == "where":
            return f"({parts[0]} ? {parts[1]} : {parts[2]})"
        if operation == "~":
            return f"!{parts[0]}"
        signs = {"==": "===", "!=": "!==", "&": "&&", "|": "||"}
        if operation in signs:
            return f"({parts[0]} {signs[operation]} {parts[1]})"
        return super().operation(operation, *parts)

    def function(self, name: str) -> str:
        """How a function is called."""
        return {"minimum": "least", "maximum": "most"}.get(name, f"Math.{name}")

    def body(self, results: Iterable[Symbol]) -> tuple[str, list[str]]:
        """All lines as constants, and the names of the results."""
        names = [self.text(symbol) for symbol in results]
        return "".join(f"const {line}; " for line in self.lines), names


def arrow(results: tuple[Symbol, ...], arguments: tuple[str, ...]) -> str:
    """A function of these arguments that gives the results as an array.

    >>> x = Symbol("input", "x")
    >>> arrow((x, Symbol("minimum", x, Symbol("number", 1.0))), ("x",))
    '(x) => { const v0 = least(x, 1.0); return [x, v0]; }'
    """
    body, names = InJavaScript().body(results)
    return f"({', '.join(arguments)}) => {{ {body}return [{', '.join(names)}]; }}"


def printed(rule: type[Trace], **constants: object) -> tuple[str, list[str]]:
    """`factors` of a rule as a function (pi, mu, rho, numbers) → [decay, ratio, cap, share], and the names of its numbers.

    The numbers are those of the constructor: what `Trace.parameters` and `Trace.target_share` make of them is printed too.
    `share` is how much of π is in the policy that the rule evaluates. Numbers in `constants` are not asked for.
    """
    some = object.__new__(rule)  # with symbols for numbers: the constructor would refuse them
    for field in fields(rule):
        fixed = None if field.name == "horizon" else constants.get(field.name, Symbol("input", field.name))
        object.__setattr__(some, field.name, fixed)
    parameters = tuple(map(as_number, some.parameters))
    lines = _with(some.traced.lines, parameters)
    share = as_number(some.target_share)
    results = (*lines, share)
    names = sorted(set().union(*map(_inputs, results)) - set(SEEN), key=[f.name for f in fields(rule)].index)
    return arrow(results, (*SEEN, f"{{ {', '.join(names)} }}" if names else "_")), names


def _with(lines: Lines, parameters: tuple[Symbol, ...]) -> tuple[Symbol, ...]:
    """The lines with these expressions in place of p0, p1, …"""
    given = {f"p{i}": symbol for i, symbol in enumerate(parameters)}
    done: dict[Symbol, Symbol] = {}  # by identity, so that what is shared stays shared

    def replaced(symbol: Any) -> Any:
        if not isinstance(symbol, Symbol) or symbol.operation == "number":
            return symbol
        if symbol.operation == "input":
            return given.get(symbol.parts[0], symbol)
        if symbol not in done:
            done[symbol] = Symbol(symbol.operation, *map(replaced, symbol.parts))
        return done[symbol]

    return tuple(map(replaced, lines.results))


def _inputs(symbol: Symbol) -> set[str]:
    if symbol.operation in ("input", "number"):
        return {str(symbol.parts[0])} if symbol.operation == "input" else set()
    return set().union(*map(_inputs, symbol.parts))


def facts(rule: type[Trace]) -> dict[str, Any]:
    """What the page must know of a rule besides its function."""
    _, names = printed(rule)
    some = (*rule.typical(), *rule.examples())
    numbers = [_number(rule, field, some) for field in fields(rule) if field.name in names]
    letters = {
        "lam": "λ",
        "sigma": "σ",
        "mix": "α",
        "zeta": "ζ",
        "kappa": "κ",
        "gamma": "γ",
        "psi0": "ψ₀",
        "psi_max": "ψₘ",
        "c_bar": "c̄",
    }
    if rule.sweep is not None:
        letters[rule.sweep.parameter] = rule.sweep.symbol
    return {
        "name": rule.__name__,
        "title": rule.title,
        "formula": rule.formula,
        "citation": rule.citation,
        "recursive": bool(rule.recursive),
        "perDecision": bool(rule.per_decision),
        "greedy": rule.needs_greedy,
        "perStep": rule.per_step,
        "numbers": [{**number, "letter": letters.get(number["name"], number["name"])} for number in numbers],
    }


def _number(rule: type[Trace], field: Field[object], some: tuple[Trace, ...]) -> dict[str, Any]:
    """A number of the constructor: where it begins, whether it ends at 1, whether there may be one for each lag."""
    given = next((g for trace in some if isinstance(g := getattr(trace, field.name), int | float)), 1.0)
    shown = float(given)
    by_lag = taking(rule, field.name, (1.0, 2.0))
    return {
        "name": field.name,
        "start": "inf" if math.isinf(shown) else shown,
        "unit": taking(rule, field.name, 2.0) is None,
        "byLag": by_lag is not None and by_lag.lag_bound is not None,
    }


def taking(rule: type[Trace], name: str, value: object) -> Trace | None:
    """The rule with this value of a number; None where the constructor refuses it."""
    if rule.per_step:
        return None
    try:
        return rule(**{name: value})  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return None
