"""A rule's own lines as expressions: they are run once on symbols, and what they do to them is kept.

So one definition serves every backend, and a rule that some backend could not run is refused when it is made. A rule may use

    +  −  ·  /  **  abs      <  ≤  >  ≥  =  ≠      &  |  ~ of comparisons      xp.where minimum maximum abs sqrt exp log

on its arguments and on numbers, and helper functions that do the same. `python` prints the expressions for everything that has
an `xp` (NumPy, PyTorch, JAX, Numba); another language derives from `Printer`.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

if TYPE_CHECKING:
    import numpy as np

Key = TypeVar("Key")

INFIX = ("+", "-", "*", "/", "**", "<", "<=", ">", ">=", "==", "!=", "&", "|")
FUNCTIONS = ("where", "minimum", "maximum", "abs", "sqrt", "exp", "log")
CONDITIONS = ("<", "<=", ">", ">=", "==", "!=", "&", "|", "~")
REMEDY = "what needs more is a StepTrace, or a HistoryTrace, which takes any Python function"


class Refused(TypeError):
    """What a rule may not do to its arguments."""


class Symbol:
    """An expression: an operation and what it acts on. ("input", name) is an argument, ("number", value) a constant."""

    __slots__ = ("operation", "parts")
    __hash__ = object.__hash__

    def __init__(self, operation: str, *parts: Any) -> None:
        self.operation, self.parts = operation, parts

    def __repr__(self) -> str:
        return "an expression of its arguments"

    @property
    def is_condition(self) -> bool:
        """Whether it is true or false, and not a number."""
        return self.operation in CONDITIONS

    def __bool__(self) -> bool:
        raise Refused(
            "it branches on its arguments (if, and, or, not, min and max do): use xp.where, xp.minimum, xp.maximum"
        )

    def __float__(self) -> float:
        raise Refused("it turns an argument into a number (float and the functions of math do): use xp.sqrt, xp.exp, …")

    __int__ = __index__ = __complex__ = __round__ = __trunc__ = __float__

    def __iter__(self, *_: object) -> NoReturn:
        raise Refused("it takes an argument apart, which is one number")

    __len__ = __getitem__ = __contains__ = __iter__

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Refused(f"it uses .{name} of an argument: use operators and xp.{', xp.'.join(FUNCTIONS)}")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> Symbol:
        """NumPy's numbers on the left of an operator arrive here."""
        sign = UFUNCS.get(ufunc.__name__)
        if sign is None or method != "__call__" or options:
            raise Refused(f"it calls np.{ufunc.__name__}: use operators and xp.{', xp.'.join(FUNCTIONS)}")
        return combine(sign, *inputs)

    def __array_function__(self, function: Callable[..., object], *_: object) -> NoReturn:
        raise Refused(f"it calls np.{function.__name__}: use operators and xp.{', xp.'.join(FUNCTIONS)}")


UFUNCS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "true_divide": "/", "power": "**", "float_power": "**",
    "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=", "equal": "==", "not_equal": "!=",
    "bitwise_and": "&", "bitwise_or": "|", "logical_and": "&", "logical_or": "|",
}  # fmt: skip


def expression(value: object) -> Symbol:
    """A number as a symbol; a symbol as it is."""
    if isinstance(value, Symbol):
        return value
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(value, Real):
        raise Refused(f"it uses {value!r}, which is neither a number nor one of its arguments")
    return Symbol("number", value if isinstance(value, bool) else float(value))


def as_number(given: object) -> Symbol:
    """The same, where a number is needed: true counts as 1, false as 0."""
    value = expression(given)
    if value.is_condition:
        return Symbol("where", value, expression(1.0), expression(0.0))
    return expression(float(value.parts[0])) if value.operation == "number" else value


def _as_condition(value: object) -> Symbol:
    value = expression(value)
    if not value.is_condition and not (value.operation == "number" and isinstance(value.parts[0], bool)):
        raise Refused("&, |, ~ and the first argument of xp.where want a comparison, such as rho > 1")
    return value


def combine(operation: str, *parts: object) -> Symbol:
    """The operation on symbols and numbers."""
    if operation in ("&", "|", "~"):
        return Symbol(operation, *map(_as_condition, parts))
    if operation == "where":
        return Symbol(operation, _as_condition(parts[0]), *map(as_number, parts[1:]))
    return Symbol(operation, *map(as_number, parts))


