"""Checks of what a declaration says. Every error names the key, what was given and what is allowed.

A check is a function (key, given) → the value; those with limits are made by a function of the limits.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any, TypeGuard, TypeVar

from offtrace._shared.suggestions import did_you_mean
from offtrace._shared.type_guards import is_list

T = TypeVar("T")
Check = Callable[[str, object], T]
Toml = Mapping[str, Any]
"""A table as TOML has it, not checked yet."""
Table = dict[str, Any]
"""A table of TOML or JSON that is ours: texts, numbers, lists and tables."""


class DeclarationError(ValueError):
    """A study cannot be what its declaration says."""

    def __init__(self, key: str, given: object, allowed: str) -> None:
        super().__init__(f"{key}: got {given!r}; allowed: {allowed}")


class StudyError(RuntimeError):
    """A study cannot go on. What was computed and written stays, and the next run goes on from there."""


def is_table(given: object) -> TypeGuard[Toml]:
    """Whether it is a table. TOML has no keys but texts, and a dict with others is refused by name later."""
    return isinstance(given, Mapping)


def text(key: str, given: object) -> str:
    """Check that this is a text with more than spaces in it, and return it without those around it.

    >>> text("question", " Which trace learns fastest? ")
    'Which trace learns fastest?'
    """
    if not isinstance(given, str) or not given.strip():
        raise DeclarationError(key, given, "a text that is not empty")
    return printable(key, given).strip()


def printable(key: str, given: str) -> str:
    """Check that a text has no control characters but tabs and line breaks: a terminal would obey them, and a page not show them.

    >>> printable("name", "\\x1b[31mred")
    Traceback (most recent call last):
    offtrace.studies.declaration_checks.DeclarationError: name: got '\\x1b[31mred'; allowed: a text without control characters
    """
    if any(unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" for c in given):
        raise DeclarationError(key, given, "a text without control characters")
    return given


def all_printable(key: str, given: object) -> None:
    """Check the same of all texts in a table or list, the names of keys included."""
    if isinstance(given, str):
        printable(key or "the study", given)
    elif is_table(given):
        for name, value in given.items():
            inner = f"{key}.{name}" if key else str(name)
            all_printable(inner if str(name).isprintable() else key, str(name))
            all_printable(inner, value)
    elif is_list(given):
        for i, value in enumerate(given):
            all_printable(f"{key}[{i}]", value)


def one_of(*options: str) -> Check[str]:
    """Make the check that a value is one of these words."""

    def check(key: str, given: object) -> str:
        if not isinstance(given, str) or given not in options:
            raise DeclarationError(key, given, ", ".join(map(repr, options)) + did_you_mean(given, options))
        return given

    return check


def number(low: float = 0.0, high: float = float("inf"), above: bool = False) -> Check[float]:
    """Make the check that a value is a finite number in [low, high]; with `above`, in (low, high]."""
    bounds = f"{'above' if above else 'of at least'} {low:g}" + (
        "" if high == float("inf") else f" and at most {high:g}"
    )

    def check(key: str, given: object) -> float:
        if not isinstance(given, int | float) or isinstance(given, bool):
            raise DeclarationError(key, given, f"a number {bounds}")
        if abs(given) == float("inf") or not low <= given <= high or (above and given == low):
            raise DeclarationError(key, given, f"a number {bounds}")
        return float(given)

    return check


def whole(low: int = 0, high: int | None = None) -> Check[int]:
    """Make the check that a value is an integer of at least `low`, and at most `high`.

    >>> whole(1)("seeds", 0)
    Traceback (most recent call last):
    offtrace.studies.declaration_checks.DeclarationError: seeds: got 0; allowed: an integer of at least 1
    """
    bounds = f"of at least {low}" + ("" if high is None else f" and at most {high}")

    def check(key: str, given: object) -> int:
        if not isinstance(given, int) or isinstance(given, bool) or given < low or (high is not None and given > high):
            raise DeclarationError(key, given, f"an integer {bounds}")
        return given

    return check


def like(default: object) -> Check[object]:
    """Make the check that a value is of the kind of `default`: for 1 an integer, for 1.0 a number, for "a" a text, …"""
    if isinstance(default, tuple):
        return _integers
    kinds: dict[type, tuple[type | UnionType, str]] = {
        bool: (bool, "true or false"),
        int: (int, "an integer"),
        float: (int | float, "a number"),
        str: (str, "a text"),
        type(None): (int | float, "a number"),
    }
    kind, what = kinds[type(default)]

    def check(key: str, given: object) -> object:
        if not isinstance(given, kind) or isinstance(given, bool) != isinstance(default, bool):
            raise DeclarationError(key, given, what)
        return float(given) if isinstance(default, float) and isinstance(given, int | float) else given

    return check


def _integers(key: str, given: object) -> tuple[int, ...]:
    """Check that this is a list of integers of at least 1, and return it as a tuple."""
    if not is_list(given):
        raise DeclarationError(key, given, "a list of integers")
    return tuple(whole(1)(f"{key}[{i}]", v) for i, v in enumerate(given))


def several(check: Check[T], what: str) -> Check[tuple[T, ...]]:
    """Make the check that a value is a list of different values, at least one, each of which passes `check`."""

    def checked(key: str, given: object) -> tuple[T, ...]:
        if not is_list(given) or not given:
            raise DeclarationError(key, given, f"a list of {what} that is not empty")
        values = tuple(check(f"{key}[{i}]", v) for i, v in enumerate(given))
        for i, v in enumerate(values):
            if v in values[:i]:
                raise DeclarationError(f"{key}[{i}]", given[i], "each value once")
        return values

    return checked


def table(key: str, given: object, known: Iterable[str]) -> Toml:
    """Check that this is a table with no other keys than the `known` ones, and return it."""
    known = list(known)
    if not is_table(given):
        raise DeclarationError(key or "the study", given, f"a table with the keys {', '.join(known)}")
    for name in given:
        if name not in known:
            what = f"no such key{did_you_mean(name, known)}; the keys here are {', '.join(known)}"
            raise DeclarationError(f"{key}.{name}" if key else name, given[name], what)
    return given
