"""A rule's expressions (`traces.symbols`) as Triton functions. Numbers are arguments, so that another λ is not another kernel."""

# pyright: reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import math
from functools import cache

import triton
import triton.language as tl

from offtrace.traces import symbols
from offtrace.traces.symbols import NOW, Lines, Printer, Symbol

MOST = 4
"""How many parameters of a rule, and how many numbers in a carry, a kernel takes."""
PER_STEP = ("pi", "mu", "rho", "log_rho", "lag", "start_pair", "pair", "c0", "c1", "c2", "c3")
"""The names of what changes from step to step."""


@triton.jit
def least(a, b):
    """Return the smaller one, or NaN if either is NaN: Triton's own minimum drops it."""
    return tl.where(a < b, a, tl.where(a != a, a, b))


@triton.jit
def most(a, b):
    """Return the larger one, or NaN if either is NaN."""
    return tl.where(a > b, a, tl.where(a != a, a, b))


@triton.jit
def power(x, y):
    """Return x to the power of y as e^{y log |x|}; a negative x needs a whole y."""
    size = tl.exp(y * tl.log(tl.where(x == 0.0, 1.0, tl.abs(x))))
    size = tl.where(x == 0.0, tl.where(y > 0.0, 0.0, float("inf")), size)
    half = tl.floor(y * 0.5) * 2.0
    below = tl.where(y == half, size, tl.where(y == tl.floor(y), -size, float("nan")))
    size = tl.where(x < 0.0, below, size)
    size = tl.where(x != x, x, tl.where(y != y, y, size))
    return tl.where(y == 0.0, 1.0, tl.where(x == 1.0, 1.0, size))


NOTHING, ENDLESS = tl.constexpr(-1e300), tl.constexpr(1e290)
"""log 0 and log ∞ as finite numbers: so sums need no cases, and 0 · ∞ is 0."""
SMALLEST, LARGEST = tl.constexpr(-708.0), tl.constexpr(709.0)
"""log ρ beyond which ρ is 0, or infinite, in float64."""


@triton.jit
def finite(x):
    """Return a logarithm, with finite numbers for −∞ and ∞; a NaN stays."""
    return tl.where(x < NOTHING, NOTHING, tl.where(x > ENDLESS, ENDLESS, x))


SPACE = {"tl": tl, "least": least, "most": most, "power": power, "finite": finite}
FUNCTIONS = {"minimum": "least", "maximum": "most", "**": "power", "finite": "finite"}


class InTriton(Printer):
    """Prints expressions as lines of Triton, in float64."""

    def number(self, value: float) -> str:
        """Print a number as a float64: a literal alone would be a float32."""
        kind = "tl.int1" if isinstance(value, bool) else "tl.float64"
        return f"tl.full([], {super().number(value)}, {kind})"

    def write(self, symbol: Symbol) -> str:
        """Print a symbol; powers that are products or roots, and quotients by what no step changes, get a shorter form."""
        if symbol.operation == "**" and symbol.parts[1].operation == "number":
            x, n = self.text(symbol.parts[0]), symbol.parts[1].parts[0]
            if n in (0.5, -0.5):
                return f"tl.sqrt({x})" if n > 0 else f"(1.0 / tl.sqrt({x}))"
            if n in (1.0, 2.0, 3.0):
                return "(" + " * ".join([x] * int(n)) + ")"
        if symbol.operation == "/" and not changes(symbol.parts[1]):  # a division takes as long as ten products
            a, b = map(self.text, symbol.parts)
            return f"({a} * (1.0 / {b}))"
        return super().write(symbol)

    def operation(self, operation: str, *parts: str) -> str:
        """Print one operation."""
        if operation in ("&", "|", "~"):
            # as 1 and 0: the interpreter does not combine conditions of numbers and arrays
            a, *b = (f"tl.where({part}, 1.0, 0.0)" for part in parts)
            return {"&": f"({a} * {''.join(b)} != 0.0)", "|": f"({a} + {''.join(b)} != 0.0)", "~": f"({a} == 0.0)"}[
                operation
            ]
        if operation == "**":
            return f"power({', '.join(parts)})"
        return super().operation(operation, *parts)

    def function(self, name: str) -> str:
        """Return what the function is called in Triton."""
        return FUNCTIONS.get(name, f"tl.{name}")


