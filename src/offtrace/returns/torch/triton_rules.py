"""A rule's own lines as a Triton function: it is run once on symbols, and what it does to them is written down.

So one definition serves NumPy, PyTorch, JAX and the GPU. A rule may use operators and `xp.where / minimum / maximum` only, which
is all that is recorded here. Numbers are arguments of the function: another λ is not another kernel.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from functools import cache
from itertools import count
from types import FunctionType
from typing import Any

import triton
import triton.language as tl

from offtrace.traces import Step

MOST = 4
"""Parameters of a rule, and numbers in a carry, that a kernel takes."""
PER_STEP = ("pi", "mu", "rho", "lag", "start_pair", "pair", "c0", "c1", "c2", "c3")
"""Names of what changes from step to step."""
_serial = count()


class Symbol:
    """An expression, as text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __bool__(self) -> bool:
        raise TypeError("a rule may not branch on its arguments: use xp.where")


def _text(value: Any) -> str:
    if isinstance(value, Symbol):
        return value.text
    number = repr(float(value)).replace("inf", "1e999")  # the literal that is infinite
    return f"tl.full([], {number}, tl.float64)"


def _binary(sign: str) -> tuple[Callable[..., Symbol], Callable[..., Symbol]]:
    return (
        lambda a, b: Symbol(f"({_text(a)} {sign} {_text(b)})"),
        lambda b, a: Symbol(f"({_text(a)} {sign} {_text(b)})"),
    )


def _over(a: Any, b: Any) -> Symbol:
    """a / b. What does not change with the step is inverted once: a division takes as long as ten products."""
    if isinstance(b, Symbol) and set(re.findall(r"\w+", b.text)) & set(PER_STEP):
        return Symbol(f"({_text(a)} / {_text(b)})")
    return Symbol(f"({_text(a)} * (1.0 / {_text(b)}))")


Symbol.__truediv__ = _over  # pyright: ignore[reportAttributeAccessIssue]
Symbol.__rtruediv__ = lambda b, a: _over(a, b)  # pyright: ignore[reportAttributeAccessIssue]
for _name, _sign in {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|"}.items():
    _plain, _reflected = _binary(_sign)
    setattr(Symbol, f"__{_name}__", _plain)
    setattr(Symbol, f"__r{_name}__", _reflected)
for _name, _sign in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items():
    setattr(Symbol, f"__{_name}__", _binary(_sign)[0])
Symbol.__neg__ = lambda a: Symbol(f"(-{a.text})")  # pyright: ignore[reportAttributeAccessIssue]


class SymbolMath:
    """The `xp` that a rule sees."""

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Any:
        """A where the condition holds, else b."""
        if not isinstance(condition, Symbol):
            return a if condition else b
        return Symbol(f"tl.where({condition.text}, {_text(a)}, {_text(b)})")

    @staticmethod
    def minimum(a: Any, b: Any) -> Symbol:
        """The smaller one."""
        return Symbol(f"tl.minimum({_text(a)}, {_text(b)})")

    @staticmethod
    def maximum(a: Any, b: Any) -> Symbol:
        """The larger one."""
        return Symbol(f"tl.maximum({_text(a)}, {_text(b)})")


def _function(name: str, arguments: list[str], results: list[Any]) -> Any:
    """A compiled function of expressions. Triton wants to read its source, so it is kept where `inspect` looks."""
    file = f"<offtrace {name} {next(_serial)}>"
    source = f"def {name}({', '.join(arguments)}):\n    return {', '.join(map(_text, results))}\n"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    space: dict[str, Any] = {"tl": tl, "__name__": __name__}
    exec(compile(source, file, "exec"), space)
    return triton.jit(space[name])


@cache
def factors(rule: Any, parameters: int) -> Any:
    """`factors(pi, mu, rho, p0 … p3) → decay, ratio, cap` of a rule with so many parameters."""
    names = ["pi", "mu", "rho", *(f"p{i}" for i in range(MOST))]
    symbols = [Symbol(name) for name in names]
    return _function("factors", names, list(rule(SymbolMath, *symbols[: 3 + parameters])))


@cache
def step(function: Any, carries: int) -> Any:
    """`step(c0 … c3, pi, mu, rho, lam, lag, start_pair, pair) → c0 … c3, β` of a custom trace; carries = 0 for a bare number."""
    seen = ["pi", "mu", "rho", "lam", "lag", "start_pair", "pair"]
    held = [f"c{i}" for i in range(MOST)]
    symbols = [Symbol(name) for name in held]
    after, beta = function(
        SymbolMath, tuple(symbols[:carries]) if carries else symbols[0], Step(*(Symbol(name) for name in seen))
    )
    after = list(after) if carries else [after]
    return _function("step", [*held, *seen], [*after, *symbols[len(after) :], beta])


def bound(kernel: Any, **names: Any) -> Any:
    """The same kernel with other functions under these global names."""
    source = kernel.fn
    copy = FunctionType(source.__code__, {**source.__globals__, **names}, source.__name__, source.__defaults__)
    copy.__qualname__, copy.__module__, copy.__annotations__ = (
        source.__qualname__,
        source.__module__,
        source.__annotations__,
    )
    return triton.jit(copy)
