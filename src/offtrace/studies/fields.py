"""The fields of a declaration: pydantic's types with the words that an error says of them.

Every error names the key, what was given and what is allowed.
"""

from __future__ import annotations

import datetime
import math
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Self, TypeGuard

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, WrapValidator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from offtrace._shared.suggestions import did_you_mean
from offtrace._shared.type_guards import is_list

Toml = Mapping[str, Any]
"""A table as TOML has it, not checked yet."""
Table = dict[str, Any]
"""A table of TOML or JSON that is ours: texts, numbers, lists and tables."""
LONGEST = 200
"""Characters of a value that an error shows."""


class DeclarationError(ValueError):
    """A study cannot be what its declaration says."""

    def __init__(self, key: str, given: object, allowed: str) -> None:
        super().__init__(f"{key}: got {shown(given)}; allowed: {allowed[: 10 * LONGEST]}")


class StudyError(RuntimeError):
    """A study cannot continue. What was computed and written stays, and the next run continues from there."""


def shown(given: object) -> str:
    """A value as an error shows it: `repr`, cut if it is long."""
    try:
        text = repr(given)
    except (ValueError, RecursionError):  # Python prints no integer of thousands of digits
        return f"an integer of {given.bit_length()} bits" if isinstance(given, int) else f"a {type(given).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"


def is_table(given: object) -> TypeGuard[Toml]:
    """Whether it is a table. TOML has no keys but texts, and a dict with others is refused by name later."""
    return isinstance(given, Mapping)


class Declared(BaseModel):
    """A table of a declaration: no other keys than its fields."""

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _has_no_other_keys(cls, given: object) -> object:
        if isinstance(given, cls):
            return given
        known = list(cls.model_fields)
        if not is_table(given):
            raise _not_allowed(f"a table with the keys {', '.join(known)}")
        unknown = [
            _error_at(
                (str(name),), value, f"no such key{did_you_mean(name, known)}; the keys here are {', '.join(known)}"
            )
            for name, value in given.items()
            if name not in known
        ]
        if unknown:
            raise ValidationError.from_exception_data(cls.__name__, unknown)
        return given

    @classmethod
    def checked(cls, at: str, given: object) -> Self:
        """Make it of a table; `at` is the key of the table, "" for the whole declaration."""
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise declaration_error(at, error) from None


def declaration_error(at: str, error: ValidationError) -> DeclarationError:
    """The errors of pydantic, in our words, one to a line."""
    errors: list[DeclarationError] = []
    for each in error.errors(include_url=False):
        given: object = None if each["type"] == "missing" else each["input"]
        words = "a value: this key is needed" if each["type"] == "missing" else each["msg"]
        if each["type"] == "value_error":
            words = str(each.get("ctx", {}).get("error", words))
        errors.append(DeclarationError(_key(at, each["loc"]), given, words))
    first = errors[0]
    first.args = ("\n".join(str(one) for one in errors),)
    return first


def _key(at: str, location: tuple[int | str, ...]) -> str:
    key = at
    for part in location:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else part
    return key or "the study"


def _not_allowed(words: str) -> PydanticCustomError:
    return PydanticCustomError("not_allowed", "{words}", {"words": words})


def _error_at(location: tuple[int | str, ...], given: object, words: str) -> InitErrorDetails:
    return InitErrorDetails(type=_not_allowed(words), loc=location, input=given)


def number(low: float = 0.0, high: float = math.inf, above: bool = False) -> BeforeValidator:
    """For a finite number in [low, high]; with `above`, in (low, high]."""
    words = f"a number {'above' if above else 'of at least'} {low:g}"
    words += "" if high == math.inf else f" and at most {high:g}"

    def check(given: object) -> float:
        if not isinstance(given, int | float) or isinstance(given, bool) or not low <= given <= high:
            raise _not_allowed(words)
        if abs(given) > sys.float_info.max or (above and given == low):
            raise _not_allowed(words)
        return float(given)

    return BeforeValidator(check)


def whole(low: int = 0) -> BeforeValidator:
    """For an integer of at least `low`, and below 2^63."""

    def check(given: object) -> int:
        if not isinstance(given, int) or isinstance(given, bool) or not low <= given < 2**63:
            raise _not_allowed(f"an integer of at least {low}, below 2^63")
        return given

    return BeforeValidator(check)


def one_of(*options: str) -> BeforeValidator:
    """For one of these words."""

    def check(given: object) -> object:
        if given not in options:
            raise _not_allowed(", ".join(map(repr, options)) + did_you_mean(given, options))
        return given

    return BeforeValidator(check)


def kind(words: str, *kinds: type) -> BeforeValidator:
    """For a value of one of these types, and no other that could be converted."""

    def check(given: object) -> object:
        if type(given) not in kinds:
            raise _not_allowed(words)
        return given

    return BeforeValidator(check)


def listed(what: str, at_least: int = 0) -> WrapValidator:
    """For a list of so many items."""

    def check(given: object, validate: Callable[[object], Any]) -> Any:
        if not is_list(given) or len(given) < at_least:
            raise _not_allowed(f"a list of {what}{' that is not empty' if at_least else ''}")
        return validate(given)

    return WrapValidator(check)


def several(what: str) -> WrapValidator:
    """For a list of different values, at least one."""

    def check(given: object, validate: Callable[[object], Any]) -> Any:
        if not is_list(given) or not given:
            raise _not_allowed(f"a list of {what} that is not empty")
        values = validate(given)
        if len(set(values)) < len(values):
            again = next(i for i, value in enumerate(values) if value in values[:i])
            errors = [_error_at((again,), given[again], "each value once")]
            raise ValidationError.from_exception_data("several", errors)
        return values

    return WrapValidator(check)


def _text(given: object) -> str:
    if not isinstance(given, str) or not given.strip():
        raise _not_allowed("a text that is not empty")
    return given.strip()


def _name(given: object) -> object:
    if not isinstance(given, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", given):
        raise _not_allowed("letters, digits, '.', '_' and '-', at most 100: it becomes the name of a folder")
    return given


Text = Annotated[str, BeforeValidator(_text)]
"""A text with more than spaces in it, without those around it."""
Name = Annotated[str, BeforeValidator(_name)]
"""The name of a study."""
Names = Annotated[tuple[Text, ...], listed("names")]
Lams = Annotated[tuple[Annotated[float, number(0, 1)], ...], several("λ")]
Alphas = Annotated[tuple[Annotated[float, number(0, above=True)], ...], several("step sizes")]
Ages = Annotated[tuple[Annotated[int, whole(0)], ...], several("ages")]


def all_printable(key: str, given: object) -> None:
    """Refuse control characters but tabs and line breaks, in all texts of a table or list and in the names of keys.

    A terminal would obey them, and a page not show them.

    >>> all_printable("name", "\\x1b[31mred")
    Traceback (most recent call last):
    offtrace.studies.fields.DeclarationError: name: got '\\x1b[31mred'; allowed: a text without control characters
    """
    if isinstance(given, str):
        if any(unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" for c in given):
            raise DeclarationError(key or "the study", given, "a text without control characters")
    elif is_table(given):
        for name, value in given.items():
            inner = f"{key}.{name}" if key else str(name)
            all_printable(inner if str(name).isprintable() else key, str(name))
            all_printable(inner, value)
    elif is_list(given):
        for i, value in enumerate(given):
            all_printable(f"{key}[{i}]", value)
    elif isinstance(given, datetime.date | datetime.time):
        raise DeclarationError(key, given, "no date or time: write it as a text")