def _define_operators() -> None:
    names = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**", "and": "&", "or": "|"}
    for name, sign in names.items():
        setattr(Symbol, f"__{name}__", lambda a, b, sign=sign: combine(sign, a, b))
        setattr(Symbol, f"__r{name}__", lambda b, a, sign=sign: combine(sign, a, b))
    for name, sign in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items():
        setattr(Symbol, f"__{name}__", lambda a, b, sign=sign: combine(sign, a, b))
    for name, operation in {"neg": "negative", "abs": "abs", "invert": "~"}.items():
        setattr(Symbol, f"__{name}__", lambda a, operation=operation: combine(operation, a))
    setattr(Symbol, "__pos__", lambda a: a)  # noqa: B010
    for name, sign in {"floordiv": "//", "mod": "%", "matmul": "@", "xor": "^", "lshift": "<<", "rshift": ">>"}.items():

        def refuse(a: object, b: object, sign: str = sign) -> NoReturn:
            raise Refused(f"it uses {sign} on an argument: use + − · / **, comparisons, & and |")

        setattr(Symbol, f"__{name}__", refuse)
        setattr(Symbol, f"__r{name}__", refuse)


_define_operators()


class SymbolMath:
    """The `xp` that a rule sees while it is run on symbols."""

    inf, nan, pi, e = math.inf, math.nan, math.pi, math.e

    def __getattr__(self, name: str) -> Callable[..., Symbol]:
        if name in FUNCTIONS:
            return lambda *parts: combine(name, *parts)
        raise Refused(
            f"it calls xp.{name}, which not every backend has: use operators and xp.{', xp.'.join(FUNCTIONS)}"
        )


class Lines(NamedTuple):
    """What a rule computes."""

    kind: str
    """Either "factors" or "step"."""
    inputs: tuple[str, ...]
    results: tuple[Symbol, ...]
    """decay, ratio and cap; or the carry's numbers and β."""

    def uses(self, name: str) -> bool:
        """Whether any of the results depends on this input."""
        seen: set[int] = set()
        left: list[object] = list(self.results)
        while left:
            part = left.pop()
            if isinstance(part, Symbol) and id(part) not in seen:
                if part.operation == "input" and part.parts[0] == name:
                    return True
                seen.add(id(part))
                left.extend(part.parts)
        return False


NOW = ("pi", "mu", "rho", "lam", "lag", "start_pair", "pair")
"""The fields of `Step`."""


@dataclass(frozen=True, eq=False)  # so that a look into a cache compares and hashes no lines
class Traced:
    """A rule's lines, and the function that they are printed as. Rules of the same lines have one and the same."""

    lines: Lines
    call: Callable[..., Any]
    """`factors(xp, pi, mu, rho, *parameters)` or `step(xp, carry, now)`, for whatever `xp` is given."""


KEPT = 1024
"""How many rules are remembered, and how many printed functions: those who make rules in a loop do not run out of memory."""
_traced: dict[tuple[Callable[..., object], int], Traced] = {}  # not functools.cache: torch.compile looks into this
_printed: dict[str, Traced] = {}
"""By their text: rules of the same lines are one function, which is compiled once."""


def factors(rule: Callable[..., object], parameters: int, name: str) -> Traced:
    """`factors` of a rule with so many parameters."""
    if (rule, parameters) not in _traced:
        _keep(_traced, (rule, parameters), _printed_as(of_factors(rule, parameters, name)))
    return _traced[rule, parameters]


def step(rule: Callable[..., object], carries: int, now: Callable[..., object], name: str) -> Traced:
    """`step` of a custom trace; `now` makes a `Step`, and carries = 0 stands for a bare number."""
    if (rule, carries) not in _traced:
        _keep(_traced, (rule, carries), _printed_as(of_step(rule, carries, now, name), carries))
    return _traced[rule, carries]


def _printed_as(lines: Lines, carries: int = 0) -> Traced:
    text = python(lines, carries)
    if text not in _printed:
        _keep(_printed, text, Traced(lines, function(lines.kind, text, {})))
    return _printed[text]


def _keep(kept: dict[Key, Traced], key: Key, traced: Traced) -> None:
    if len(kept) >= KEPT:
        del kept[next(iter(kept))]  # the oldest
    kept[key] = traced


def of_factors(rule: Callable[..., object], parameters: int, name: str) -> Lines:
    """The lines of `factors(xp, pi, mu, rho, *parameters)`, which are called p0, p1, …"""
    inputs = ("pi", "mu", "rho", *(f"p{i}" for i in range(parameters)))
    factors = _run(name, rule, *(Symbol("input", i) for i in inputs))
    if not isinstance(factors, tuple | list) or len(factors) != 3:
        raise TypeError(f"{name} gives {factors!r}: it must give decay, ratio and cap")
    return Lines("factors", inputs, _numbers(name, factors))


