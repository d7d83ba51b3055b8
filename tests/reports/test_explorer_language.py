"""Rules as JavaScript, and the expressions of a visitor: in the browser they are what Python makes of them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from offtrace.reports.explorer.javascript import arrow
from offtrace.traces import symbols
from traces.test_symbols import OPERATIONS

POINTS = [(0.0, 0.2), (0.5, 0.5), (0.9, 0.1), (1.0, 1.0), (0.3, 0.7)]
"""π and μ."""


def test_every_operation_of_a_rule(explorer_engine: Any) -> None:
    tab, c = explorer_engine, 0.8
    for name, formula in OPERATIONS.items():
        traced = symbols.factors(lambda xp, pi, mu, rho, c, f=formula: (f(xp, pi, mu, rho, c), 1.0, 1.0), 1, name)
        text = arrow(traced.lines.results, ("pi", "mu", "rho", "p0"))
        call = (
            f"(points) => {{ const {{ least, most, power }} = engine; return points.map((p) => ({text})(...p)[0]); }}"
        )
        shown = tab.evaluate(call, [(pi, mu, pi / mu, c) for pi, mu in POINTS])
        wanted = [float(traced.call(np, *map(np.float64, (pi, mu, pi / mu, c)))[0]) for pi, mu in POINTS]
        np.testing.assert_allclose(shown, wanted, 1e-14, 1e-14, err_msg=name)


NUMBER = re.compile(r"(?<![\w.])(\d+\.?\d*|\.\d+)(e-?\d+)?")


def expression(rng: np.random.Generator, depth: int) -> str:
    """Some text of the language, without a need for parentheses where Python needs none."""
    if depth == 0 or rng.random() < 0.15:
        return str(rng.choice(["rho", "pi", "mu", "lam", "2", "0.5", ".25", "1e-1", "3."]))
    a, b = expression(rng, depth - 1), expression(rng, depth - 1)
    kind = rng.integers(9)
    if kind < 4:
        return f"{a} {'+-*/'[kind]} {b}"
    if kind == 4:
        return f"({a}) {rng.choice(['<', '<=', '>', '>=', '==', '!='])} ({b})"
    if kind == 5:
        return f"{rng.choice(['min', 'maximum', 'max', 'minimum'])}({a}, {b})"
    if kind == 6:
        return f"{rng.choice(['sqrt(abs', 'log(1 + abs', 'exp(-abs', 'abs(abs'])}({a}))"
    if kind == 7:
        return f"where((({a}) > ({b})) & ~(({b}) != 2) | (({a}) <= 1), {a}, -{b})"
    return f"abs({a}) ** {rng.choice(['2', '0.5', '-1', '-rho'])}"


def test_random_expressions_mean_what_they_mean_in_python(explorer_engine: Any) -> None:
    tab, rng = explorer_engine, np.random.default_rng(0)
    texts = [expression(rng, int(rng.integers(1, 5))) for _ in range(150)]
    points = [{"pi": pi, "mu": mu, "rho": pi / mu, "lam": 0.9} for pi, mu in POINTS]
    call = """([texts, points]) => texts.map((text) => {
        const made = engine.parsed(text);
        return [made.python, points.map((p) => String(made.of(p)))];
    })"""
    for text, (python, shown) in zip(texts, tab.evaluate(call, [texts, points]), strict=True):
        typed, printed = as_rule(text), as_rule(python)
        for point, value in zip(points, shown, strict=True):
            found = float(value.replace("Infinity", "inf"))
            for rule in (typed, printed):
                with np.errstate(all="ignore"):
                    wanted = float(rule.call(np, *map(np.float64, point.values()))[0])
                np.testing.assert_allclose(found, wanted, 1e-9, 1e-12, err_msg=text)


def as_rule(text: str) -> symbols.Traced:
    """The expression as a rule's own line. Numbers are symbols too: Python's own raise where a quotient is infinite."""

    def factors(xp: Any, pi: Any, mu: Any, rho: Any, lam: Any) -> Any:
        names = {name: getattr(xp, name) for name in symbols.FUNCTIONS} | {"min": xp.minimum, "max": xp.maximum}
        names |= {"xp": xp, "pi": pi, "mu": mu, "rho": rho, "lam": lam, "F": symbols.expression}
        return eval(NUMBER.sub(r"F(\g<0>)", text), names), 1.0, 1.0

    return symbols.factors(factors, 1, text)


def test_text_that_is_no_expression_is_a_mistake_at_a_place_in_it(explorer_engine: Any) -> None:
    tab, rng = explorer_engine, np.random.default_rng(1)
    signs = [*"()+-*/<>=!&|~,.^$ 19eλρ∞", "**", "rho", "min(", "where(", "\u2028", "é", "😀"]
    texts = ["".join(rng.choice(signs, rng.integers(0, 9))) for _ in range(400)]
    inherited = ["constructor", "toString", "__proto__", "valueOf(1)", "hasOwnProperty(rho, 1)"]  # of every object
    call = """(texts) => texts.map((text) => {
        try { engine.parsed(text); return null; }
        catch (error) { return error instanceof engine.Mistake ? [error.at, error.length, error.message] : String(error); }
    })"""
    for text, said in zip([*texts, *inherited], tab.evaluate(call, [*texts, *inherited]), strict=True):
        if said is None:
            assert text not in inherited
            continue
        at, length, message = said
        units = len(text.encode("utf-16-le")) // 2
        assert 0 <= at <= units, text
        assert length >= 1
        assert message
