"""How options look and how their words are read, for functions whose signatures tyro makes into commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform, get_type_hints

import tyro
from tyro.conf import arg
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

SHAPES = (tyro.conf.DisallowNone, tyro.conf.PositionalMetavarFromFieldName)
"""An option is left out in place of saying None."""
REGISTRY = ConstructorRegistry()
"""How numbers are read that Python would not read so."""

Output = Annotated[Path | None, arg(aliases=["-o"], metavar="FILE")]
Page = Annotated[Path | None, arg(metavar="FILE.html")]
Quiet = Annotated[bool, arg(aliases=["-q"])]
Modules = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, arg(name="module", metavar="NAME")]

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def with_plain_help(function: F) -> F:
    """Give flags no opposites, and leave out defaults that say nothing from the help."""
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if any(parameter.default is silent for silent in (None, True, False, ())):
            flag = (tyro.conf.FlagCreatePairsOff,) if isinstance(parameter.default, bool) else ()
            hints[name] = Annotated[(hints[name], *flag, arg(help_behavior_hint=""))]
    function.__annotations__ = {name: hints[name] for name in function.__annotations__}
    return function


@dataclass_transform(kw_only_default=True, frozen_default=True)
def command_options(cls: C) -> C:
    """Make a frozen dataclass of a command's options."""
    return with_plain_help(dataclass(frozen=True, kw_only=True)(cls))


TYPED: ContextVar[str] = ContextVar("TYPED", default="")
"""The command as it was typed, for pages to show."""


def integer(text: str) -> int:
    """A whole number, also as 5_000_000 or 5e6."""
    try:
        if (number := float(text)).is_integer():
            return int(text.replace("_", "")) if text.lstrip("+-").replace("_", "").isdecimal() else int(number)
    except ValueError:
        pass
    raise ValueError(f"must be a whole number such as 5_000_000 or 5e6, got {text!r}")


def integers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    return tuple(integer(part) for part in text.split(",") if part.strip())


def numbers(text: str) -> float | tuple[float, ...]:
    """A number, or several with commas between them."""
    try:
        several = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"must be a number, or several as in 0,1,0, got {text!r}") from None
    return several[0] if len(several) == 1 else several


READERS: list[tuple[object, Callable[[str], object], str]] = [
    (int, integer, "N"),
    (tuple[int, ...], integers, "N,N"),
    (float | Sequence[float], numbers, "X,X"),
    (float, float, "X"),
]


@REGISTRY.primitive_rule
def _of_type(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    for kind, read, metavar in READERS:
        if info.type == kind:
            return PrimitiveConstructorSpec(
                nargs=1,
                metavar=metavar,
                instance_from_str=lambda words, read=read: read(words[0]),
                is_instance=lambda value: value is not None,
                str_from_instance=lambda value: [spelt(value)],
            )
    return None


def spelt(value: object) -> str:
    """A default as the help prints it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:_}" if type(value) is int else f"{value:g}" if isinstance(value, float) else str(value)
