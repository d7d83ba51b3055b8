"""Options that are made from the fields of a dataclass: their types say how the text is read."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Literal, get_args, get_origin

Add = Callable[..., object]
"""`add_argument` of a parser or of a group of one."""


def add_option(add: Add, name: str, kind: object, words: str) -> None:
    """Add an option for a field. It is absent from the result unless it is given."""
    words = words.split("\n")[0].replace("%", "%%")
    option = f"--{name.replace('_', '-')}"
    if get_origin(kind) is Literal:
        add(option, help=words, default=argparse.SUPPRESS, choices=get_args(kind))
    elif kind is bool:
        add(option, help=words, default=argparse.SUPPRESS, action=argparse.BooleanOptionalAction)
    else:
        read, metavar = _reader(kind)
        add(option, help=words, default=argparse.SUPPRESS, type=read, metavar=metavar)


def _reader(kind: object) -> tuple[Callable[[str], object], str]:
    """How the text of an option is read, and what stands for it in the help."""
    if kind in (int, int | None):
        return integer, "N"
    if kind in (float, float | None):
        return float, "X"
    if kind == tuple[int, ...]:
        return integers, "N,N"
    if kind == float | Sequence[float]:
        return numbers, "X"
    raise TypeError(f"a field of type {kind} cannot be made an option")


def integer(text: str) -> int:
    """A whole number, also as 5_000_000 or 5e6."""
    try:
        if (number := float(text)).is_integer():
            return int(number)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"must be a whole number such as 5_000_000 or 5e6, got {text!r}")


def integers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    return tuple(integer(part) for part in text.split(",") if part.strip())


def numbers(text: str) -> float | tuple[float, ...]:
    """A number, or several with commas between them."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, or several as in 0,1,0, got {text!r}") from None
    return found[0] if len(found) == 1 else found