def of_step(step: Callable[..., object], carries: int, now: Callable[..., object], name: str) -> Lines:
    """The lines of `step(xp, carry, now)`, whose carry is c0, c1, …; carries = 0 for a bare number."""
    held = tuple(f"c{i}" for i in range(carries or 1))
    symbols = tuple(Symbol("input", i) for i in held)
    result = _run(name, step, symbols if carries else symbols[0], now(*(Symbol("input", i) for i in NOW)))
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise TypeError(f"{name} does not compile: it gives {result!r} and must give a carry and β")
    after, beta = result
    if isinstance(after, tuple | list) != bool(carries) or (carries and len(after) != carries):
        wanted = f"{carries} numbers" if carries else "one number"
        raise TypeError(f"{name} does not compile: its carry is {wanted} and it gives {after!r} for the next one")
    return Lines("step", (*held, *NOW), _numbers(name, (*(after if carries else (after,)), beta)))


def _run(name: str, function: Callable[..., object], *arguments: object) -> object:
    try:
        return function(SymbolMath(), *arguments)
    except Exception as error:
        why = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
        raise TypeError(f"{name} does not compile on every backend: {why}; {REMEDY}") from error


def _numbers(name: str, parts: Iterable[object]) -> tuple[Symbol, ...]:
    try:
        return tuple(as_number(part) for part in parts)
    except Refused as error:
        raise TypeError(f"{name} does not compile on every backend: {error}; {REMEDY}") from None


class Printer:
    """Expressions as lines of a language, one for each operation. What differs from Python is overridden."""

    def __init__(self, names: dict[str, str] | None = None) -> None:
        self.names = names or {}
        self.lines: list[str] = []
        self._done: dict[Symbol, str] = {}

    def text(self, symbol: Symbol) -> str:
        """The name of what holds the expression; lines are added that compute it."""
        if symbol.operation == "input":
            name = str(symbol.parts[0])
            return self.names.get(name, name)
        if symbol.operation == "number":
            return self.number(symbol.parts[0])
        if symbol not in self._done:  # by identity: == between symbols is a symbol
            written = self.write(symbol)
            self._done[symbol] = f"v{len(self._done)}"
            self.lines.append(f"{self._done[symbol]} = {written}")
        return self._done[symbol]

    def write(self, symbol: Symbol) -> str:
        """Write a symbol as an operation on the names of its parts."""
        return self.operation(symbol.operation, *map(self.text, symbol.parts))

    def number(self, value: float) -> str:
        """A constant. 1e999 is the literal that is infinite."""
        return repr(value).replace("inf", "1e999").replace("nan", "(1e999 - 1e999)")

    def operation(self, operation: str, *parts: str) -> str:
        """Write one operation in this language."""
        if operation in INFIX:
            return f"({parts[0]} {operation} {parts[1]})"
        if operation == "negative":
            return f"(-{parts[0]})"
        if operation == "~":  # Python's own makes −2 of True
            return f"({parts[0]} == False)"
        return f"{self.function(operation)}({', '.join(parts)})"

    def function(self, name: str) -> str:
        """How a function is called."""
        return f"xp.{name}"

    def body(self, results: Iterable[Symbol]) -> tuple[str, list[str]]:
        """All lines, and the names of the results."""
        names = [self.text(symbol) for symbol in results]
        return "".join(f"    {line}\n" for line in self.lines), names


def python(lines: Lines, carries: int = 0) -> str:
    """The lines as text of `factors(xp, pi, mu, rho, *parameters)` or `step(xp, carry, now)`, for whatever `xp` is given."""
    if lines.kind == "factors":
        body, results = Printer().body(lines.results)
        return definition("factors", ("xp", *lines.inputs), body, ", ".join(results))
    return step_definition(lines, carries, Printer(OF_NOW), ("xp", "carry", "now"))


OF_NOW = {i: f"now.{i}" for i in NOW}
"""How the arguments of a step are written."""


def step_definition(lines: Lines, carries: int, printer: Printer, arguments: tuple[str, ...]) -> str:
    """The text of a step."""
    body, (*after, beta) = printer.body(lines.results)
    held = f"({', '.join(lines.inputs[: -len(NOW)])}{',' * bool(carries)})"
    carry = f"({', '.join(after)}{',' * bool(carries)})"
    return definition("step", arguments, f"    {held} = carry\n{body}", f"{carry}, {beta}")


def definition(name: str, arguments: tuple[str, ...], body: str, results: str) -> str:
    """The text of a function."""
    return f"def {name}({', '.join(arguments)}):\n{body}    return {results}\n"


def function(name: str, source: str, space: dict[str, object]) -> Any:
    """A function of this source, which is kept where `inspect` and tracebacks look for it."""
    file = f"<offtrace {name} {abs(hash(source))}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    names = {**space, "__name__": __name__}
    exec(compile(source, file, "exec"), names)
    return names[name]