def changes(symbol: Symbol) -> bool:
    """Tell whether the expression depends on the step."""
    if symbol.operation in ("input", "number"):
        return symbol.parts[0] in PER_STEP
    return any(map(changes, symbol.parts))


@cache
def factors(lines: Lines) -> triton.JITFunction:
    """Make the kernel's function `factors(pi, mu, rho, p0 … p3) → decay, ratio, cap`."""
    body, results = InTriton().body(lines.results)
    arguments = ("pi", "mu", "rho", *(f"p{i}" for i in range(MOST)))
    return triton.jit(
        symbols.function("factors", symbols.definition("factors", arguments, body, ", ".join(results)), SPACE)
    )


LOG_RHO = Symbol("input", "log_rho")
"""It is never infinite: `NOTHING` and `ENDLESS` stand for that."""


def logarithm(symbol: Symbol) -> Symbol:
    """Return log of an expression that is not negative, as a finite number, without exp and log where one undoes the other."""
    x = symbol.parts
    match symbol.operation:
        case "input" if x[0] == "rho":
            return LOG_RHO
        case "number":
            log = math.log(x[0]) if x[0] > 0 else -math.inf
            return Symbol("number", min(max(log, NOTHING.value), ENDLESS.value))
        case "*":
            return symbols.combine("+", *map(logarithm, x))  # at most twice log 0 or log ∞, which is as good
        case "/":
            return symbols.combine("+", logarithm(x[0]), finite_symbol(symbols.combine("negative", logarithm(x[1]))))
        case "**" if not changes(x[1]):
            return finite_symbol(symbols.combine("*", x[1], logarithm(x[0])))
        case "minimum" | "maximum":
            return symbols.combine(symbol.operation, *map(logarithm, x))
        case "where":
            return symbols.combine("where", in_logarithms(x[0]), *map(logarithm, x[1:]))
    return finite_symbol(symbols.combine("log", symbol))


def finite_symbol(symbol: Symbol) -> Symbol:
    """Return the expression, bounded by the numbers that stand for ∓∞."""
    return symbols.combine("finite", symbol)


def in_logarithms(condition: Symbol) -> Symbol:
    """Return a condition; ρ = 0, which needs no exponential, as a comparison of log ρ."""
    a, *b = condition.parts
    is_rho = isinstance(a, Symbol) and a.operation == "input" and a.parts[0] == "rho"
    if condition.operation == "==" and is_rho and b[0].operation == "number" and b[0].parts[0] == 0.0:
        return symbols.combine("<", LOG_RHO, SMALLEST.value)
    return condition


@cache
def log_factors(lines: Lines) -> triton.JITFunction:
    """Make the function `log_factors(log_rho, pi, mu, rho, p0 … p3)`, which returns log decay, log ratio and log cap."""
    body, results = InTriton().body(tuple(map(logarithm, lines.results)))
    arguments = ("log_rho", "pi", "mu", "rho", *(f"p{i}" for i in range(MOST)))
    return triton.jit(
        symbols.function("log_factors", symbols.definition("log_factors", arguments, body, ", ".join(results)), SPACE)
    )


@cache
def step(lines: Lines) -> triton.JITFunction:
    """Make the kernel's function `step(c0 … c3, pi, mu, rho, lam, lag, start_pair, pair) → c0 … c3, β`."""
    held = tuple(f"c{i}" for i in range(MOST))
    body, (*after, beta) = InTriton().body(lines.results)
    results = ", ".join((*after, *held[len(after) :], beta))
    return triton.jit(symbols.function("step", symbols.definition("step", (*held, *NOW), body, results), SPACE))
